"""How many tokens a request took, as OpenAI counts them: those of its text.

Virtual tokens are nothing that a client sent or can count, so they have fields of their own, where there are any.
"""

from __future__ import annotations

from collections.abc import Sequence

from cudaprefill.outputs import RequestOutput


def usage(outputs: Sequence[RequestOutput]) -> dict[str, object]:
    """Of the prompts of one HTTP request, so far."""
    prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    completion_tokens = sum(len(each.token_ids) for output in outputs for each in output.outputs)
    metrics = [output.metrics for output in outputs if output.metrics is not None]
    details = {"cached_tokens": sum(each.num_cached_tokens for each in metrics)}
    virtual_tokens = sum(each.num_virtual_tokens for each in metrics)
    if virtual_tokens:
        details["virtual_tokens"] = virtual_tokens
        details["cached_virtual_tokens"] = sum(each.num_cached_virtual_tokens for each in metrics)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": details,
    }
