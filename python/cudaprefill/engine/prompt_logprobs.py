"""Log-probabilities of the tokens of a prompt, chunk by chunk as they are computed.

The row of a token gives the logits of the next one. So a chunk of tokens 4 .. 7 gives the log-probabilities of tokens
5 .. 8, and the last row of the prompt gives none: its logits are what the first output token is drawn from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cudaprefill.engine.logprobs import token_logprobs
from cudaprefill.engine.passes import rows_per_pass

if TYPE_CHECKING:
    from torch import Tensor

    from cudaprefill.engine.model_runner import ModelRunner
    from cudaprefill.engine.request import Request
    from cudaprefill.engine.schedule import Schedule
    from cudaprefill.outputs import TokenLogprobs


@dataclass(frozen=True)
class PromptRows:
    """Rows of one step's batch that give log-probabilities of a prompt."""

    request: Request
    first_row: int  # of the batch
    position: int  # in the text of the prompt, of the token that this row gives the log-probability of
    length: int


def prompt_rows(schedule: Schedule) -> list[PromptRows]:
    """Those of the requests that ask for prompt_logprobs."""
    found = []
    row = len(schedule.decodes.requests)
    for chunk in schedule.chunks:
        request = chunk.request
        num_virtual = request.virtual_tokens.num_tokens  # the text is counted from behind them
        first = max(chunk.start, num_virtual)
        length = min(chunk.start + chunk.length, request.prompt_length - 1) - first
        if request.sampling_params.prompt_logprobs is not None and length > 0:
            found.append(PromptRows(request, row + first - chunk.start, first - num_virtual + 1, length))
        row += chunk.length
    return found


def prompt_logprobs(runner: ModelRunner, hidden: Tensor, rows: PromptRows, vocab_size: int) -> list[TokenLogprobs]:
    """Of `rows.length` tokens of the prompt, from `rows.position` on. hidden: [T, H], of the whole batch."""
    prompt, count = rows.request.prompt_token_ids, rows.request.sampling_params.prompt_logprobs or 0
    size = rows_per_pass(vocab_size, hidden.device)
    found: list[TokenLogprobs] = []
    for start in range(0, rows.length, size):
        stop = min(start + size, rows.length)
        logits = runner.logits(hidden[rows.first_row + start : rows.first_row + stop])
        targets = prompt[rows.position + start : rows.position + stop]
        found += token_logprobs(logits, targets, [count] * len(targets))
    return found
