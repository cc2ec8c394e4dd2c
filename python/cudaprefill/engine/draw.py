"""Draws a token of each row by inverting its cumulative distribution at one uniform number."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from cudaprefill.engine.device_tensor import device_tensor
from cudaprefill.engine.filters import column, descending, least_by_min_p, least_kept
from cudaprefill.sampling_params import SamplingParams

NOT_FINITE = -1  # instead of a token: the row's best logit is NaN or infinite
NOT_COVERED = -2  # instead of a token: the leading tokens do not hold all that the row's filters keep

NUM_LEADING = 128  # the most likely tokens of a row, which cost a small part of a sort
MAX_LEADING_TOP_K = 64  # leaves room for tokens that tie with the last one
BLOCK = 128  # tokens; mass is added up by blocks first, and token by token in one block only
MAX_TEMPERATURE = 1e30  # finite in float32; hotter is no different


def draw_leading(logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> Tensor:
    """[R] int64: a token of each row of logits [R, V], looking at the leading tokens alone.

    For rows that all have a top_k of at most MAX_LEADING_TOP_K, or that all have top_p as their only filter.
    Where more tokens are kept than lead, the answer is NOT_COVERED, whatever the filters, and never a wrong token.
    """
    vocab_size = logits.shape[1]
    values, token_ids = logits.topk(min(NUM_LEADING, vocab_size))
    best, temperatures = values[:, :1], _temperatures(params, logits.device)
    scaled = (values - best).double().div_(temperatures)
    total = None
    if params[0].top_k <= 0:
        mass = (logits - best).div_(temperatures.float()).exp_()
        total = _block_mass(_in_blocks(mass)).sum(-1, keepdim=True)
    least = least_kept(scaled, params, total)
    # By token id: equal logits come in no particular order.
    token_ids, order = token_ids.sort(-1)
    mass = scaled.exp().masked_fill_(scaled < least, 0.0).gather(1, order)
    chosen, _ = _invert(mass, column(uniforms, torch.float64, logits.device))
    drawn = token_ids.gather(1, chosen)
    if values.shape[1] < vocab_size:
        drawn = torch.where(scaled[:, -1:] < least, drawn, NOT_COVERED)
    return torch.where(torch.isfinite(best), drawn, NOT_FINITE)[:, 0]


def draw(logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> Tensor:
    """[R] int64: a token of each row of logits [R, V] float32, which is overwritten."""
    best = logits.amax(-1, keepdim=True)
    scaled = logits.sub_(best).div_(_temperatures(params, logits.device).float())
    _drop_filtered(scaled, params)
    mass = _in_blocks(scaled.exp_())
    block, rest = _invert(_block_mass(mass), column(uniforms, torch.float64, logits.device))
    inside = mass.gather(1, block[:, :, None].expand(-1, -1, BLOCK))[:, 0]
    offset, _ = _invert(inside.double(), rest)
    return torch.where(torch.isfinite(best), block * BLOCK + offset, NOT_FINITE)[:, 0]


def _drop_filtered(scaled: Tensor, params: Sequence[SamplingParams]) -> None:
    """Sets to -inf what the filters drop from scaled [R, V]. Only rows with top_k or top_p are sorted."""
    least = least_by_min_p(params, scaled.dtype, scaled.device)
    ranked = [row for row, p in enumerate(params) if p.top_k > 0 or p.top_p < 1.0]
    if ranked:
        rows = device_tensor(ranked, torch.int64, scaled.device)
        least[rows] = least_kept(descending(scaled[rows]), [params[row] for row in ranked])
    if ranked or any(p.min_p > 0.0 for p in params):
        scaled.masked_fill_(scaled < least, -torch.inf)


def _temperatures(params: Sequence[SamplingParams], device: torch.device) -> Tensor:
    return column([min(p.temperature, MAX_TEMPERATURE) for p in params], torch.float64, device)


def _in_blocks(mass: Tensor) -> Tensor:
    """[R, V] -> [R, blocks, BLOCK], the last block filled up with zeros."""
    if mass.shape[1] % BLOCK:
        mass = pad(mass, (0, -mass.shape[1] % BLOCK))
    return mass.view(mass.shape[0], -1, BLOCK)


def _block_mass(blocks: Tensor) -> Tensor:
    """[R, blocks] float64. Within a block, float32 sums are as exact as the terms are."""
    return blocks.sum(-1).double()


def _invert(mass: Tensor, fraction: Tensor) -> tuple[Tensor, Tensor]:
    """Where the running sum of mass [R, N] float64 passes `fraction` [R, 1] of the whole.

    Returns the place [R, 1] and the fraction [R, 1] of that place's own mass that is passed. The place has mass.

        mass      .2  0   .5      .3
        sum     0  .2 .2     .7       1
        fraction .45       ^ place 2, of which (.45 - .2) / .5 = .5 is passed
    """
    up_to = mass.cumsum(-1)
    whole = up_to[:, -1:]
    # Rounding may lift the product to the whole, which no place passes.
    target = torch.minimum(fraction * whole, torch.nextafter(whole, torch.zeros_like(whole)))
    place = torch.searchsorted(up_to, target, right=True).clamp_(max=mass.shape[1] - 1)  # NaN is beyond all
    before = torch.where(place > 0, up_to.gather(1, (place - 1).clamp_(min=0)), 0.0)
    return place, ((target - before) / mass.gather(1, place)).clamp_(0.0, 1.0)
