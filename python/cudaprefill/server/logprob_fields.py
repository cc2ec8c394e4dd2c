"""Log-probabilities as the two endpoints show them."""

from __future__ import annotations

from collections.abc import Sequence

from cudaprefill.outputs import Logprob, TokenLogprobs

LEAST = -9999.0  # JSON has no minus infinity


def chat_logprobs(tokens: Sequence[TokenLogprobs] | None, num_top: int) -> dict[str, object] | None:
    """The `logprobs` of a chat choice; None when they were not asked for."""
    if tokens is None:
        return None
    return {"content": [_chat_token(token, num_top) for token in tokens]}


def _chat_token(token: TokenLogprobs, num_top: int) -> dict[str, object]:
    sampled, *_ = token.values()
    best = [each for each in token.values() if each.rank <= num_top]
    return {**_chat_entry(sampled), "top_logprobs": [_chat_entry(each) for each in _by_rank(best)]}


def _chat_entry(logprob: Logprob) -> dict[str, object]:
    text = logprob.decoded_token or ""
    return {"token": text, "logprob": max(logprob.logprob, LEAST), "bytes": list(text.encode(errors="replace"))}


class CompletionLogprobs:
    """The `logprobs` of a completion choice, piece by piece: `text_offset` counts from the start of its text."""

    def __init__(self, num_top: int, offset: int) -> None:
        """`offset`: characters of the text before the first token."""
        self._num_top = num_top
        self._offset = offset

    def take(self, tokens: Sequence[TokenLogprobs | None]) -> dict[str, object]:
        """Of the next tokens; None stands for the first token of a prompt, which has none before it to follow from."""
        fields: dict[str, list[object]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
        for token in tokens:
            self._add(fields, token)
        return dict(fields)

    def _add(self, fields: dict[str, list[object]], token: TokenLogprobs | None) -> None:
        fields["text_offset"].append(self._offset)
        if token is None:
            fields["tokens"].append("")
            fields["token_logprobs"].append(None)
            fields["top_logprobs"].append(None)
            return
        sampled, *_ = token.values()
        text = sampled.decoded_token or ""
        fields["tokens"].append(text)
        fields["token_logprobs"].append(max(sampled.logprob, LEAST))
        # As OpenAI does, the sampled token is among them even where it is not among the best.
        best = [each for each in token.values() if each.rank <= self._num_top or each is sampled]
        fields["top_logprobs"].append(
            {each.decoded_token or "": max(each.logprob, LEAST) for each in _by_rank(best)} if self._num_top else None
        )
        self._offset += len(text)


def _by_rank(logprobs: list[Logprob]) -> list[Logprob]:
    return sorted(logprobs, key=lambda each: each.rank)
