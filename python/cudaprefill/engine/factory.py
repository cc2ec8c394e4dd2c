"""From settings to a running engine: loads the model, sizes the KV cache, joins the parts."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

import cudaprefill
from cudaprefill import ops
from cudaprefill.adapters import AdapterError, AdapterRegistry, AdapterTarget
from cudaprefill.adapters.files import read_config
from cudaprefill.config import EngineConfig, check_itl_target, format_bytes
from cudaprefill.engine.cuda_graphs import CudaGraphs, DecodeGraphRunner
from cudaprefill.engine.dry_run import DryRun
from cudaprefill.engine.engine import Engine
from cudaprefill.engine.input_processor import InputProcessor
from cudaprefill.engine.kv_cache import KVCache
from cudaprefill.engine.kv_cache_sizing import blocks_for_cpu, blocks_for_gpu
from cudaprefill.engine.kv_scales import FLOAT8, calibrated_scales, describe
from cudaprefill.engine.model_runner import ModelRunner
from cudaprefill.engine.scheduler import Scheduler
from cudaprefill.engine.scheduler_config import SchedulerConfig
from cudaprefill.heap import give_back_freed_memory, keep_freed_memory
from cudaprefill.models import default_model_path, load_model, read_model_config
from cudaprefill.models.decoder import Decoder
from cudaprefill.models.weights import expected_tensors
from cudaprefill.observe.spans import RequestSpans
from cudaprefill.observe.trace import TraceHeader, TraceWriter
from cudaprefill.presets import with_preset
from cudaprefill.protocol.itl_target import ItlTarget
from cudaprefill.text.tokenizer import Tokenizer

# The largest step decides how long a running stream may stall, and a CPU computes a few hundred tokens in the time a
# GPU takes for thousands.
TOKEN_BUDGET = {"cpu": 512, "cuda": 8192}
# A GPU's largest step is short enough as it is; a CPU takes half a second for its own.
DEFAULT_ITL_TARGET: dict[str, ItlTarget | None] = {"cpu": "auto", "cuda": None}
MAX_NUM_SEQS = 256

Progress = Callable[[float, float], None]


@dataclass(frozen=True)
class EngineInfo:
    """What an engine came out as; the start-up line and `cudaprefill info`."""

    model: str  # file or folder
    family: str
    num_parameters: int
    dtype: str
    kv_cache_dtype: str
    linear_math: str  # what activations are rounded to for the products with weights
    device: str
    kernels: str  # the instruction set of the CPU kernels, or "cuda"
    threads: int
    max_model_len: int
    block_size: int
    num_blocks: int
    block_bytes: int
    max_num_batched_tokens: int
    max_num_seqs: int
    enable_prefix_caching: bool
    itl_target_ms: ItlTarget | None = None  # None: none
    kv_scales: str | None = None  # of a float8 cache: where they come from, and from where to where they go

    @property
    def num_slots(self) -> int:
        """Tokens that the KV cache holds."""
        return self.num_blocks * self.block_size

    @property
    def concurrency(self) -> float:
        """Requests of max_model_len tokens that fit at once."""
        return self.num_slots / self.max_model_len

    def __str__(self) -> str:
        return (
            f"{self.model} · {self.num_parameters / 1e6:,.0f}M {self.dtype} · {self.device}/{self.kernels}"
            f" · {self.num_blocks:,} blocks of {self.block_size} = {self.num_slots:,} tokens"
            f" ({format_bytes(self.num_blocks * self.block_bytes)}),"
            f" {self.concurrency:.1f} requests of {self.max_model_len:,} at once"
            f" · budget {self.max_num_batched_tokens:,}"
        )


@dataclass(frozen=True)
class EngineParts:
    """An engine and what its clients need beside it."""

    engine: Engine
    input_processor: InputProcessor
    tokenizer: Tokenizer
    info: EngineInfo
    trace: TraceWriter | None = None  # to be told all events, and closed after the engine
    spans: RequestSpans | None = None  # to be told all events
    idle_work: Iterable[object] = ()  # see EngineThread


def build_engine(config: EngineConfig, progress: Progress | None = None) -> EngineParts:
    """`progress` gets bytes of weights loaded and in all.

    Raises ValueError or OSError saying which setting, file or tensor is wrong.
    """
    if config.trace is not None:
        open(config.trace, "ab").close()  # before the model is loaded: it may not be writable
    endpoint = config.otlp_traces_endpoint
    path = Path(config.model) if config.model is not None else default_model_path()
    spans = None if endpoint is None else RequestSpans.to(endpoint, path.name)
    model_config = read_model_config(path)
    max_model_len = config.max_model_len or model_config.max_model_len
    if max_model_len > model_config.max_model_len:
        raise ValueError(f"max_model_len is {max_model_len}, but the model was made for {model_config.max_model_len}")
    device = resolve_device(config.device)
    config = with_preset(config, device.type)
    budget = config.max_num_batched_tokens or TOKEN_BUDGET[device.type]
    max_num_seqs = config.max_num_seqs or min(MAX_NUM_SEQS, budget)
    target = config.itl_target_ms
    scheduler_config = SchedulerConfig(
        num_blocks=1,  # until the memory is measured; contradictions are found before a model is loaded
        block_size=config.block_size,
        max_model_len=max_model_len,
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        enable_prefix_caching=config.enable_prefix_caching,
        max_num_queued_reqs=config.max_num_queued_reqs,
        itl_target_ms=DEFAULT_ITL_TARGET[device.type] if target is None else check_itl_target(target),
        token_budget_limit=None if device.type == "cpu" else budget,
    )
    for name, folder in config.adapters.items():
        with _naming_adapter(name):
            read_config(Path(folder))  # the rest is checked when the model is there
    threads = config.threads or len(os.sched_getaffinity(0))
    ops.set_num_threads(threads)
    torch.set_num_threads(threads)
    if device.type == "cpu":
        keep_freed_memory()
    tokenizer = Tokenizer.load(path)
    model = load_model(path, config.dtype, device, progress, max_model_len, config.linear_math)

    kv_dtype = resolve_kv_cache_dtype(config.kv_cache_dtype, model)
    scales = model.weights.kv_scales if kv_dtype == FLOAT8 else None
    scales_from = "of the checkpoint"
    if kv_dtype == FLOAT8 and scales is None:
        scales, scales_from = calibrated_scales(model, tokenizer, max_model_len), "calibrated"
    adapters = AdapterRegistry(
        AdapterTarget(
            model=model_config,
            device=device,
            activation_dtype=model.activation_dtype,
            kv_dtype=kv_dtype,
            max_model_len=max_model_len,
            int8=model.linear_math == "int8",
        )
    )
    for name, folder in config.adapters.items():
        with _naming_adapter(name):
            adapters.load(name, folder)
    shape = (model_config.num_kv_heads, config.block_size, model_config.head_size)
    block_bytes = KVCache.block_bytes(model_config.num_layers, *shape, kv_dtype)
    if device.type == "cpu":
        num_blocks = blocks_for_cpu(block_bytes, config.kv_cache_memory)
    else:
        dry_run = DryRun(model, budget, max_num_seqs, max_model_len, config.block_size, kv_dtype)
        num_blocks = blocks_for_gpu(
            block_bytes,
            config.gpu_memory_utilization,
            device,
            dry_run.run_largest_step,
            None if config.enforce_eager else lambda: dry_run.capture_graphs(CudaGraphs(device).capture),
        )
    kv_cache = KVCache(model_config.num_layers, num_blocks, *shape, kv_dtype, device, scales)
    if device.type == "cpu" or config.enforce_eager:
        model_runner = ModelRunner(model, kv_cache)
    else:
        model_runner = DecodeGraphRunner(model, kv_cache, max_num_seqs, max_model_len, CudaGraphs(device).capture)

    give_back_freed_memory()  # of a vocabulary that was read, and of weights on their way

    if device.type == "cpu":
        # What is left to torch in a step takes less time than its threads may take to meet: the best tokens of 16 rows
        # once took 0.4 ms with one thread, and 12 with two beside other programs.
        torch.set_num_threads(1)

    scheduler_config = replace(scheduler_config, num_blocks=num_blocks)
    eos_token_ids = tuple(model_config.eos_token_ids) or (
        () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    )
    engine = Engine(Scheduler(scheduler_config), model_runner, tokenizer, device)
    info = EngineInfo(
        model=path.name,
        family=model_config.family,
        num_parameters=sum(math.prod(shape) for shape in expected_tensors(model_config).values()),
        dtype=model.weight_format,
        kv_cache_dtype=str(kv_dtype).removeprefix("torch."),
        linear_math=model.linear_math,
        device=str(device),
        kernels=ops.cpu_isa() if device.type == "cpu" else "cuda",
        threads=threads,
        max_model_len=max_model_len,
        block_size=config.block_size,
        num_blocks=num_blocks,
        block_bytes=block_bytes,
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        enable_prefix_caching=config.enable_prefix_caching,
        itl_target_ms=scheduler_config.itl_target_ms,
        kv_scales=None if scales is None else f"{scales_from}, {describe(scales)}",
    )
    return EngineParts(
        engine=engine,
        input_processor=InputProcessor(tokenizer, eos_token_ids, model_config.vocab_size, scheduler_config, adapters),
        tokenizer=tokenizer,
        info=info,
        trace=None if config.trace is None else _open_trace(config, engine, info),
        spans=spans,
    )


@contextlib.contextmanager
def _naming_adapter(name: str) -> Iterator[None]:
    """Begins an AdapterError with the adapter's name: there may be many."""
    try:
        yield
    except AdapterError as error:
        raise AdapterError(f"adapter {name!r}: {error}") from None


