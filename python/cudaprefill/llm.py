"""The engine for a Python program that waits for its answers."""

from __future__ import annotations

import contextlib
import copy
import itertools
import numbers
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, cast

from cudaprefill.config import EngineConfig
from cudaprefill.engine.engine_thread import EngineThread
from cudaprefill.engine.factory import EngineInfo, build_engine
from cudaprefill.engine.input_processor import Prompt, as_list
from cudaprefill.engine.request import Request
from cudaprefill.engine.request_stream import RequestStream
from cudaprefill.observe.direct_hub import DirectHub, Listener
from cudaprefill.observe.explain import Account, ExplainLog, explain
from cudaprefill.observe.explain.work import cost_of
from cudaprefill.outputs import RequestOutput
from cudaprefill.protocol.itl_target import ItlTarget
from cudaprefill.protocol.telemetry import EngineSettings
from cudaprefill.sampling_params import SamplingParams
from cudaprefill.text.chat_template import Message

Params = SamplingParams | Sequence[SamplingParams] | None
Progress = Callable[[float, float], None]


class LLM:
    """A model, loaded and ready. Close it, or use it in a `with`; may be used from several threads.

    with LLM() as llm:
        for output in llm.generate(["The capital of France is"], SamplingParams(max_tokens=8)):
            print(output.outputs[0].text)

    On a CPU the kernels have threads of their own, and torch is left with one (`torch.set_num_threads`): a program that
    computes with torch beside it sets its own number afterwards.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        load_progress: Progress | None = None,
        keep_requests: bool = False,
        **settings: Any,
    ) -> None:
        """`model`: a Hugging Face folder or a GGUF file; None takes the packaged one. `settings`: see EngineConfig.

        `load_progress` gets bytes of weights loaded and in all. `keep_requests`: the last ones, for `explain`.
        Raises ValueError or OSError saying which setting, file or tensor is wrong.
        """
        parts = build_engine(EngineConfig(model=model, **settings), load_progress)
        self.info: EngineInfo = parts.info
        self.tokenizer = parts.tokenizer
        self._input_processor = parts.input_processor
        self._adapters = parts.input_processor.adapters
        self._trace = parts.trace
        self._log: ExplainLog | None = None
        listeners: list[Listener] = [] if self._trace is None else [self._trace.record]
        if parts.spans is not None:
            listeners.append(parts.spans.on_event)
        if keep_requests:
            info = parts.info
            self._log = ExplainLog(block_size=info.block_size, prefix_caching=info.enable_prefix_caching)
            listeners.append(self._log.on_event)
            parts.engine.scheduler.record_prefixes(True)
        if listeners:
            parts.engine.listen(DirectHub(*listeners))
        self._engine = EngineThread(parts.engine)
        self._ids = itertools.count()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        adapter: str | None = None,
        progress: Progress | None = None,
    ) -> list[RequestOutput]:
        """Continues each prompt: text, token ids, or a dict with `prompt` or `prompt_token_ids` and maybe `cache_salt`.

        One SamplingParams for all or one each. `adapter`: the name of one that is loaded, for all of them.
        `progress` gets requests done and in all.
        Raises ValueError naming the prompt that is wrong, before any is run, UnknownAdapterError, and QueueFullError if
        there are more prompts than max_num_queued_reqs allows; the others are aborted then.
        """
        self._require(adapter)
        requests = []
        for number, (prompt, params) in enumerate(_paired(_listed(prompts), sampling_params, "prompts")):
            with _naming(f"prompt {number}"):
                requests.append(self._input_processor.process_prompt(self._new_id(), prompt, params, adapter=adapter))
        return self._run(requests, progress)

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        *,
        adapter: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation, or each of several, through the model's chat template. Otherwise as `generate`.

        chat_template_kwargs: variables of the template, such as enable_thinking of Qwen3.
        """
        if not isinstance(conversations, (list, tuple)):
            raise ValueError(f"conversations must be a list of messages or of such lists, got {_kind(conversations)}")
        one = bool(conversations) and isinstance(conversations[0], Mapping)
        listed = cast("Sequence[Sequence[Message]]", [conversations] if one else conversations)
        self._require(adapter)
        requests: list[tuple[Request, str | None]] = []
        for number, (messages, params) in enumerate(_paired(listed, sampling_params, "conversations")):
            with _naming(f"conversation {number}"):
                request = self._input_processor.process_chat(
                    self._new_id(), messages, params, adapter=adapter, chat_template_kwargs=chat_template_kwargs
                )
                requests.append((request, None))
        return self._run(requests, progress)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, adapter: str | None = None
    ) -> RequestStream:
        """Continues one prompt; iterate for the deltas as they come. Raises ValueError saying what is wrong."""
        params = SamplingParams() if sampling_params is None else sampling_params
        return self._submit(*self._input_processor.process_prompt(self._new_id(), prompt, params, adapter=adapter))

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        adapter: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> RequestStream:
        """Answers one conversation; iterate for the deltas as they come. Raises ValueError saying what is wrong."""
        params = SamplingParams() if sampling_params is None else sampling_params
        request = self._input_processor.process_chat(
            self._new_id(), messages, params, adapter=adapter, chat_template_kwargs=chat_template_kwargs
        )
        return self._submit(request, None)

    @property
    def adapters(self) -> list[str]:
        """The names of those that are loaded."""
        return self._adapters.names

    def load_adapter(self, name: str, folder: str | os.PathLike[str], *, in_place: bool = False) -> None:
        """Reads an adapter as PEFT saves it. Raises AdapterError saying what is wrong, or that the name is taken.

        in_place: one of the same name gives way, if there is one; its requests end with what they began with.
        """
        self._adapters.load(name, folder, in_place=in_place)

    def unload_adapter(self, name: str) -> None:
        """Refuses new requests for the adapter at once, and returns when the last running one has ended.

        Raises UnknownAdapterError.
        """
        adapter = self._adapters.withdraw(name)
        # In the engine's thread, so that it comes after all requests that were handed over before.
        self._engine.call(lambda engine: adapter.unload()).result().result()

    def reset_prefix_cache(self) -> None:
        """Forgets all cached prefixes."""
        self._engine.call(lambda engine: engine.scheduler.reset_prefix_cache()).result()

    @property
    def settings(self) -> EngineSettings:
        """What `change_settings` changes."""
        return self._engine.settings

    def change_settings(
        self,
        *,
        max_num_batched_tokens: int | None = None,
        long_prefill_token_threshold: int | None = None,
        itl_target_ms: ItlTarget | None = None,
    ) -> EngineSettings:
        """Changes those that are given, from the next step on, and returns all. An `itl_target_ms` of 0 takes it away.

        Raises ValueError naming the setting and both numbers; nothing is changed then.
        """
        return self._engine.call(
            lambda engine: engine.change_settings(
                max_num_batched_tokens=max_num_batched_tokens,
                long_prefill_token_threshold=long_prefill_token_threshold,
                itl_target_ms=itl_target_ms,
            )
        ).result()

    def explain(self, request_id: str, *, itl_limit: float | None = None) -> Account:
        """Why the first token of a request took so long, and which later one came more than `itl_limit` seconds late.

        request_id: of its RequestOutput. Raises KeyError if it is not among the last that ran, and ValueError if this
        LLM was not made with keep_requests=True.
        """
        if self._log is None:
            raise ValueError("nothing was kept of the requests: make the LLM with keep_requests=True")
        cost = self._engine.call(lambda engine: copy.deepcopy(engine.scheduler.cost)).result()
        return explain(
            self._log.history(),
            request_id,
            itl_limit=itl_limit,
            cost=cost_of(cost),
            itl_target_ms=self.settings.itl_target_ms,
            now=time.monotonic(),
        )

    def close(self) -> None:
        """Ends all requests and the engine's thread. Harmless when repeated."""
        self._engine.close()
        if self._trace is not None:
            self._trace.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require(self, adapter: str | None) -> None:
        """Raises UnknownAdapterError: it is about no single prompt."""
        if adapter is not None:
            self._adapters.get(adapter)

    def _new_id(self) -> str:
        return f"request-{next(self._ids)}"

    def _submit(self, request: Request, text: str | None) -> RequestStream:
        stream = RequestStream(request, text, lambda: self._engine.abort(request.request_id))
        self._engine.submit(request, stream.deliver)
        return stream

    def _run(self, requests: list[tuple[Request, str | None]], progress: Progress | None) -> list[RequestOutput]:
        streams: list[RequestStream] = []
        try:
            for request, text in requests:
                streams.append(self._submit(request, text))
            outputs = []
            for stream in streams:
                outputs.append(stream.wait())
                if progress is not None:
                    progress(len(outputs), len(streams))
            return outputs
        finally:
            for stream in streams:
                stream.abort()


def _listed(prompts: object) -> Sequence[Any]:
    """Several prompts as they are; one, given as text, dict or token ids, as a list of its own."""
    prompts = as_list(prompts)
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, (bytes, bytearray)):
        raise ValueError(f"prompts must be text, token ids, a dict, or a list of these, got {_kind(prompts)}")
    return [prompts] if prompts and isinstance(prompts[0], numbers.Integral) else prompts


def _kind(value: object) -> str:
    return type(value).__name__


def _paired(items: Sequence[Any], params: Params, what: str) -> Iterator[tuple[Any, SamplingParams]]:
    if not items:
        raise ValueError(f"{what} is empty")
    if params is None or isinstance(params, SamplingParams):
        return zip(items, itertools.repeat(params or SamplingParams()))
    if not isinstance(params, (list, tuple)):
        raise ValueError(f"sampling_params must be SamplingParams or a list of them, got {_kind(params)}")
    if len(params) != len(items):
        raise ValueError(f"got {len(params)} sampling_params for {len(items)} {what}")
    return zip(items, params, strict=True)


@contextlib.contextmanager
def _naming(what: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error
