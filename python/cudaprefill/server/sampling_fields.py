"""The fields that completions and chat completions share: OpenAI's, and vLLM's on top."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from cudaprefill.sampling_params import SamplingParams, show
from cudaprefill.server.errors import ApiError
from cudaprefill.server.structured_fields import StructuredFields


class StreamOptions(BaseModel):
    include_usage: bool = Field(False, description="end the stream with an event that has the usage, and no choices")
    continuous_usage_stats: bool = Field(False, description="put the usage so far into every event")


class SamplingFields(StructuredFields):
    """Types are checked here, ranges by SamplingParams.

    UNSUPPORTED: fields that would change the answer and cannot be had, each with the value that asks for nothing.
    """

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    UNSUPPORTED: ClassVar[Mapping[str, object]] = {
        "allowed_token_ids": [],
        "bad_words": [],
        "logits_processors": [],
        "prompt_embeds": [],
        "spaces_between_special_tokens": True,
        "truncate_prompt_tokens": None,
        "use_beam_search": False,
    }

    model: str | None = Field(None, description="one of GET /v1/models; left out, the one there is")
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, description="completions of each prompt")
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    max_tokens: int | None = None
    # vLLM's
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: int = Field(0, description="lower values leave the queue first")
    cache_salt: str | None = Field(None, description="prompts share cached prefixes only with those of the same salt")

    def sampling_params(self, **overrides: Any) -> SamplingParams:
        """Raises ValueError that begins with the name of the field that is wrong."""
        given = {name: getattr(self, name) for name in _SHARED if getattr(self, name) is not None}
        structure = self.structure()
        return SamplingParams(**(given | {"structured_outputs": structure} | overrides))

    def refuse_unsupported(self) -> None:
        """Raises ApiError 400 for what would change the answer and cannot be had here."""
        for name, value in (self.model_extra or {}).items():
            if name in self.UNSUPPORTED and value != self.UNSUPPORTED[name]:
                raise ApiError(
                    400,
                    f"{name} {show(value)} is not supported by this server",
                    param=name,
                    code="unsupported_parameter",
                )

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.continuous_usage_stats


_SHARED = [field.name for field in dataclasses.fields(SamplingParams) if field.name in SamplingFields.model_fields]
