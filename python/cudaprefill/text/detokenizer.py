"""Token ids back to text, one at a time."""

from __future__ import annotations

from tokenizers.decoders import DecodeStream

from cudaprefill.text.tokenizer import Tokenizer

UNDECIDED = "\ufffd"  # what a character of which bytes are still missing decodes to
_LONGEST_CHARACTER = 4  # bytes, so tokens at most
_HOLD_LIMIT = 16  # tokens


class Detokenizer:
    """Turns the tokens of one output into pieces of text that join to `Tokenizer.decode` of them all.

    Nothing sent is ever taken back, so two things are held until they are decided: the bytes of an unfinished
    character, and, where the vocabulary has byte tokens, a run of these, for one invalid byte changes the text of its
    whole run.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._backend = tokenizer.backend
        self._skipped = tokenizer.control_token_ids if skip_special_tokens else frozenset()
        self._byte_token_ids = tokenizer.byte_token_ids
        self._stream = DecodeStream()
        self._run: list[int] = []  # byte tokens the stream has not got yet
        self._held: list[int] = []  # tokens the stream has got and has not answered with text
        self._context: list[int] = []  # tokens of the last text: what follows may be spelled by what came before
        self._hold_limit = _HOLD_LIMIT

    def push(self, token_id: int) -> str:
        """The text that this token decides; often none."""
        if token_id in self._skipped or self._backend.id_to_token(token_id) is None:
            return ""
        self._run.append(token_id)
        if token_id in self._byte_token_ids:
            return ""
        run, self._run = self._run, []
        text: str | None = self._stream.step(self._backend, run)
        if text is None:
            self._held += run
            return self._release_invalid() if len(self._held) >= self._hold_limit else ""
        self._context = self._held + run
        self._held = []
        return text

    def finish(self) -> str:
        """The text of what is still held, now that nothing follows."""
        return self._text_after_context(self._held + self._run)

    def _text_after_context(self, token_ids: list[int]) -> str:
        return self._decode(self._context + token_ids)[len(self._decode(self._context)) :]

    def _release_invalid(self) -> str:
        """The text of held tokens that no later token can change.

        A long row of invalid bytes never ends in a finished character, so that the stream would hold, and decode anew
        with every token, all of it. It is cut in front of the last piece that decodes alike alone.
        """
        whole = self._text_after_context(self._held)
        for length in range(1, _LONGEST_CHARACTER + 1):
            head, tail = self._held[:-length], self._held[-length:]
            text, undecided = self._text_after_context(head), self._decode(tail)
            if undecided == UNDECIDED and text + undecided == whole:
                self._stream = DecodeStream(ids=tail)
                self._context, self._held = [], tail
                self._hold_limit = _HOLD_LIMIT
                return text
        self._hold_limit *= 2
        return ""

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._backend.decode(token_ids, skip_special_tokens=False)
        return text
