"""The CUDA kernels of attention and of the KV cache beside torch's, and beside what the device can do.

Every number is measured in this run: the two ceilings (a large bf16 matrix product, a large copy), the kernels, and
each attention backend that torch offers, on contiguous keys and values. Prefill is told in TFLOP/s (4 * head_size for
each pair of a query and a key that it sees), decoding and the KV write in TB/s of the bytes that must move.

    python -m benchmarks.attention [--seconds 420] [--tiny --device cpu]

Writes benchmarks/results/attention_<device>.json and .md. `--tiny` runs small shapes once, to see that all of it runs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import kernel_choice
from cudaprefill import ops

BLOCK_SIZE = 16
RESULTS = Path(__file__).with_name("results")
FLOAT8 = torch.float8_e4m3fn
SDPA = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


@contextmanager
def environment(variable: str, value: str) -> Iterator[None]:
    """While it lasts, the variable has the value; what the kernels go by is asked for at every call."""
    before = os.environ.get(variable)
    os.environ[variable] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


@dataclass
class Measurement:
    """One row of the report; `rate` is in the unit of its ceiling, TFLOP/s or TB/s.

    A kernel that was asked for by name has it in `kernel`, beside what kernel_choice.py goes by: the op, the type of
    the caches, the head size, and the size, which is new tokens or requests.
    """

    case: str
    implementation: str
    microseconds: float
    rate: float
    unit: str
    share_of_ceiling: float
    op: str = ""
    kv_dtype: str = ""
    head_size: int = 0
    size: int = 0
    kernel: str = ""


class Timer:
    """Times work on one device, until the time of the whole run is spent."""

    def __init__(self, device: torch.device, seconds: float, repeats: int) -> None:
        self.device = device
        self.end = time.monotonic() + seconds
        self.repeats = repeats

    @property
    def spent(self) -> bool:
        return time.monotonic() > self.end

    def median_seconds(self, work: Callable[[], object]) -> float:
        """The median over the repeats, by events of the device, after two runs that do not count."""
        work(), work()
        if self.device.type != "cuda":
            times = []
            for _ in range(self.repeats):
                start = time.perf_counter()
                work()
                times.append(time.perf_counter() - start)
            return statistics.median(times)
        torch.cuda.synchronize()
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(self.repeats)]
        for begin, end in events:
            begin.record()
            work()
            end.record()
        torch.cuda.synchronize()
        return statistics.median(begin.elapsed_time(end) for begin, end in events) / 1e3


class Report:
    """Collects the rows, each beside the ceiling that was measured in this run."""

    def __init__(self, timer: Timer, tiny: bool) -> None:
        self.timer = timer
        self.rows: list[Measurement] = []
        device = timer.device
        size = 256 if tiny else 8192
        a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
        self.peak_flops = 2 * size**3 / timer.median_seconds(lambda: a @ b)
        source = torch.randn((1 if tiny else 512) * 2**20, device=device)
        target = torch.empty_like(source)
        self.peak_bytes = 2 * source.nbytes / timer.median_seconds(lambda: target.copy_(source))

    def add(
        self,
        case: str,
        implementation: str,
        work: Callable[[], object],
        flops: float = 0,
        moved: float = 0,
        **choice: str | int,
    ) -> None:
        """Measures and keeps one row; what a backend of torch refuses is left out. `choice`: of `Measurement`."""
        if self.timer.spent:
            return
        try:
            seconds = self.timer.median_seconds(work)
        except (RuntimeError, TypeError, ValueError) as error:
            if implementation == "cudaprefill":
                raise
            print(f"{case}: {implementation} refuses: {str(error).splitlines()[0][:80]}")
            return
        work_done, peak, unit = (flops, self.peak_flops, "TFLOP/s") if flops else (moved, self.peak_bytes, "TB/s")
        rate = work_done / seconds
        row = Measurement(case, implementation, seconds * 1e6, rate / 1e12, unit, rate / peak, **choice)
        self.rows.append(row)
        print(f"{case:44} {implementation:14} {row.microseconds:10.1f} us {row.rate:8.3f} {unit} {rate / peak:6.1%}")

    def add_kernels(
        self, op: str, case: str, paged: Paged, size: int, work: Callable[[], object], **done: float
    ) -> None:
        """A row for each kernel of the op over such caches, by name, where the device has more than one."""
        if self.timer.device.type == "cuda" and torch.cuda.get_device_capability() == (9, 0):
            kv_dtype = str(paged.k_cache.dtype).removeprefix("torch.")
            asked = {"op": op, "kv_dtype": kv_dtype, "head_size": paged.k_cache.shape[3], "size": size}
            for kernel in kernel_choice.KERNELS[op, kv_dtype]:
                with environment(f"CUDAPREFILL_{op.upper()}_KERNEL", kernel):
                    self.add(case, f"cudaprefill {kernel}", work, **done, **asked, kernel=kernel)

    def markdown(self, device_name: str) -> str:
        """The whole report as a page."""
        lines = [
            f"# Attention on {device_name}, torch {torch.__version__}",
            "",
            f"Ceilings of this run: {self.peak_flops / 1e12:.1f} TFLOP/s (bf16 matrix product), "
            f"{self.peak_bytes / 1e12:.3f} TB/s (copy, read and written bytes).",
            "",
            "| case | implementation | us | rate | of the ceiling |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {row.case} | {row.implementation} | {row.microseconds:.1f} | {row.rate:.3f} {row.unit} | "
            f"{row.share_of_ceiling:.1%} |"
            for row in self.rows
        ]
        return "\n".join(lines) + "\n"


@dataclass
class Paged:
    """Random keys and values of several requests in shuffled blocks."""

    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor
    context_lens: Tensor
    scales: dict[str, Tensor]  # what the ops take beside the others; empty but for float8 caches

    @classmethod
    def random(
        cls,
        lens: list[int],
        heads: int,
        head_size: int,
        device: torch.device,
        kv_dtype: torch.dtype = torch.bfloat16,
    ) -> Paged:
        blocks_of = [math.ceil(length / BLOCK_SIZE) for length in lens]
        ids = torch.randperm(sum(blocks_of), dtype=torch.int32)
        table = torch.zeros(len(lens), max(blocks_of), dtype=torch.int32)
        for row, own in zip(table, ids.split(blocks_of), strict=True):
            row[: len(own)] = own
        shape = (sum(blocks_of), heads, BLOCK_SIZE, head_size)
        caches = (torch.randn(shape, device=device, dtype=torch.bfloat16).to(kv_dtype) for _ in range(2))
        ones = torch.ones(heads, device=device)
        scales = {"k_scale": ones, "v_scale": ones} if kv_dtype == FLOAT8 else {}
        return cls(*caches, table.to(device), torch.tensor(lens, dtype=torch.int32, device=device), scales)


def visible_pairs(new: int, context: int) -> int:
    """Pairs of a query and a key that it sees."""
    return new * (context - new) + new * (new + 1) // 2


def prefill(
    report: Report,
    name: str,
    requests: list[tuple[int, int]],
    heads: tuple[int, int],
    head_size: int,
    kv_dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Requests of (new tokens, context), against each backend of torch where they are alike.

    Over float8 caches there is nothing of torch to compare with.
    """
    device = report.timer.device
    tokens = sum(new for new, _ in requests)
    q = torch.randn(tokens, heads[0], head_size, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(q)
    paged = Paged.random([context for _, context in requests], heads[1], head_size, device, kv_dtype)
    starts = torch.tensor([0, *(new for new, _ in requests)], device=device).cumsum(0).int()
    scale = head_size**-0.5
    flops = 4 * head_size * heads[0] * sum(visible_pairs(new, context) for new, context in requests)

    def attend_paged() -> None:
        ops.prefill_attention(
            q, paged.k_cache, paged.v_cache, paged.block_table, starts, paged.context_lens, out, scale, **paged.scales
        )

    report.add(name, "cudaprefill", attend_paged, flops=flops)
    report.add_kernels("prefill", name, paged, tokens, attend_paged, flops=flops)
    if kv_dtype == FLOAT8:
        return
    new, context = requests[0]
    if any(request != (new, context) for request in requests):
        varlen(report, name, requests, heads, head_size, flops)
        return
    batch = len(requests)
    q4 = q.view(batch, new, heads[0], head_size).transpose(1, 2)
    keys, values = (
        torch.randn(batch, heads[1], context, head_size, device=device, dtype=torch.bfloat16) for _ in range(2)
    )
    mask = {"is_causal": True} if new == context else {"attn_mask": causal_lower_right(new, context)}
    for backend_name, backend in SDPA.items():

        def attend(backend: SDPBackend = backend) -> Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q4, keys, values, enable_gqa=heads[0] != heads[1], **mask)

        report.add(name, f"sdpa {backend_name}", attend, flops=flops)


