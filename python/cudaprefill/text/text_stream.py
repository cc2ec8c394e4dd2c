"""The text of one output as its tokens come."""

from __future__ import annotations

from cudaprefill.sampling_params import SamplingParams
from cudaprefill.text.detokenizer import Detokenizer
from cudaprefill.text.stop import StopMatcher
from cudaprefill.text.tokenizer import Tokenizer


class TextStream:
    """Detokenizes and looks for stop strings, as the sampling parameters ask.

    A token that ends the output (EOS, a stop token) is pushed only where its text is wanted. A stop string counts from
    the token on that makes the output `min_tokens` long.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._detokenizer = Detokenizer(tokenizer, params.skip_special_tokens) if params.detokenize else None
        self._stops = StopMatcher(params.stop_strings, params.include_stop_str_in_output)
        self._tokens_until_stop = params.min_tokens

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text, once there was one."""
        return self._stops.matched

    def push(self, token_id: int) -> str:
        """The text to send now."""
        if self._detokenizer is None:
            return ""
        self._tokens_until_stop -= 1
        return self._stops.push(self._detokenizer.push(token_id), self._tokens_until_stop <= 0)

    def finish(self) -> str:
        """The rest of the text when the output has ended. It may still end in a stop string: see `stop_string`."""
        if self._detokenizer is None or self.stop_string is not None:
            return ""
        return self._stops.push(self._detokenizer.finish(), self._tokens_until_stop <= 0) + self._stops.finish()