def _open_trace(config: EngineConfig, engine: Engine, info: EngineInfo) -> TraceWriter:
    engine.scheduler.record_prefixes(True)
    header = TraceHeader(
        version=cudaprefill.__version__,
        engine=asdict(info),
        scheduler=asdict(engine.scheduler.config),
        time=time.monotonic(),
        unix_time=time.time(),
    )
    assert config.trace is not None
    return TraceWriter(config.trace, header, max_bytes=config.trace_file_size, max_files=config.trace_files)


def resolve_kv_cache_dtype(name: str, model: Decoder) -> torch.dtype:
    """auto: as the activations, but of 16 bits where these are rounded for the products anyway.

    The cache then holds twice the tokens, and decoding reads half the bytes. float16, beside activations of 16 bits,
    keeps 11 of them and is multiplied in float32; bfloat16, beside 8, keeps 8, and attention of prompts takes 0.6 of
    the time where the CPU multiplies bfloat16. A CPU that converts no float16 keeps what activations are.
    """
    if name.startswith("fp8"):
        return FLOAT8
    if name != "auto":
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    if model.linear_math == "int8":
        return torch.bfloat16
    if model.linear_math == "int16" and ops.cpu_isa() != "plain":
        return torch.float16
    return model.activation_dtype


def resolve_device(name: str) -> torch.device:
    """Raises ValueError when a GPU is asked for and cannot be used."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ValueError(f"device is {name}, but torch {torch.__version__} sees no CUDA device")
    return torch.device("cuda" if name == "auto" else name)
