"""Log-probabilities of sampled tokens and of the most likely ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cudaprefill.engine.device_tensor import device_tensor
from cudaprefill.outputs import Logprob, TokenLogprobs


def token_logprobs(logits: Tensor, token_ids: Sequence[int], num_leading: Sequence[int]) -> list[TokenLogprobs]:
    """For each row of logits [R, V] float32: token_ids[i], then the num_leading[i] most likely tokens, best first.

    The logits are the model's own, and a softmax over the whole vocabulary: penalties, biases, temperature and filters
    do not show. A token's rank is one more than the number of tokens that are more likely.
    """
    all_logprobs = logits.log_softmax(-1)
    places = device_tensor(token_ids, torch.int64, logits.device)[:, None]
    ranks = (logits > logits.gather(1, places)).sum(-1).add_(1).tolist()
    sampled = all_logprobs.gather(1, places)[:, 0].tolist()
    values, leading = (part.tolist() for part in all_logprobs.topk(min(max(num_leading), logits.shape[1])))
    result = []
    for row, (token_id, count) in enumerate(zip(token_ids, num_leading, strict=True)):
        logprobs = {token_id: Logprob(sampled[row], ranks[row])}
        for place in range(min(count, len(leading[row]))):
            logprobs.setdefault(leading[row][place], Logprob(values[row][place], place + 1))
        result.append(logprobs)
    return result
