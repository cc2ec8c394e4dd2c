"""What a user may set, checked where it enters. Names follow vLLM's flags."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cudaprefill.presets import PRESETS
from cudaprefill.protocol.itl_target import ItlTarget

DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_CACHE_DTYPES = (*DTYPES, "fp8", "fp8_e4m3")  # the last two are one, under both of vLLM's names
LINEAR_MATHS = ("auto", "float32", "int16", "int8")
BLOCK_SIZES = (16, 32, 64)

# The least and the most of each whole number. A step's arrays are as long as the token budget, and allocated once.
_RANGES = {
    "block_size": (1, 2**10),
    "max_num_batched_tokens": (1, 2**20),
    "max_num_seqs": (1, 2**20),
    "max_model_len": (2, 2**31 - 1),
    "long_prefill_token_threshold": (0, 2**31 - 1),
    "max_num_queued_reqs": (0, 2**31 - 1),
    "kv_cache_memory": (1, 2**63 - 1),
    "threads": (1, 2**10),
    "trace_file_size": (2**12, 2**63 - 1),
    "trace_files": (1, 2**10),
}

_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Settings of one engine; `None` means "choose for this machine and model".

    Raises ValueError naming the setting, its value and what is allowed.
    """

    preset: str | None = None  # "rag", "code" or "chat": for settings below that are left open, see presets.py
    model: str | os.PathLike[str] | None = None  # Hugging Face folder or GGUF file; None: the packaged default model
    dtype: str = "auto"  # of weights and activations
    linear_math: str = "auto"  # of weights in blocks on a CPU: what activations are rounded to; auto is int16
    device: str = "auto"  # "cpu", "cuda", "cuda:1"; auto takes a GPU where there is one
    block_size: int = 16  # KV slots of one block
    enable_prefix_caching: bool = True
    max_num_batched_tokens: int | None = None  # the token budget of one step; None: 8192 on a GPU, 512 on a CPU
    max_num_seqs: int | None = None  # requests that run at once; None: 256, or the budget if that is smaller
    max_model_len: int | None = None  # prompt plus output of one request; None: what the model was made for
    long_prefill_token_threshold: int = 0  # most tokens of one prompt in one step while others wait; 0: automatic
    # Chunks are cut so that a step with decodes lasts no longer; 0: no target; None: "auto" on a CPU, 0 on a GPU.
    itl_target_ms: ItlTarget | None = None
    max_num_queued_reqs: int | None = None  # waiting requests before new ones are refused; None: no limit
    kv_cache_dtype: str = "auto"  # auto: as activations; float16 or bfloat16 with linear_math int16 or int8
    kv_cache_memory: int | None = None  # bytes of KV cache on a CPU; None: 2 GiB
    gpu_memory_utilization: float = 0.90  # share of a GPU's memory that weights, activations and KV may take
    enforce_eager: bool = False  # on a GPU: run decode steps without CUDA graphs
    threads: int | None = None  # CPU threads of the kernels; None: all cores of this process
    trace: str | os.PathLike[str] | None = None  # file that every event is written to; None: no trace
    trace_file_size: int = 256 * 2**20  # bytes after which another file of the trace is begun
    trace_files: int = 4  # of these the latest are kept
    adapters: Mapping[str, str | os.PathLike[str]] = field(default_factory=dict)  # name: folder, as PEFT saves it
    otlp_traces_endpoint: str | None = None  # URL that OpenTelemetry spans of requests are sent to; None: no spans

    def __post_init__(self) -> None:
        if not isinstance(self.model, (str, os.PathLike, type(None))):
            raise ValueError(f"model must be a path, got {self.model!r}")
        if not isinstance(self.trace, (str, os.PathLike, type(None))):
            raise ValueError(f"trace must be a path, got {self.trace!r}")
        if not isinstance(self.adapters, Mapping):
            raise ValueError(f"adapters must map names to folders, got {self.adapters!r}")
        for name, folder in self.adapters.items():
            if not isinstance(folder, (str, os.PathLike)):
                raise ValueError(f"the folder of adapter {name!r} must be a path, got {folder!r}")
        if not isinstance(self.otlp_traces_endpoint, (str, type(None))):
            raise ValueError(f"otlp_traces_endpoint must be a URL, got {self.otlp_traces_endpoint!r}")
        if self.preset is not None and self.preset not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {self.preset!r}")
        for name, allowed in (("dtype", DTYPES), ("kv_cache_dtype", KV_CACHE_DTYPES)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if self.linear_math not in LINEAR_MATHS:
            raise ValueError(f"linear_math must be one of {', '.join(LINEAR_MATHS)}, got {self.linear_math!r}")
        if not isinstance(self.device, str) or not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {self.device!r}")
        for name in ("enable_prefix_caching", "enforce_eager"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, got {getattr(self, name)!r}")
        share = self.gpu_memory_utilization
        if not isinstance(share, (int, float)) or isinstance(share, bool) or not 0.0 < share <= 1.0:
            raise ValueError(f"gpu_memory_utilization must be in (0, 1], got {share!r}")
        for name in _RANGES:
            value = getattr(self, name)
            if value is not None:
                check_count(name, value)
        if self.itl_target_ms is not None:
            check_itl_target(self.itl_target_ms)
        budget, seqs = self.max_num_batched_tokens, self.max_num_seqs
        if budget is not None and seqs is not None and budget < seqs:
            raise ValueError(f"max_num_batched_tokens ({budget}) must be at least max_num_seqs ({seqs})")
        if self.block_size not in BLOCK_SIZES:
            raise ValueError(f"block_size must be one of {BLOCK_SIZES}, got {self.block_size!r}")


def check_count(name: str, value: object) -> None:
    """Raises ValueError naming the setting, its value and what is allowed."""
    least, most = _RANGES[name]
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    if value > most:
        raise ValueError(f"{name} must be at most {most}, got {value}")


def check_itl_target(value: object) -> ItlTarget | None:
    """The target as it is, None for 0. Raises ValueError for what is no target."""
    if value == "auto":
        return "auto"
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise ValueError(f'itl_target_ms must be a number of milliseconds, 0 for no target, or "auto", got {value!r}')
    return float(value) or None


def parse_itl_target(text: str) -> ItlTarget:
    """Raises ValueError for what is no target."""
    target = text.strip()
    try:
        value = target if target == "auto" else float(target)
    except ValueError:
        value = target
    return check_itl_target(value) or 0.0


def parse_count(text: str) -> int:
    """An integer with an optional suffix, as vLLM reads it: 8k = 8,000, 8K = 8,192, 1.5k = 1,500."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)", text.strip())
    if not match:
        raise ValueError(f"expected a count such as 8192, 8k (8,000) or 8K (8,192), got {text!r}")
    number, suffix = match.groups()
    value = (float(number) if "." in number else int(number)) * _FACTORS[suffix]
    if value != int(value):
        raise ValueError(f"expected a whole number, got {text!r}")
    return int(value)


def parse_bytes(text: str) -> int:
    """A memory size such as 2GiB, 512MB, 1G (2**30 for G and GiB, 10**9 for GB) or a plain number of bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(iB|B)?", text.strip())
    if not match:
        raise ValueError(f"expected a memory size such as 2GiB or 512MiB, got {text!r}")
    number, prefix, unit = match.groups()
    base = 1000 if unit == "B" and prefix else 1024
    return int(float(number) * base ** " KMGT".index(prefix or " "))


def format_bytes(count: float) -> str:
    """`count` bytes for a person: 737.3 KiB, 2.0 GiB."""
    if count < 1024:
        return f"{count:.0f} B"
    prefixes = "KMGT"
    power = min(int(math.log(count, 1024)), len(prefixes))
    return f"{count / 1024**power:.1f} {prefixes[power - 1]}iB"


def flags_of(settings: Mapping[str, Any]) -> str:
    """--max-num-batched-tokens 512 --no-enable-prefix-caching"""
    flags = []
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            flags.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            flags.append(f"{flag} {value:g}" if isinstance(value, float) else f"{flag} {value}")
    return " ".join(flags)
