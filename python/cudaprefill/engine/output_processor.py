"""From sampled tokens to what a client gets: text, stop strings, log-probabilities, times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cudaprefill.engine.output_delta import OutputDelta
from cudaprefill.engine.request import FinishReason, Request
from cudaprefill.engine.sampler import SamplerOutput
from cudaprefill.engine.sampling_state import SamplingState
from cudaprefill.outputs import RequestMetrics, TokenLogprobs
from cudaprefill.text.text_stream import TextStream
from cudaprefill.text.tokenizer import Tokenizer


class Output:
    """One of the n outputs of a request while it is made."""

    __slots__ = (
        "index",
        "metrics",
        "prompt_logprobs",
        "request",
        "request_id",
        "sampling_state",
        "text_stream",
        "token_ids",
    )

    def __init__(
        self, request_id: str, index: int, request: Request, sampling_state: SamplingState, text_stream: TextStream
    ):
        self.request_id = request_id  # of the request as submitted
        self.index = index
        self.request = request  # this output's own
        self.sampling_state = sampling_state
        self.text_stream = text_stream
        self.token_ids = sampling_state.output_token_ids
        self.metrics = RequestMetrics(request.arrival_time)
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None  # of the lead alone, where asked for
        if index == 0 and request.sampling_params.prompt_logprobs is not None:
            self.prompt_logprobs = [None] * len(request.prompt_token_ids)


class OutputProcessor:
    """Keeps the outputs of all requests that the engine has, by the id of each output's own request."""

    def __init__(self, tokenizer: Tokenizer, finish: Callable[[Request, FinishReason, str | None], None]) -> None:
        """`finish` ends a request early: the scheduler's."""
        self._tokenizer = tokenizer
        self._finish = finish
        self._outputs: dict[str, Output] = {}
        self._unfinished: dict[str, list[Output]] = {}  # by the id of the request as submitted
        self._token_texts: dict[int, str] = {}  # of tokens whose log-probability was told

    def make(self, request: Request) -> list[Output]:
        """The n outputs of a request, not yet known here."""
        params, request_id = request.sampling_params, request.request_id
        lead = SamplingState(params, request.prompt_token_ids, [], request.eos_token_ids, grammar=request.grammar)
        return [
            Output(
                request_id, index, member, lead.fork(index, []) if index else lead, TextStream(self._tokenizer, params)
            )
            for index, member in enumerate((request, *request.siblings))
        ]

    def add(self, outputs: list[Output]) -> None:
        """All outputs of one request."""
        self._unfinished[outputs[0].request_id] = list(outputs)
        for output in outputs:
            self._outputs[output.request.request_id] = output

    def sampling_states(self, requests: Sequence[Request]) -> list[SamplingState]:
        return [self._outputs[request.request_id].sampling_state for request in requests]

    def record_scheduled(self, request: Request, time: float) -> None:
        """A chunk of the request's prefill starts at `time`. The first one is the start of its siblings as well."""
        output = self._outputs[request.request_id]
        if output.metrics.first_scheduled_time is None:
            for member in self._unfinished[output.request_id]:
                member.metrics.first_scheduled_time = time
                num_virtual = request.virtual_tokens.num_tokens
                member.metrics.num_cached_tokens = max(0, request.num_hit_tokens - num_virtual)
                member.metrics.num_virtual_tokens = num_virtual
                member.metrics.num_cached_virtual_tokens = min(request.num_hit_tokens, num_virtual)

    def add_prompt_logprobs(self, request: Request, position: int, logprobs: Sequence[TokenLogprobs]) -> None:
        """Of the tokens of the prompt from `position` on; they come with the first delta."""
        kept = self._outputs[request.request_id].prompt_logprobs
        if kept is not None:
            self._add_token_texts(logprobs)
            kept[position : position + len(logprobs)] = logprobs

    def process(
        self, requests: Sequence[Request], samples: SamplerOutput, errors: Mapping[int, Exception], time: float
    ) -> list[OutputDelta]:
        """The delta of each of the outputs that were sampled, known at `time`.

        errors: why those at these places have no token; the scheduler has ended them.
        """
        deltas: list[OutputDelta] = []
        error: Exception | None = None
        for place, request in enumerate(requests):
            # A request that fails takes along the siblings that depend on it; they follow it.
            error = errors.get(place, error if request.finish_reason == "error" else None)
            if error is None:
                try:
                    delta = self._process_token(request, samples.token_ids[place], samples.logprobs[place], time)
                except Exception as of_text:
                    delta = self._fail(request, of_text, time)
            else:
                delta = self._fail(request, error, time)
            deltas.append(delta)
        return deltas

    def _process_token(
        self, request: Request, token_id: int, logprobs: TokenLogprobs | None, time: float
    ) -> OutputDelta:
        """A token that the scheduler has committed, and has finished the request with where it was the last one."""
        output = self._outputs[request.request_id]
        stream, metrics = output.text_stream, output.metrics
        first = not output.token_ids
        output.token_ids.append(token_id)
        metrics.record_token(time)
        if not request.finished and output.sampling_state.at_end_of_grammar:
            self._finish(request, "stop", None)
        ends_by_token = request.finish_reason == "stop"
        text = ""
        if not ends_by_token or request.sampling_params.include_stop_str_in_output:
            text = stream.push(token_id)
        if request.finished:
            text += stream.finish()
        if stream.stop_string is not None and not ends_by_token:
            self._finish(request, "stop", stream.stop_string)
        delta = OutputDelta(output.request_id, output.index, [token_id], text)
        if logprobs is not None:
            self._add_token_texts([logprobs])
            delta.logprobs = [logprobs]
        if first:
            delta.metrics, delta.prompt_logprobs = metrics, output.prompt_logprobs
        if request.finished:
            self._end(output, delta, time)
        return delta

    def _add_token_texts(self, logprobs: Sequence[TokenLogprobs]) -> None:
        texts = self._token_texts
        for of_token in logprobs:
            for token_id, logprob in of_token.items():
                if token_id not in texts:
                    texts[token_id] = self._tokenizer.token_text(token_id)
                logprob.decoded_token = texts[token_id]

    def _fail(self, request: Request, error: Exception, time: float) -> OutputDelta:
        """Ends one output for a fault of its own."""
        output = self._outputs[request.request_id]
        self._finish(request, "error", None)
        delta = OutputDelta(output.request_id, output.index, error=error)
        self._end(output, delta, time)
        return delta

    def fail(self, request_id: str, error: Exception, time: float) -> list[OutputDelta]:
        """Ends what is left of a request for a fault of its own."""
        return [self._fail(output.request, error, time) for output in list(self._unfinished.get(request_id, ()))]

    def abort(self, request_id: str, time: float) -> list[OutputDelta]:
        """Ends what is left of a request; text that was held comes with the last deltas."""
        deltas = []
        for output in list(self._unfinished.get(request_id, ())):
            try:
                text = output.text_stream.finish()
            except Exception as error:
                deltas.append(self._fail(output.request, error, time))
                continue
            self._finish(output.request, "abort", None)
            delta = OutputDelta(request_id, output.index, text=text)
            self._end(output, delta, time)
            deltas.append(delta)
        return deltas

    def abort_all(self, time: float) -> list[OutputDelta]:
        return [delta for request_id in list(self._unfinished) for delta in self.abort(request_id, time)]

    def _end(self, output: Output, delta: OutputDelta, time: float) -> None:
        output.metrics.finished_time = time
        delta.metrics = output.metrics
        delta.finish_reason, delta.stop_reason = output.request.finish_reason, output.request.stop_reason
        del self._outputs[output.request.request_id]
        unfinished = self._unfinished[output.request_id]
        unfinished.remove(output)
        if not unfinished:
            del self._unfinished[output.request_id]
            delta.request_finished = True
