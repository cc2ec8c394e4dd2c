"""The emulated device as a Hopper, with what tests/ops asks of any backend in bfloat16 where a test does not say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest
import torch

from cudaprefill import ops
from tests.cuda.backends import (
    OP_NAMES,
    as_it_usually_is,
    backend_of_ops,
    emulation,
    ops_replaced_by,
    skipping_refusals,
)
from tests.ops.attention_reference import paged_batch


def half_by_default(*args, **options):
    return paged_batch(*args, **{"dtype": torch.bfloat16, "kv_dtype": torch.bfloat16, **options})


@contextmanager
def hopper_device(
    monkeypatch: pytest.MonkeyPatch, shared_tests: ModuleType, prefill_kernel: str = "best"
) -> Iterator[object]:
    """A device of compute capability 9.0 with two multiprocessors, behind `cudaprefill.ops`; as it was afterwards.

    shared_tests: the module of tests/ops whose batches become bfloat16.
    """
    with as_it_usually_is(emulation()) as device:
        device.set_compute_capability(90)
        device.set_prefill_kernel(prefill_kernel)
        device.set_num_multiprocessors(2)
        torch.manual_seed(0)
        monkeypatch.setattr(shared_tests, "paged_batch", half_by_default)
        with backend_of_ops("emulated"), ops_replaced_by({op: skipping_refusals(getattr(ops, op)) for op in OP_NAMES}):
            yield device
