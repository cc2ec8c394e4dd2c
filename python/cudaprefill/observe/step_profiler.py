"""Where the time of a step goes: clocks around the parts of one engine, put on and taken off again.

A part's time is its own, that of the parts within it apart, so all parts together are the step. Nothing of this is in
the engine: while no profiler is on, a step is as it always is.

On a CPU the forward pass is split into its ops, for they have ended when they return. On a GPU they have not: there
the forward pass and the logits are one part, waited for at its end, and a trace of torch's profiler shows the kernels.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cudaprefill import ops
from cudaprefill.engine.batch import Batch
from cudaprefill.models.block_matrix import Matrix
from cudaprefill.models.decoder import Decoder
from cudaprefill.models.linear import Linear

if TYPE_CHECKING:
    from cudaprefill.engine.engine import Engine
    from cudaprefill.engine.schedule import Schedule

# The parts, in the order of a step. What no clock stands around is "other".
SCHEDULE, BUILD, SAMPLE, COMMIT, TEXT, OTHER = "schedule", "build", "sample", "commit", "text", "other"
FORWARD, LOGITS, ON_DEVICE = "forward", "logits", "forward and logits"
GATED = "gate, up and activation"  # one op, or two where adapters add to gate and up
OP_PARTS = {
    "rms_norm": "norms",
    "add_rms_norm": "norms",
    "rope_write_kv": "rope and KV write",
    "decode_attention": "attention of single tokens",
    "prefill_attention": "attention of chunks",
    "mixed_attention": "attention of decodes and chunks",
    "silu_and_mul": GATED,
    "gelu_tanh_and_mul": GATED,
    "expert_mlp": "experts",
    "expert_mlp_blocks": "experts",
    "add_lora": "LoRA",
    "write_kv": "KV of prefix tuning",
    "copy_blocks": "block copies",
}
_MATRICES = {  # by their field in LayerWeights; those of experts are multiplied in the op
    "qkv": "linear qkv",
    "o": "linear o",
    "gate_up": GATED,
    "down": "linear down",
    "router": "linear router",
}
FORWARD_PARTS = ("embedding", *dict.fromkeys((*_MATRICES.values(), *OP_PARTS.values())), "between the ops")
PARTS = (SCHEDULE, BUILD, *(f"{FORWARD}: {part}" for part in FORWARD_PARTS), LOGITS, ON_DEVICE, SAMPLE, COMMIT, TEXT)


@dataclass(frozen=True)
class ProfiledStep:
    """One step. `parts` are seconds, and `OTHER` among them; they add up to `seconds`."""

    num_decodes: int
    decode_context: int  # tokens that the decodes attend to, all together
    chunk_tokens: int
    seconds: float
    parts: dict[str, float]


class StepProfiler:
    """`with StepProfiler(engine) as profiler: engine.step()`; the steps are in `profiler.steps`.

    For a thread that owns the engine. The clocks around ops are seen by every engine of the process meanwhile.
    annotate: each part is named in a trace that torch's profiler takes, too; that takes more time.
    """

    def __init__(self, engine: Engine, *, annotate: bool = False) -> None:
        self.steps: list[ProfiledStep] = []
        self._engine = engine
        self._annotate = annotate
        self._restore = contextlib.ExitStack()
        self._parts: dict[str, float] = {}
        self._inner = [0.0]  # seconds of parts within each part that is running, outermost first
        self._schedules: list[Schedule] = []  # of the step that is running: one, or none without work

    def __enter__(self) -> StepProfiler:
        engine, runner = self._engine, self._engine.model_runner
        self._put(engine, "step", self._whole_step(engine.step))
        self._put(engine.scheduler, "schedule", self._timed(SCHEDULE, self._seen(engine.scheduler.schedule)))
        self._put(engine.scheduler, "build", self._timed(BUILD, engine.scheduler.build))
        self._put(Batch, "from_arrays", self._timed(BUILD, Batch.from_arrays))
        if engine.device.type == "cpu":
            self._put_into_forward()
        else:
            self._put(runner, "run", self._timed(ON_DEVICE, _waited_for(runner.run, engine.device)))
        self._put(engine, "_sample", self._timed(SAMPLE, engine._sample))
        for name in ("commit", "end_step"):
            self._put(engine.scheduler, name, self._timed(COMMIT, getattr(engine.scheduler, name)))
        self._put(engine._outputs, "process", self._timed(TEXT, engine._outputs.process))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore.close()

    def _put_into_forward(self) -> None:
        model = self._engine.model_runner.model
        self._put(model, "logits", self._timed(LOGITS, model.logits))
        self._put(model, "forward", self._timed(f"{FORWARD}: between the ops", model.forward))
        for name, part in OP_PARTS.items():
            self._put(ops, name, self._timed(f"{FORWARD}: {part}", getattr(ops, name)))
        if isinstance(model, Decoder):
            self._put(model, "_embed", self._timed(f"{FORWARD}: embedding", model._embed))
            self._put(model, "_linear", self._timed_linear(model))

    def _timed_linear(self, model: Decoder) -> Linear:
        """The model's linear layers, timed under the name of the matrix."""
        parts = {id(model.weights.lm_head): LOGITS}
        for layer in model.weights.layers:
            parts |= {id(getattr(layer, field)): f"{FORWARD}: {part}" for field, part in _MATRICES.items()}
        return _TimedLinear(model._linear, parts, self._timed)

    def _put(self, owner: Any, name: str, replacement: Callable[..., Any]) -> None:
        """Replaces an attribute until the end of the `with`."""
        own = vars(owner).get(name)
        if own is None:  # a method of its class, or of the class of a class: hidden, and found again by deletion
            self._restore.callback(delattr, owner, name)
        else:
            self._restore.callback(setattr, owner, name, own)
        setattr(owner, name, staticmethod(replacement) if isinstance(owner, type) else replacement)

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` with a clock that adds to `part` what its inner parts do not take."""
        clock, inner, named = time.perf_counter, self._inner, torch.profiler.record_function

        def timed(*arguments: Any, **options: Any) -> Any:
            start = clock()
            inner.append(0.0)
            try:
                return function(*arguments, **options)
            finally:
                elapsed = clock() - start
                self._parts[part] = self._parts.get(part, 0.0) + elapsed - inner.pop()
                inner[-1] += elapsed

        if not self._annotate:
            return timed

        def annotated(*arguments: Any, **options: Any) -> Any:
            with named(part):
                return timed(*arguments, **options)

        return annotated

    def _seen(self, schedule: Callable[..., Schedule | None]) -> Callable[..., Schedule | None]:
        def seen(*arguments: Any) -> Schedule | None:
            scheduled = schedule(*arguments)
            if scheduled is not None:
                self._schedules.append(scheduled)
            return scheduled

        return seen

    def _whole_step(self, step: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(step)
        def whole_step() -> Any:
            self._parts, self._schedules = {}, []
            self._inner[:] = [0.0]
            start = time.perf_counter()
            result = step()
            seconds = time.perf_counter() - start
            for scheduled in self._schedules:
                work = scheduled.work
                parts = {**self._parts, OTHER: seconds - self._inner[0]}
                self.steps.append(ProfiledStep(work.decodes, work.decode_context, work.chunk_tokens, seconds, parts))
            return result

        return whole_step


class _TimedLinear(Linear):
    """A linear layer with a clock for each matrix."""

    def __init__(
        self,
        linear: Linear,
        parts: Mapping[int, str],
        timed: Callable[[str, Callable[..., Tensor]], Callable[..., Tensor]],
    ) -> None:
        """`parts` by the identity of the matrix; timed(part, function) puts a clock around a function."""
        self._linear = {matrix: timed(part, linear) for matrix, part in parts.items()}
        self._gated = {matrix: timed(part, linear.gated) for matrix, part in parts.items()}

    def __call__(self, x: Tensor, weight: Matrix, bias: Tensor | None) -> Tensor:
        return self._linear[id(weight)](x, weight, bias)

    def gated(self, x: Tensor, gate_up: Matrix, bias: Tensor | None, activation: str) -> Tensor:
        return self._gated[id(gate_up)](x, gate_up, bias, activation)


def _waited_for(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    def waited_for(*arguments: Any) -> Any:
        result = function(*arguments)
        torch.cuda.synchronize(device)
        return result

    return waited_for
