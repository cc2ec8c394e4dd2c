"""From what a caller says to a Request, in the caller's own thread."""

from __future__ import annotations

import dataclasses
import numbers
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cudaprefill.adapters import AdapterRegistry
from cudaprefill.adapters.files import content_hash
from cudaprefill.adapters.virtual_tokens import NO_VIRTUAL_TOKENS, VirtualTokens
from cudaprefill.engine.request import Request
from cudaprefill.engine.scheduler_config import SchedulerConfig
from cudaprefill.sampling_params import SamplingParams, show
from cudaprefill.text.chat_template import Message, check_unicode
from cudaprefill.text.grammar import Grammars
from cudaprefill.text.tokenizer import Tokenizer

# Text, token ids (an array or a tensor of them will do), or vLLM's dicts: {"prompt": text} or
# {"prompt_token_ids": ids}, either with a "cache_salt"; or {"prompt_embeds": tensor}, alone or in front of one of them.
Prompt = str | Sequence[int] | Mapping[str, Any]


class _Parsed(NamedTuple):
    """A prompt as tokens."""

    token_ids: list[int]
    text: str | None = None  # where it was given as text
    cache_salt: str | None = None
    embeddings: Tensor | None = None  # in front of the token ids, [tokens, H]


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
        parsed = self._parse(prompt)
        if parsed.cache_salt is not None:
            if cache_salt is not None:
                raise ValueError("cache_salt is given twice: in the prompt and beside it")
            cache_salt = parsed.cache_salt
        request = self._request(request_id, parsed, params, priority, arrival_time, cache_salt, adapter)
        return request, parsed.text

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
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Request:
        """`messages` through the model's chat template, with the opening of the answer behind them.

        chat_template_kwargs: variables of the template, such as enable_thinking of Qwen3.
        """
        arrival_time = time.monotonic() if arrival_time is None else arrival_time
        variables = self.tokenizer.chat_template.check_variables(chat_template_kwargs or {})
        parsed = _Parsed(self.tokenizer.encode_chat(messages, **variables))
        return self._request(request_id, parsed, params, priority, arrival_time, cache_salt, adapter)

    def _parse(self, prompt: Prompt) -> _Parsed:
        cache_salt = embeddings = None
        if isinstance(prompt, Mapping):
            texts = prompt.keys() & {"prompt", "prompt_token_ids"}
            unknown = prompt.keys() - texts - {"prompt_embeds", "cache_salt"}
            if unknown or len(texts) > 1 or not (texts or "prompt_embeds" in prompt):
                raise ValueError(
                    "a prompt dict has prompt or prompt_token_ids, prompt_embeds alone or before one of them, and may "
                    f"have cache_salt; got {show(list(prompt))}"
                )
            cache_salt = prompt.get("cache_salt")
            if "prompt_embeds" in prompt:
                embeddings = self._check_embeddings(prompt["prompt_embeds"])
            prompt = prompt[texts.pop()] if texts else []
        if isinstance(prompt, str):
            return _Parsed(self.tokenizer.encode(prompt), prompt, cache_salt, embeddings)
        return _Parsed(self._check_token_ids(prompt), None, cache_salt, embeddings)

    def _check_embeddings(self, embeddings: object) -> Tensor:
        """A copy in the host's memory, of the activation dtype: the caller's may change."""
        target = self.adapters.target
        if target is None:
            raise ValueError("this engine takes no prompt_embeds")
        hidden_size = target.model.hidden_size
        if not isinstance(embeddings, Tensor) or not embeddings.dtype.is_floating_point:
            kind = embeddings.dtype if isinstance(embeddings, Tensor) else type(embeddings).__name__
            raise ValueError(f"prompt_embeds must be a tensor of floating-point numbers, got {kind}")
        if embeddings.layout is not torch.strided or embeddings.is_meta or embeddings.is_nested:
            form = "meta" if embeddings.is_meta else "nested" if embeddings.is_nested else embeddings.layout
            raise ValueError(f"prompt_embeds must be a dense tensor that has values, got a {form} one")
        if embeddings.ndim != 2 or embeddings.shape[0] < 1 or embeddings.shape[1] != hidden_size:
            shape = tuple(embeddings.shape)
            raise ValueError(f"prompt_embeds must have the shape [tokens, {hidden_size}], got {shape}")
        self.limits.refuse_impossible(0, 1, embeddings.shape[0])  # before that much is copied
        own = embeddings.detach().to("cpu", target.activation_dtype, copy=True)
        if not own.isfinite().all():
            raise ValueError("prompt_embeds holds values that are not finite")
        return own

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
        parsed: _Parsed,
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
        virtual_tokens = NO_VIRTUAL_TOKENS if adapter is None else adapter.virtual_tokens
        token_ids, embeddings = parsed.token_ids, parsed.embeddings
        if embeddings is None and not token_ids:
            raise ValueError("the prompt has no tokens")
        if embeddings is not None:
            assert self.adapters.target is not None
            virtual_tokens = _followed_by(virtual_tokens, embeddings.to(self.adapters.target.device))
        self.limits.refuse_impossible(len(token_ids), params.n, virtual_tokens.num_tokens)
        if max(token_ids, default=0) >= self.vocab_size:  # a tokenizer may know more tokens than the model has rows for
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
        if embeddings is not None:
            extra_keys.append(("prompt_embeds", content_hash({}, {"prompt_embeds": embeddings})))
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
                virtual_tokens=virtual_tokens,
                grammar=grammar,
            )
            for index in range(params.n)
        ]
        members[0].siblings.extend(members[1:])
        return members[0]


def _followed_by(virtual_tokens: VirtualTokens, embeddings: Tensor) -> VirtualTokens:
    before = virtual_tokens.embeddings
    return VirtualTokens(virtual_tokens.keys_values, embeddings if before is None else torch.cat((before, embeddings)))


def as_list(value: object) -> object:
    """The list that an array or a tensor holds; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value
