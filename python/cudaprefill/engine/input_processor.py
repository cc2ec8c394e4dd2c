"""From what a caller says to a Request, in the caller's own thread."""

from __future__ import annotations

import dataclasses
import numbers
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cudaprefill.adapters import AdapterRegistry
from cudaprefill.engine.request import Request
from cudaprefill.engine.scheduler_config import SchedulerConfig
from cudaprefill.sampling_params import SamplingParams, show
from cudaprefill.text.chat_template import Message, check_unicode
from cudaprefill.text.grammar import Grammars
from cudaprefill.text.tokenizer import Tokenizer

# Text, token ids (an array or a tensor of them will do), or vLLM's dicts: {"prompt": text} or
# {"prompt_token_ids": ids}, either with a "cache_salt".
Prompt = str | Sequence[int] | Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class InputProcessor:
    """Tokenizes and checks; raises ValueError naming what is wrong, before the engine hears of the request."""

    tokenizer: Tokenizer
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    limits: SchedulerConfig
    adapters: AdapterRegistry = dataclasses.field(default_factory=AdapterRegistry)
    grammars: Grammars = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "grammars", Grammars(self.tokenizer, self.eos_token_ids, self.vocab_size))

    def process_prompt(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        arrival_time: float | None = None,
        cache_salt: str | None = None,
        adapter: str | None = None,
    ) -> tuple[Request, str | None]:
        """The request, and the prompt's text where it was given as text. `adapter`: the name of one that is loaded."""
        arrival_time = time.monotonic() if arrival_time is None else arrival_time
        text, token_ids, own_salt = self._parse(prompt)
        if own_salt is not None and cache_salt is not None:
            raise ValueError("cache_salt is given twice: in the prompt and beside it")
        cache_salt = cache_salt if own_salt is None else own_salt
        request = self._request(request_id, token_ids, params, priority, arrival_time, cache_salt, adapter)
        return request, text

    def process_chat(
        self,
        request_id: str,
        messages: Sequence[Message],
        params: SamplingParams,
        *,
        priority: int = 0,
        arrival_time: float | None = None,
        cache_salt: str | None = None,
        adapter: str | None = None,
    ) -> Request:
        """`messages` through the model's chat template, with the opening of the answer behind them."""
        arrival_time = time.monotonic() if arrival_time is None else arrival_time
        token_ids = self.tokenizer.encode_chat(messages)
        return self._request(request_id, token_ids, params, priority, arrival_time, cache_salt, adapter)

    def _parse(self, prompt: Prompt) -> tuple[str | None, list[int], str | None]:
        cache_salt = None
        if isinstance(prompt, Mapping):
            unknown = set(prompt) - {"prompt", "prompt_token_ids", "cache_salt"}
            if unknown or ("prompt" in prompt) == ("prompt_token_ids" in prompt):
                raise ValueError(
                    f"a prompt dict has prompt or prompt_token_ids, and may have cache_salt; got {show(list(prompt))}"
                )
            cache_salt = prompt.get("cache_salt")
            prompt = prompt["prompt"] if "prompt" in prompt else prompt["prompt_token_ids"]
        if isinstance(prompt, str):
            return prompt, self.tokenizer.encode(prompt), cache_salt
        return None, self._check_token_ids(prompt), cache_salt

    def _check_token_ids(self, token_ids: object) -> list[int]:
        token_ids = as_list(token_ids)
        if not isinstance(token_ids, Sequence) or isinstance(token_ids, (bytes, bytearray)):
            raise ValueError(f"a prompt must be text or a list of token ids, got {type(token_ids).__name__}")
        for position, token_id in enumerate(token_ids):
            if isinstance(token_id, bool) or not isinstance(token_id, numbers.Integral):
                raise ValueError(f"prompt token {position} must be an integer, got {show(token_id)}")
            if not 0 <= int(token_id) < self.vocab_size:
                raise ValueError(
                    f"prompt token {position} is {show(token_id)}, but the vocabulary has {self.vocab_size} tokens"
                )
        return [int(token_id) for token_id in token_ids]

    def _request(
        self,
        request_id: str,
        token_ids: list[int],
        params: SamplingParams,
        priority: int,
        arrival_time: float,
        cache_salt: str | None,
        adapter_name: str | None,
    ) -> Request:
        if not isinstance(request_id, str) or not request_id:
            raise ValueError(f"request_id must be a string that is not empty, got {show(request_id)}")
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise ValueError(f"priority must be an integer, got {show(priority)}")
        if not isinstance(params, SamplingParams):
            raise ValueError(f"sampling_params must be SamplingParams, got {type(params).__name__}")
        params.validate_for(self.vocab_size)
        adapter = None if adapter_name is None else self.adapters.get(adapter_name)
        self.limits.refuse_impossible(len(token_ids), params.n)
        if max(token_ids) >= self.vocab_size:  # a tokenizer may know more tokens than the model has rows for
            raise ValueError(f"the prompt has token {max(token_ids)}, but the vocabulary has {self.vocab_size} tokens")
        if cache_salt is not None:
            if not isinstance(cache_salt, str) or not cache_salt:
                raise ValueError(f"cache_salt must be a string that is not empty, got {show(cache_salt)}")
            check_unicode("cache_salt", cache_salt)
        structured = params.structured_outputs
        grammar = None if structured is None else self.grammars.compile(structured)
        extra_keys = [("cache_salt", cache_salt.encode())] if cache_salt else []
        if adapter is not None:
            extra_keys.append(adapter.extra_key)
        if params.prompt_logprobs is not None:  # a block found in the cache has none, so such a prompt shares none
            extra_keys.append(("prompt_logprobs", secrets.token_bytes(16)))
        tokenized_time = time.monotonic()
        members = [
            Request(
                request_id=request_id if index == 0 else f"{request_id}#{index}",
                prompt_token_ids=token_ids,
                sampling_params=params,
                eos_token_ids=self.eos_token_ids,
                arrival_time=arrival_time,
                tokenized_time=tokenized_time,
                priority=priority,
                extra_keys=tuple(extra_keys),
                adapter=adapter,
                grammar=grammar,
            )
            for index in range(params.n)
        ]
        members[0].siblings.extend(members[1:])
        return members[0]


def as_list(value: object) -> object:
    """The list that an array or a tensor holds; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value
