"""An answer's figures as a line a person can read."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median

from .backend import AnswerFigures
from .conversations import AnswerCost


def describe_answer(figures: AnswerFigures) -> str:
    """TTFT 41 ms (32 of 45 prompt tokens from the prefix cache) · ITL 13.1 ms · 76 tok/s · 9 tokens"""
    ttft = "no token" if figures.ttft is None else f"TTFT {milliseconds(figures.ttft)}"
    parts = [f"{ttft} ({figures.cached_tokens} of {figures.prompt_tokens} prompt tokens from the prefix cache)"]
    if figures.itls:
        parts.append(f"ITL {milliseconds(mean(figures.itls))}")
        parts.append(f"{1 / max(mean(figures.itls), 1e-9):.0f} tok/s")
    parts.append(f"{figures.output_tokens} token{'s' if figures.output_tokens != 1 else ''}")
    if figures.finish_reason != "stop":
        parts.append(
            {"length": "cut at the length limit", "abort": "stopped"}.get(figures.finish_reason, figures.finish_reason)
        )
    return " · ".join(parts)


def describe_session(answers: Sequence[AnswerFigures]) -> str:
    """All answers of a session in a line: medians of TTFT and ITL, share of prompt tokens that were prefix hits."""
    if not answers:
        return "no answers"
    prompt_tokens = sum(answer.prompt_tokens for answer in answers)
    cached_tokens = sum(answer.cached_tokens for answer in answers)
    ttfts = [answer.ttft for answer in answers if answer.ttft is not None]
    itls = [itl for answer in answers for itl in answer.itls]
    output_tokens = sum(answer.output_tokens for answer in answers)
    return (
        f"{len(answers)} answer{'s' if len(answers) != 1 else ''} · {output_tokens} tokens"
        f" · TTFT p50 {milliseconds(median(ttfts)) if ttfts else 'none'}"
        f" · ITL p50 {milliseconds(median(itls)) if itls else 'none'}"
        f" · prefix hit {cached_tokens} of {prompt_tokens} prompt tokens ({cached_tokens / max(prompt_tokens, 1):.0%})"
    )


def milliseconds(seconds: float) -> str:
    """0.0123 -> 12.3 ms, 0.412 -> 412 ms, 3.2 -> 3.20 s"""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"


def describe_cost(cost: AnswerCost) -> str:
    """TTFT 412 ms = queue 31.0 ms + prefill 366 ms (4 chunks, 2048 of 2310 tokens from the prefix cache) + first
    sample 15.0 ms · ITL 11.2 ms · 89 tok/s · 117 tokens
    """
    work = [f"{cost.chunks} chunk{'s' if cost.chunks != 1 else ''}"] if cost.chunks is not None else []
    work.append(f"{cost.cached_tokens} of {cost.prompt_tokens} tokens from the prefix cache")
    details = f"({', '.join(work)})"
    if cost.ttft is None:
        parts = [f"no token {details}"]
    elif cost.queue is None or cost.prefill is None:
        parts = [f"TTFT {milliseconds(cost.ttft)} {details}"]
    else:
        sample = f" + first sample {milliseconds(cost.first_sample)}" if cost.first_sample is not None else ""
        parts = [
            f"TTFT {milliseconds(cost.ttft)} = queue {milliseconds(cost.queue)} + prefill {milliseconds(cost.prefill)} "
            f"{details}{sample}"
        ]
    if cost.mean_itl is not None and cost.tokens_per_second is not None:
        parts += [f"ITL {milliseconds(cost.mean_itl)}", f"{cost.tokens_per_second:.0f} tok/s"]
    parts.append(f"{cost.output_tokens} token{'s' if cost.output_tokens != 1 else ''}")
    return " · ".join(parts)
