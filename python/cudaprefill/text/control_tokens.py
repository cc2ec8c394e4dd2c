"""Keeps control tokens that a user typed apart from those that a chat template writes.

A rendered chat is one string, in which a typed "<|im_end|>" looks like the template's own. So before rendering, a mark
is set into every control token within a message, behind its first character: the template sees the message as it is but
for that. After rendering, what still matches is the template's and gets another spelling; then the marks go, and a
tokenizer that knows the control tokens by the other spelling only reads the whole text in one piece. Merges, spaces and
normalization at the seams are therefore those of the plain way.

    message     a<|im_end|>b            guard      a<MARK|im_end|>b
    rendered    <|im_start|>user a<MARK|im_end|>b<|im_end|>
    respelled   CTRL1user a<|im_end|>bCTRL2

Marks and spellings hold a random number, so that nobody can type them. Added tokens that are not marked as special
(such as <think>) are words of the vocabulary like any other.
"""

from __future__ import annotations

import json
import re
import secrets
from typing import Any

from tokenizers import Tokenizer as Backend


class ControlTokens:
    """The control tokens of one tokenizer."""

    def __init__(self, backend: Backend) -> None:
        added = backend.get_added_tokens_decoder()
        spelled = sorted((token.content for token in added.values() if token.special), key=len, reverse=True)
        nonce = secrets.token_hex(8)
        self.ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._mark = f"\ue000{nonce}\ue001"
        self._other_spelling = {token: f"\ue002{nonce}.{number}\ue003" for number, token in enumerate(spelled)}
        self._pattern = re.compile("|".join(map(re.escape, spelled)) or r"(?!)")
        self._beginnings = frozenset(token[:length] for token in spelled for length in range(1, len(token)))
        self._longest_beginning = max(map(len, self._beginnings), default=0)

    def guard(self, value: Any) -> Any:
        """A copy of `value` in which no string, nested in lists and dicts or not, holds or begins a control token."""
        if isinstance(value, str):
            return self._guard_text(value)
        if isinstance(value, (list, tuple)):
            return [self.guard(item) for item in value]
        if isinstance(value, dict):
            return {key: self.guard(item) for key, item in value.items()}
        return value

    def _guard_text(self, text: str) -> str:
        text = self._pattern.sub(lambda match: match[0][0] + self._mark + match[0][1:], text)
        # A template may trim a message and set another one right behind it, which must not complete a control token.
        end = len(text.rstrip())
        if any(
            text[end - length : end] in self._beginnings for length in range(1, min(self._longest_beginning, end) + 1)
        ):
            text = text[:end] + self._mark + text[end:]
        return text

    def respell(self, rendered: str) -> str:
        """A rendered chat of guarded messages, with the template's control tokens spelled the other way."""
        respelled = self._pattern.sub(lambda match: self._other_spelling[match[0]], rendered)
        return respelled.replace(self._mark, "")

    def begins_with_control_token(self, respelled: str) -> bool:
        """Of a rendered chat, or a part of one, after `respell`."""
        return any(respelled.startswith(spelling) for spelling in self._other_spelling.values())

    def respelled_backend(self, backend: Backend) -> Backend:
        """A tokenizer like `backend` that knows control tokens by their other spelling only."""
        content = json.loads(backend.to_str())
        for token in content["added_tokens"]:
            token["content"] = self._other_spelling.get(token["content"], token["content"])
        model = content["model"]
        if isinstance(model["vocab"], dict):
            model["vocab"] = {
                self._other_spelling.get(token, token): number for token, number in model["vocab"].items()
            }
        else:  # unigram: [token, score] by id
            model["vocab"] = [[self._other_spelling.get(token, token), score] for token, score in model["vocab"]]
        if model.get("unk_token") is not None:
            model["unk_token"] = self._other_spelling.get(model["unk_token"], model["unk_token"])
        return Backend.from_str(json.dumps(content))
