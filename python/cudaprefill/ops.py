"""The tensor operations of the engine, as functions of torch tensors.

Shapes: T tokens, B requests, Hq and Hkv query and KV heads, D head size, N blocks, S slots in a block (block size),
M columns of a block table. The caches of a layer are ``[N, Hkv, S, D]``; a slot is ``block * S + offset``.

Activations and caches are float32, bfloat16 or float16, each on its own; sums are kept in float32. The last dimension
of every tensor is contiguous; q, k and v may be views of one fused row. A wrong shape, dtype, device or stride raises
``ValueError`` with the name of the argument, before anything is written. An out-of-range slot, position or block id
raises ``IndexError``.

The functions are the overloads of the torch library ``cudaprefill`` themselves: a Python wrapper around each would cost
as much as a small kernel.
"""

from __future__ import annotations

from pathlib import Path

import torch

torch.ops.load_library(Path(__file__).with_name("_ops.so"))

_library = torch.ops.cudaprefill

write_kv = _library.write_kv.default
prefill_attention = _library.prefill_attention.default
decode_attention = _library.decode_attention.default
rope_write_kv = _library.rope_write_kv.default
rms_norm = _library.rms_norm.default
add_rms_norm = _library.add_rms_norm.default
silu_and_mul = _library.silu_and_mul.default
copy_blocks = _library.copy_blocks.default
linear = _library.linear.default
cpu_isa = _library.cpu_isa.default
