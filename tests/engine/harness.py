"""An engine on the fake model: everything real but the arithmetic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from cudaprefill.adapters import AdapterRegistry
from cudaprefill.engine.batch import Batch
from cudaprefill.engine.engine import Engine
from cudaprefill.engine.input_processor import InputProcessor
from cudaprefill.engine.output_delta import OutputDelta
from cudaprefill.engine.request import Request
from cudaprefill.engine.scheduler import Scheduler
from cudaprefill.engine.scheduler_config import SchedulerConfig
from cudaprefill.sampling_params import SamplingParams
from cudaprefill.text.tokenizer import Tokenizer
from cudaprefill.text.tokenizer_files import TokenizerFiles
from tests.fake_model import FakeModel, continuation

VOCAB_SIZE = 50
EOS = 0
MAX_MODEL_LEN = 512
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.content }}{% endfor %}"
    "{% if enable_thinking is defined and enable_thinking is false %}Z{% endif %}"
)


def letters() -> Tokenizer:
    """Token i is the i-th character of a fixed alphabet: text shows tokens, one a character."""
    vocab = {chr(ord("A") + token_id): token_id for token_id in range(VOCAB_SIZE)}
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.decoder = decoders.Fuse()
    return Tokenizer(TokenizerFiles(backend.to_str(), {"eos_token": "A"}, CHAT_TEMPLATE))


def text_of(token_ids: Iterable[int]) -> str:
    return "".join(chr(ord("A") + token_id) for token_id in token_ids)


class FakeRunner:
    """Runs the fake model; rows of requests whose last token is in `nan_after` give NaN logits."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.model = FakeModel(num_blocks, block_size, VOCAB_SIZE)
        self.nan_contexts: set[int] = set()  # context lengths that give NaN
        self.fails: Exception | None = None
        self.steps = 0

    def run(self, batch: Batch) -> torch.Tensor:
        if self.fails is not None:
            raise self.fails
        self.steps += 1
        hidden = self.model.forward(batch)
        logits = torch.from_numpy(self.model.logits(hidden[batch.logits_rows.numpy()]))
        for place, row in enumerate(batch.logits_rows.tolist()):
            if int(batch.position_ids[row]) + 1 in self.nan_contexts:
                logits[place] = torch.nan
        return logits

    def hidden(self, batch: Batch) -> torch.Tensor:
        return torch.from_numpy(self.model.forward(batch).astype(np.int64))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self.model.logits(hidden.numpy().astype(np.uint32)))


def make_engine(
    *,
    num_blocks: int = 64,
    block_size: int = 16,
    budget: int = 64,
    clock: Callable[[], float] = time.monotonic,
    **settings: Any,
) -> Engine:
    config = SchedulerConfig(
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=budget,
        max_num_seqs=settings.pop("max_num_seqs", 16),
        **settings,
    )
    runner = FakeRunner(num_blocks, block_size)
    return Engine(Scheduler(config, clock=clock), runner, letters(), torch.device("cpu"), clock=clock)  # type: ignore[arg-type]


def make_request(request_id: str, prompt: Sequence[int], params: SamplingParams = GREEDY, **options: Any) -> Request:
    return make_input_processor().process_prompt(request_id, list(prompt), params, **options)[0]


def make_input_processor(adapters: AdapterRegistry | None = None) -> InputProcessor:
    """Of an engine with a huge pool: what a smaller one cannot hold is left for its scheduler to refuse."""
    limits = SchedulerConfig(num_blocks=10**6, max_model_len=MAX_MODEL_LEN, max_num_batched_tokens=64, max_num_seqs=16)
    return InputProcessor(letters(), (EOS,), VOCAB_SIZE, limits, adapters or AdapterRegistry())


def expected(prompt: Sequence[int], params: SamplingParams = GREEDY) -> list[int]:
    """The tokens of a sequential run without cache."""
    ends = () if params.ignore_eos else (EOS,)
    return continuation(
        prompt, vocab_size=VOCAB_SIZE, max_length=MAX_MODEL_LEN, max_tokens=params.max_tokens, ends=ends
    )[0]


def run_to_end(engine: Engine) -> list[OutputDelta]:
    deltas: list[OutputDelta] = []
    while engine.has_work():
        deltas += engine.step()
        engine.check()
    return deltas


def tokens_of(deltas: Iterable[OutputDelta], request_id: str, index: int = 0) -> list[int]:
    return [token for d in deltas if (d.request_id, d.index) == (request_id, index) for token in d.token_ids]


def text_sent(deltas: Iterable[OutputDelta], request_id: str, index: int = 0) -> str:
    return "".join(delta.text for delta in deltas if (delta.request_id, delta.index) == (request_id, index))


def pool_is_idle(engine: Engine) -> bool:
    """Every block is free or cached, and the books agree."""
    engine.check()
    return engine.scheduler.pool.num_used == 0
