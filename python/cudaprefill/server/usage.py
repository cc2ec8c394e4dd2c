"""How many tokens a request took, as OpenAI counts them."""

from __future__ import annotations

from collections.abc import Sequence

from cudaprefill.outputs import RequestOutput


def usage(outputs: Sequence[RequestOutput]) -> dict[str, object]:
    """Of the prompts of one HTTP request, so far."""
    prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    completion_tokens = sum(len(each.token_ids) for output in outputs for each in output.outputs)
    cached_tokens = sum(output.metrics.num_cached_tokens for output in outputs if output.metrics is not None)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
