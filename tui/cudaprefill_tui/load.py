"""A load generator: ordinary requests in patterns that show what chunked prefill and prefix caching do.

It knows the engine as one function that sends a prompt and tells of each piece of the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

ScenarioName = Literal["chat", "document", "prefix", "bursts"]

WORDS = (
    *("river", "stone", "window", "garden", "letter", "engine", "silver", "market", "winter", "island", "mirror"),
    *("travel", "signal", "forest", "copper", "morning", "paper", "bridge", "shadow", "number", "circle", "harvest"),
    *("lantern", "harbour", "meadow", "question", "answer", "pattern", "thunder", "kitchen", "railway", "teacher"),
)
SHORT_PROMPT_WORDS = 24
BACK_OFF_SECONDS = 1.0  # after a request that failed, so that a server in trouble is not hammered
MAX_SAMPLES = 512


@dataclass(frozen=True)
class Scenario:
    name: ScenarioName
    title: str
    shows: str  # what to look at, and what to try


SCENARIOS = (
    Scenario(
        "chat",
        "Chat users",
        "Users who ask, read and ask again. Steps: decodes stand first in every step. Raise the users until some wait.",
    ),
    Scenario(
        "document",
        "A long document among chats",
        "Every few seconds one long prompt arrives. ITL jumps when its chunks are large; lower the chunk cap or the "
        "token budget (Engine) and it stays smooth, while the document's own TTFT grows.",
    ),
    Scenario(
        "prefix",
        "The same prefix many times",
        "Questions about one document. The first pays for the prefill, the others find its blocks: TTFT falls, shared "
        "blocks show in the map. Reset the prefix cache (Engine) to see the price again.",
    ),
    Scenario(
        "bursts",
        "Bursts",
        "All users ask at once, then nobody does. The queue and TTFT p99 grow while ITL hardly moves.",
    ),
)


@dataclass(frozen=True)
class LoadPlan:
    """What to send. Words are about 1.5 tokens each."""

    scenario: ScenarioName = "chat"
    users: int = 4
    document_words: int = 1000
    max_tokens: int = 64
    pause: float = 2.0  # seconds, on average: of a reader; between documents and between bursts it is five times that
    seed: int = 0

    def checked(self) -> LoadPlan:
        """Raises ValueError naming the field."""
        limits = {"users": (1, 512), "document_words": (1, 100_000), "max_tokens": (1, 100_000), "pause": (0.0, 600.0)}
        for name, (least, most) in limits.items():
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must lie in {least} .. {most}, got {getattr(self, name)}")
        return self


@dataclass(frozen=True)
class LoadRequest:
    prompt: str
    max_tokens: int


@dataclass
class LoadFigures:
    """What the generator itself saw, at the client's end of the line; times in seconds."""

    running: int = 0
    sent: int = 0
    finished: int = 0
    failed: int = 0
    last_error: str = ""
    ttfts: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))


class Pieces(Protocol):
    """An answer under way: an item for each piece of it, and an end at any time."""

    def __aiter__(self) -> AsyncIterator[object]: ...

    async def aclose(self) -> None: ...


Send = Callable[[LoadRequest], Pieces]


class LoadGenerator:
    """Plays one plan at a time against `send`. `start` and `stop` belong to one event loop."""

    def __init__(self, send: Send, clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._users: list[asyncio.Task[None]] = []
        self.plan: LoadPlan | None = None
        self.figures = LoadFigures()

    @property
    def is_running(self) -> bool:
        return bool(self._users)

    def start(self, plan: LoadPlan) -> None:
        """Raises ValueError for a plan that cannot be played, or while another one is."""
        if self.is_running:
            raise ValueError("a load is running: stop it first")
        self.plan, self.figures = plan.checked(), LoadFigures()
        self._users = [asyncio.create_task(user) for user in self._people(plan)]

    async def stop(self) -> None:
        """Ends every request and waits until it is ended."""
        users, self._users = self._users, []
        for user in users:
            user.cancel()
        await asyncio.gather(*users, return_exceptions=True)

    def _people(self, plan: LoadPlan) -> list[Coroutine[None, None, None]]:
        if plan.scenario == "bursts":
            return [self._bursts(plan)]
        if plan.scenario == "prefix":
            return [self._reader(plan, user) for user in range(plan.users)]
        chatters = [self._chatter(plan, user) for user in range(plan.users)]
        return [*chatters, self._documents(plan)] if plan.scenario == "document" else chatters

    async def _chatter(self, plan: LoadPlan, user: int) -> None:
        dice = _dice(plan, f"chatter {user}")
        await asyncio.sleep(dice.uniform(0, plan.pause))  # nobody starts in step
        while True:
            await self._ask(LoadRequest(f"User {user} asks: {prose(dice, SHORT_PROMPT_WORDS)}?", plan.max_tokens))
            await asyncio.sleep(dice.expovariate(1 / plan.pause) if plan.pause else 0)

    async def _reader(self, plan: LoadPlan, user: int) -> None:
        document = shared_document(plan)
        dice = _dice(plan, f"reader {user}")
        await asyncio.sleep(user * plan.pause)  # the first one pays for the prefill, alone
        while True:
            await self._ask(LoadRequest(f"{document}\n\nWhat about {prose(dice, 6)}?", plan.max_tokens))
            await asyncio.sleep(plan.pause)

    async def _documents(self, plan: LoadPlan) -> None:
        dice = _dice(plan, "documents")
        while True:
            await asyncio.sleep(5 * plan.pause)
            text = prose(dice, plan.document_words)
            await self._ask(LoadRequest(f"Summarise this.\n\n{text}", plan.max_tokens))

    async def _bursts(self, plan: LoadPlan) -> None:
        dice = _dice(plan, "bursts")
        while True:
            prompts = [f"User {user} asks: {prose(dice, SHORT_PROMPT_WORDS)}?" for user in range(plan.users)]
            await asyncio.gather(*(self._ask(LoadRequest(prompt, plan.max_tokens)) for prompt in prompts))
            await asyncio.sleep(5 * plan.pause)

    async def _ask(self, request: LoadRequest) -> None:
        figures = self.figures
        figures.sent += 1
        figures.running += 1
        asked, answered = self._clock(), False
        try:
            async with contextlib.aclosing(self._send(request)) as pieces:
                async for _ in pieces:
                    if not answered:
                        figures.ttfts.append(self._clock() - asked)
                        answered = True
        except Exception as error:  # whatever a server does, the load goes on and says so
            figures.failed += 1
            figures.last_error = str(error) or type(error).__name__
            await asyncio.sleep(BACK_OFF_SECONDS)
        else:
            figures.finished += 1
        finally:
            figures.running -= 1


def preset(name: ScenarioName) -> LoadPlan:
    """A plan that shows the scenario's point on a small machine."""
    plans = {
        "chat": LoadPlan("chat", users=4),
        "document": LoadPlan("document", users=3, document_words=2000, max_tokens=96, pause=1.0),
        "prefix": LoadPlan("prefix", users=3, document_words=800, max_tokens=24),
        "bursts": LoadPlan("bursts", users=12, max_tokens=32, pause=1.0),
    }
    return replace(plans[name])


def prose(dice: random.Random, words: int) -> str:
    return " ".join(dice.choice(WORDS) for _ in range(words))


def shared_document(plan: LoadPlan) -> str:
    return prose(_dice(plan, "shared document"), plan.document_words)


def _dice(plan: LoadPlan, who: str) -> random.Random:
    return random.Random(f"{plan.seed} {who}")
