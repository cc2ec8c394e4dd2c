"""A graph without a GPU: the ops that a function called, run again on the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tape(TorchDispatchMode):
    """Like a CUDA graph, a replay runs no Python of the function and knows only the tensors of the capture."""

    output: Tensor

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[Callable[[], None]] = []

    @classmethod
    def capture(cls, function: Callable[[], Tensor]) -> Tape:
        tape = cls()
        with tape:
            tape.output = function()
        return tape

    def replay(self) -> None:
        for call in self._calls:
            call()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        memory = {_memory(given) for given in tree_leaves((args, kwargs)) if isinstance(given, Tensor)}
        outputs = [result if _memory(result) not in memory else None for result in tree_leaves(results)]

        def call() -> None:
            for output, value in zip(outputs, tree_leaves(func(*args, **kwargs)), strict=True):
                if output is not None:  # neither a view nor written in place
                    output.copy_(value)

        self._calls.append(call)
        return results


def _memory(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.untyped_storage().data_ptr()
