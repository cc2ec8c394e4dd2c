"""min_p, top_k and top_p as one threshold a row: a token is kept if its scaled logit reaches it.

Scaled logits are divided by the temperature and shifted so that the best token of a row has 0. The filters work in the
order of vLLM's sampler: min_p looks at the whole distribution, top_k at the tokens themselves, and top_p at what these
two have left, taken as a distribution of its own: it keeps a token while those more likely have less than top_p.

A token that ties with the last one kept is kept as well. So the kept set depends on the logits alone, never on the
order into which a sort happens to bring equals, and the best token always stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cudaprefill.engine.device_tensor import device_tensor
from cudaprefill.sampling_params import SamplingParams


def least_by_min_p(params: Sequence[SamplingParams], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The least scaled logit that min_p keeps of each row, [R, 1]."""
    return column([math.log(p.min_p) if p.min_p > 0.0 else -math.inf for p in params], dtype, device)


def least_kept(ordered: Tensor, params: Sequence[SamplingParams], total: Tensor | None = None) -> Tensor:
    """The least scaled logit that all filters keep of each row, [R, 1].

    ordered: [R, K] scaled logits, best first: all of a row, or the best K of it where the threshold lies among them.
    total: [R, 1] float64, the mass that top_p takes its share of; None: what min_p and top_k leave of `ordered`.
    """
    width = ordered.shape[1]
    least = least_by_min_p(params, ordered.dtype, ordered.device)
    top_k = [p.top_k if 0 < p.top_k < width else 0 for p in params]
    if any(top_k):
        last = ordered.gather(1, column([max(k - 1, 0) for k in top_k], torch.int64, ordered.device))
        off = column([k == 0 for k in top_k], torch.bool, ordered.device)
        least = torch.maximum(least, last.masked_fill_(off, -torch.inf))
    if any(p.top_p < 1.0 for p in params):
        mass = ordered.double().exp().masked_fill_(ordered < least, 0.0)
        up_to = mass.cumsum(-1)
        # A share of 2 is never reached, which turns top_p off.
        share = column([p.top_p if p.top_p < 1.0 else 2.0 for p in params], torch.float64, ordered.device)
        kept = up_to - mass < share * (up_to[:, -1:] if total is None else total)
        last = ordered.gather(1, kept.sum(-1, keepdim=True).sub_(1).clamp_(min=0))
        least = torch.maximum(least, last)
    return least


def descending(logits: Tensor) -> Tensor:
    """The logits of every row, best first."""
    if logits.is_cuda:
        return logits.sort(-1, descending=True).values
    # numpy sorts floats many times faster than torch does on CPUs.
    return torch.from_numpy(-np.sort(-logits.numpy(), axis=-1))


def column(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """One number a row, as [R, 1]."""
    return device_tensor(values, dtype, device)[:, None]