def varlen(
    report: Report, name: str, requests: list[tuple[int, int]], heads: tuple[int, int], head_size: int, flops: int
) -> None:
    """torch's attention over packed sequences, where this torch has it and all requests begin at zero."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return
    if any(new != context for new, context in requests):
        return
    device = report.timer.device
    tokens, longest = sum(new for new, _ in requests), max(new for new, _ in requests)
    starts = torch.tensor([0, *(new for new, _ in requests)], device=device).cumsum(0).int()
    # It takes as many KV heads as query heads: the work is the same, the bytes are more.
    q, keys, values = (torch.randn(tokens, heads[0], head_size, device=device, dtype=torch.bfloat16) for _ in range(3))

    def attend() -> object:
        try:
            return varlen_attn(q, keys, values, starts, starts, longest, longest, is_causal=True)
        except TypeError:  # torch 2.11 and later say it by a window
            return varlen_attn(q, keys, values, starts, starts, longest, longest, window_size=(-1, 0))

    report.add(name, "torch varlen", attend, flops=flops)


def decode(
    report: Report,
    batch: int,
    context: int,
    heads: tuple[int, int],
    head_size: int,
    kv_dtype: torch.dtype = torch.bfloat16,
) -> None:
    """One token a request; the bytes are those of the keys and values. Float8 caches as in `prefill`."""
    device = report.timer.device
    name = f"decode {batch} x {context}, D {head_size}{', float8' if kv_dtype == FLOAT8 else ''}"
    q = torch.randn(batch, heads[0], head_size, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(q)
    paged = Paged.random([context] * batch, heads[1], head_size, device, kv_dtype)
    moved = 2 * batch * context * heads[1] * head_size * kv_dtype.itemsize
    scale = head_size**-0.5

    def attend_paged() -> None:
        caches = (paged.k_cache, paged.v_cache)
        ops.decode_attention(q, *caches, paged.block_table, paged.context_lens, out, scale, **paged.scales)

    report.add(name, "cudaprefill", attend_paged, moved=moved)
    report.add_kernels("decode", name, paged, batch, attend_paged, moved=moved)
    if kv_dtype == FLOAT8:
        return
    keys, values = (
        torch.randn(batch, heads[1], context, head_size, device=device, dtype=torch.bfloat16) for _ in range(2)
    )
    for backend_name, backend in SDPA.items():

        def attend(backend: SDPBackend = backend) -> Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q[:, :, None], keys, values, enable_gqa=heads[0] != heads[1])

        report.add(name, f"sdpa {backend_name}", attend, moved=moved)


def mixed(report: Report, decodes: int, context: int, heads: tuple[int, int], head_size: int) -> None:
    """A step of decodes beside a chunk of 512 tokens, in one op and in two."""
    device = report.timer.device
    name = f"{decodes} decodes x {context} and 512 new, D {head_size}"
    q = torch.randn(decodes + 512, heads[0], head_size, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(q)
    paged = Paged.random([context] * decodes + [512], heads[1], head_size, device)
    starts = torch.tensor([*range(decodes + 1), decodes + 512], dtype=torch.int32, device=device)
    moved = 2 * (decodes * context + 512) * heads[1] * head_size * 2
    scale = head_size**-0.5
    caches, table, lens = (paged.k_cache, paged.v_cache), paged.block_table, paged.context_lens

    def at_once() -> None:
        ops.mixed_attention(q, *caches, table, starts, lens, out, decodes, scale)

    def in_turn() -> None:
        ops.decode_attention(q[:decodes], *caches, table[:decodes], lens[:decodes], out[:decodes], scale)
        ops.prefill_attention(q, *caches, table[decodes:], starts[decodes:], lens[decodes:], out, scale)

    report.add(name, "cudaprefill", at_once, moved=moved)
    report.add(name, "cudaprefill in turn", in_turn, moved=moved)


def layer(report: Report, batch: int, context: int, heads: tuple[int, int], head_size: int) -> None:
    """The kernels of a decode layer, one after another in a captured graph; without the products in between."""
    device = report.timer.device
    num_heads, num_kv_heads = heads
    hidden, inner = num_heads * head_size, 4 * num_heads * head_size
    paged = Paged.random([context] * batch, num_kv_heads, head_size, device)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16)

    fused = random(batch, num_heads + 2 * num_kv_heads, head_size)
    q, k, v = fused.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    out = torch.empty_like(q)
    x, residual, weight = random(batch, hidden), random(batch, hidden), random(hidden)
    gate_up = random(batch, 2 * inner)
    cos_sin = torch.randn(context, head_size, device=device)
    positions = torch.full((batch,), context - 1, device=device)
    slots = paged.block_table[:, (context - 1) // BLOCK_SIZE].long() * BLOCK_SIZE + (context - 1) % BLOCK_SIZE

    def run() -> None:
        ops.add_rms_norm(x, residual, weight, 1e-5)
        ops.rope_write_kv(q, k, v, cos_sin, positions, paged.k_cache, paged.v_cache, slots)
        ops.decode_attention(
            q, paged.k_cache, paged.v_cache, paged.block_table, paged.context_lens, out, head_size**-0.5
        )
        ops.add_rms_norm(x, residual, weight, 1e-5)
        ops.silu_and_mul(gate_up)

    name, moved = f"layer of {batch} x {context}, D {head_size}", 2 * batch * context * num_kv_heads * head_size * 2
    with environment("CUDAPREFILL_PROGRAMMATIC_LAUNCH", "1"):
        overlapping = captured(run, device)
    with environment("CUDAPREFILL_PROGRAMMATIC_LAUNCH", "0"):
        in_turn = captured(run, device)
    report.add(name, "cudaprefill", overlapping, moved=moved)
    report.add(name, "cudaprefill in turn", in_turn, moved=moved)


def captured(work: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """A replay of the work as a graph; where the device has none, the work itself."""
    if device.type != "cuda":
        return work
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def kv_write(report: Report, tokens: int, heads: int, head_size: int) -> None:
    """K and V of many tokens into shuffled slots; torch's way is an index assignment."""
    device = report.timer.device
    k, v = (torch.randn(tokens, heads, head_size, device=device, dtype=torch.bfloat16) for _ in range(2))
    blocks = math.ceil(tokens / BLOCK_SIZE)
    caches = [torch.zeros(blocks, heads, BLOCK_SIZE, head_size, device=device, dtype=torch.bfloat16) for _ in range(2)]
    order = torch.randperm(blocks, device=device)
    position = torch.arange(tokens, device=device)
    slots = order[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
    name, moved = f"KV write of {tokens} tokens, D {head_size}", 2 * (k.nbytes + v.nbytes)
    report.add(name, "cudaprefill", lambda: ops.write_kv(k, v, *caches, slots), moved=moved)

    def assign() -> None:
        for cache, rows in zip(caches, (k, v), strict=True):
            cache[slots // BLOCK_SIZE, :, slots % BLOCK_SIZE] = rows

    report.add(name, "torch index", assign, moved=moved)


def cases(report: Report, tiny: bool) -> Iterator[Callable[[], None]]:
    """All cases, those that matter most first, for the time may end before the list."""
    heads = (8, 2) if tiny else (32, 8)
    for head_size in (128, 64):

        def named(what: str, size: int = head_size) -> str:
            return f"prefill {what}, D {size}"

        for length in (64,) if tiny else (512, 2048, 8192, 16384):
            yield lambda n=length, d=head_size: prefill(report, named(f"{n}", d), [(n, n)], heads, d)
        for new, context in ((16, 48),) if tiny else ((512, 8192), (2048, 32768)):
            what = f"{new} on {context - new} cached"
            yield lambda r=(new, context), w=what, d=head_size: prefill(report, named(w, d), [r], heads, d)
        lengths = (33, 64, 5) if tiny else (4096, 2048, 1024, 777, 512, 333, 128, 17)
        requests = [(length, length) for length in lengths]
        yield lambda r=requests, d=head_size: prefill(report, named("of mixed lengths", d), r, heads, d)
        for batch in (2,) if tiny else (1, 8, 64, 256):
            for context in (64,) if tiny else (1024, 4096, 8192, 32768):
                if batch * context <= 2**21:  # 8 GiB of keys and values at head size 128
                    yield lambda b=batch, c=context, d=head_size: decode(report, b, c, heads, d)
        yield lambda d=head_size: mixed(report, 2 if tiny else 64, 64 if tiny else 4096, heads, d)
        yield lambda d=head_size: layer(report, 2 if tiny else 32, 64 if tiny else 1024, heads, d)
        yield lambda d=head_size: kv_write(report, 64 if tiny else 16384, heads[1], d)
        for length in (64,) if tiny else (512, 2048, 8192):
            what = named(f"{length}, float8", head_size)
            yield lambda n=length, w=what, d=head_size: prefill(report, w, [(n, n)], heads, d, FLOAT8)
        for batch in (2,) if tiny else (1, 8, 64, 256):
            yield lambda b=batch, d=head_size: decode(report, b, 64 if tiny else 4096, heads, d, FLOAT8)
    if not tiny:  # the head size of the fewest models, as far as a kernel is to be chosen
        for length in (2048, 8192):
            yield lambda n=length: prefill(report, f"prefill {n}, D 256", [(n, n)], (8, 4), 256)
        for batch in (8, 64):
            yield lambda b=batch: decode(report, b, 4096, (8, 4), 256)
            yield lambda b=batch: decode(report, b, 4096, (8, 4), 256, FLOAT8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=420, help="after this long no more cases are begun")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--choose-kernels", action="store_true", help="record the fastest ones (kernel_choice.py)")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type

    report = Report(Timer(device, arguments.seconds, repeats=1 if arguments.tiny else 20), arguments.tiny)
    failures = []
    for case in cases(report, arguments.tiny):
        if report.timer.spent:
            break
        try:
            case()
        except (RuntimeError, ValueError) as error:  # the other cases are worth their time
            failures.append(str(error).splitlines()[0])
            print(f"failed: {failures[-1]}")
    stem = "attention_" + re.sub(r"\W+", "_", device_name).strip("_").lower()
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / f"{stem}.md").write_text(report.markdown(device_name))
    whole = {
        "device": device_name,
        "torch": torch.__version__,
        "peak_flops": report.peak_flops,
        "peak_bytes": report.peak_bytes,
        "rows": [asdict(row) for row in report.rows],
    }
    (arguments.results / f"{stem}.json").write_text(json.dumps(whole, indent=1) + "\n")
    if arguments.choose_kernels:
        print(kernel_choice.record(whole["rows"], kernel_choice.HEADER))
    if failures:
        raise SystemExit(f"{len(failures)} cases failed, the first one: {failures[0]}")


if __name__ == "__main__":
    main()
