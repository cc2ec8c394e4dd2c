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

    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self._offset = 0

    def take(
        self, tokens: Sequence[TokenLogprobs], prompt: Sequence[TokenLogprobs | None] = (), first_token: str = ""
    ) -> dict[str, list[object]]:
        """Of the next tokens. In front of the first ones, those of an echoed prompt, which begins with `first_token`.

        The first token of a prompt has no probability: there is nothing before it.
        """
        fields: dict[str, list[object]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
        for token in (*prompt, *tokens):
            self._add(fields, token, first_token)
        return fields

    def _add(self, fields: dict[str, list[object]], token: TokenLogprobs | None, first_token: str) -> None:
        text, logprob, top = first_token, None, None
        if token is not None:
            actual, *_ = token.values()
            text, logprob = actual.decoded_token or "", max(actual.logprob, LEAST)
            if self._num_top:
                # As OpenAI does, the actual token is among them even where it is not among the best.
                best = [each for each in token.values() if each.rank <= self._num_top or each is actual]
                top = {each.decoded_token or "": max(each.logprob, LEAST) for each in _by_rank(best)}
        fields["text_offset"].append(self._offset)
        fields["tokens"].append(text)
        fields["token_logprobs"].append(logprob)
        fields["top_logprobs"].append(top)
        self._offset += len(text)


def prompt_logprobs(tokens: Sequence[TokenLogprobs | None]) -> list[object]:
    """The `prompt_logprobs` of vLLM: for each token of the prompt, logprob, rank and text by token id."""
    return [
        None
        if token is None
        else {
            str(token_id): {
                "logprob": max(each.logprob, LEAST),
                "rank": each.rank,
                "decoded_token": each.decoded_token,
            }
            for token_id, each in token.items()
        }
        for token in tokens
    ]


def _by_rank(logprobs: list[Logprob]) -> list[Logprob]:
    return sorted(logprobs, key=lambda each: each.rank)
