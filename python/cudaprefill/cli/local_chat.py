"""The chat's backend on an engine in this process."""

from __future__ import annotations

import argparse
import contextlib
import threading
from collections.abc import Iterator

from cudaprefill.cli.engine_flags import chosen_adapter
from cudaprefill.cli.load import load_llm
from cudaprefill.engine.request_stream import RequestStream
from cudaprefill.llm import LLM
from cudaprefill.sampling_params import SamplingParams
from cudaprefill.text.chat_template import template_engine
from cudaprefill_tui.backend import AnswerFigures, Message


class LocalAnswer:
    """An answer of the engine in this process."""

    def __init__(self, stream: RequestStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._stream).text

    def abort(self) -> None:
        self._stream.abort()

    @property
    def figures(self) -> AnswerFigures:
        request = self._stream.output
        output, metrics = request.outputs[0], request.metrics
        return AnswerFigures(
            prompt_tokens=len(request.prompt_token_ids),
            cached_tokens=metrics.num_cached_tokens if metrics else 0,
            output_tokens=len(output.token_ids),
            ttft=metrics.ttft if metrics else None,
            itls=tuple(metrics.itl) if metrics else (),
            finish_reason=output.finish_reason or "abort",
        )


class LocalBackend:
    """An engine in this process, as the chat wants it."""

    def __init__(self, llm: LLM, params: SamplingParams, adapter: str | None) -> None:
        self._llm = llm
        self._params = params
        self._adapter = adapter
        model = llm.info.model if adapter is None else f"{llm.info.model} with {adapter}"
        self.title = f"{model} on {llm.info.device}/{llm.info.kernels}"

    def ask(self, messages: list[Message]) -> LocalAnswer:
        return LocalAnswer(self._llm.stream_chat(messages, self._params, adapter=self._adapter))


@contextlib.contextmanager
def open_backend(flags: argparse.Namespace) -> Iterator[LocalBackend]:
    params = SamplingParams(
        temperature=flags.temperature, top_p=flags.top_p, seed=flags.seed, max_tokens=flags.max_tokens
    )
    adapter = chosen_adapter(flags)
    threading.Thread(target=template_engine, daemon=True).start()  # beside the weights, for the first message
    with load_llm(flags) as llm:
        yield LocalBackend(llm, params, adapter)
