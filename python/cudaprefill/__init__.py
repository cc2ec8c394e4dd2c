"""An LLM engine whose prefill you can see.

    from cudaprefill import LLM, SamplingParams

    with LLM() as llm:
        print(llm.chat([{"role": "user", "content": "Hello!"}], SamplingParams(temperature=0))[0].outputs[0].text)

Imported lazily: `import cudaprefill` does not load torch until a name is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudaprefill.adapters.errors import AdapterError, UnknownAdapterError
    from cudaprefill.async_engine import AsyncEngine
    from cudaprefill.config import EngineConfig
    from cudaprefill.errors import EngineDeadError, QueueFullError, SlowReaderError
    from cudaprefill.llm import LLM
    from cudaprefill.outputs import CompletionOutput, RequestOutput
    from cudaprefill.sampling_params import SamplingParams, StructuredOutputsParams

_HOMES = {
    "AdapterError": "adapters.errors",
    "AsyncEngine": "async_engine",
    "CompletionOutput": "outputs",
    "EngineConfig": "config",
    "EngineDeadError": "errors",
    "LLM": "llm",
    "QueueFullError": "errors",
    "RequestOutput": "outputs",
    "SamplingParams": "sampling_params",
    "SlowReaderError": "errors",
    "StructuredOutputsParams": "sampling_params",
    "UnknownAdapterError": "adapters.errors",
}

__all__ = [
    "LLM",
    "AdapterError",
    "AsyncEngine",
    "CompletionOutput",
    "EngineConfig",
    "EngineDeadError",
    "QueueFullError",
    "RequestOutput",
    "SamplingParams",
    "SlowReaderError",
    "StructuredOutputsParams",
    "UnknownAdapterError",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
