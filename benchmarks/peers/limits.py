"""What the machine allows at best: the least bytes of a decode step, the least operations of a prefill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.engine import linear_parameters, prefill_operations
from cudaprefill.models import read_model_config
from cudaprefill.models.gguf import GgufFile


@dataclass
class Limits:
    """`gemm_GFLOP_s` and `read_GB_s` are samples, one a round, of torch's float32 product and of reading memory."""

    decode_bytes: dict[str, int]  # by what the weights are stored as: all matrices once
    prefill_operations: dict[str, float]  # by the number of tokens
    gemm_GFLOP_s: list[float] = field(default_factory=list)  # noqa: N815  (as the unit is written)
    read_GB_s: list[float] = field(default_factory=list)  # noqa: N815


def limits_of(model: Path, prompts: Sequence[int]) -> Limits:
    """Of a model; the rates are still to be measured."""
    config = read_model_config(model)
    num_bytes = {"float32": 4 * (linear_parameters(config) + config.hidden_size * config.vocab_size)}
    if model.is_file():
        matrices = {
            name: tensor.rows.nbytes for name, tensor in GgufFile(model).tensors.items() if len(tensor.shape) == 2
        }
        if "output.weight" in matrices:  # else the embedding is the LM head
            del matrices["token_embd.weight"]
        num_bytes["as stored"] = sum(matrices.values())
    return Limits(num_bytes, {str(length): prefill_operations(config, length) for length in prompts})
