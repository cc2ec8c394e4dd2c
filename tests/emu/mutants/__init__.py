"""Kernels with one fault each, a file a family of kernels. test_mutants.py must see every one of them fail."""

from . import attention, experts, float8, hopper_decode, hopper_prefill, lora, stream_order
from .mutant import Mutant

FAMILIES = {
    "attention": attention.MUTANTS,
    "float8": float8.MUTANTS,
    "hopper_prefill": hopper_prefill.MUTANTS,
    "hopper_decode": hopper_decode.MUTANTS,
    "lora": lora.MUTANTS,
    "experts": experts.MUTANTS,
    "stream_order": stream_order.MUTANTS,
}
MUTANTS = {mutant.name: mutant for mutants in FAMILIES.values() for mutant in mutants}

__all__ = ["FAMILIES", "MUTANTS", "Mutant"]
