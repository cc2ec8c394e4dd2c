"""How many rows of logits one pass works on, which bounds what it allocates."""

from __future__ import annotations

import torch

# Logits of one pass. On a CPU it also keeps a pass within the caches.
_CPU_PASS = 1 << 22
_GPU_PASS = 1 << 27


def rows_per_pass(vocab_size: int, device: torch.device) -> int:
    return max(1, (_GPU_PASS if device.type == "cuda" else _CPU_PASS) // vocab_size)
