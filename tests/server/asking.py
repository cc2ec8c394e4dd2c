"""Requests that the tests of several endpoints send."""

from __future__ import annotations

from typing import Any

from tests.engine.harness import expected, text_of
from tests.server.running import MODEL

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
PROMPT = [7, 3, 9, 4, 11, 5]
TEXT = text_of(PROMPT)
ANSWER = text_of(expected(PROMPT))  # of eight tokens, greedy

# The chat template hands contents on as they are, so both prompts are the same tokens.
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 8, "ignore_eos": True}
CHAT_FIELDS: dict[str, Any] = {**GREEDY, "messages": [{"role": "user", "content": TEXT}]}
COMPLETION_FIELDS: dict[str, Any] = {**GREEDY, "prompt": TEXT}
BOTH = [(CHAT, CHAT_FIELDS), (COMPLETIONS, COMPLETION_FIELDS)]
ENDLESS = {"max_tokens": 500}
