"""The engines that are compared, each a server in a process of its own that can be frozen while another is measured."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

START_PATIENCE = 600.0  # seconds; the first start of an engine that compiles takes a minute or two
STOP_PATIENCE = 30.0
# An engine has settled when it uses less than this share of one core for a second, and is not waited for any longer
# than that.
SETTLED_SHARE, SETTLE_PATIENCE = 0.02, 15.0


@dataclass(frozen=True)
class Engine:
    """How an engine is started. `command` lacks the port, which comes last."""

    name: str
    title: str  # for a reader: what runs, on which weights
    version: str
    command: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)
    concurrent: bool = True  # runs several requests at once
    note: str = ""

    @property
    def shown_command(self) -> str:
        """The command as a reader would type it, without the folders of this machine."""
        words = [f"{name}={value}" for name, value in self.environment.items() if name != "PYTHONPATH"]
        words += ["python", *(Path(word).name if os.sep in word else word for word in self.command[1:])]
        return " ".join(words)


def our_engine(model: Path, version: str, dtype: str | None = None, linear_math: str | None = None) -> Engine:
    """This project's server: with default settings, with weights of one dtype, or with products of another kind."""
    name, what = "cudaprefill", "default settings"
    if dtype is not None:
        name, what = f"{name}-{dtype}", f"{dtype} weights"
    elif linear_math == "float32":
        name, what = f"{name}-float32-math", "float32 math"
    elif linear_math is not None:
        name, what = f"{name}-{linear_math}", f"{linear_math} activations"
    return Engine(
        name=name,
        title=f"cudaprefill, {what}",
        version=version,
        command=[
            *(sys.executable, "-m", "cudaprefill.cli.main", "serve", "--model", str(model), "--exit-with-stdin"),
            *([] if dtype is None else ["--dtype", dtype]),
            *([] if linear_math is None else ["--linear-math", linear_math]),
            "--port",
        ],
        environment={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def vllm(python: str, version: str, folder: Path) -> Engine:
    """vLLM's CPU build with all cores for its workers."""
    cores = sorted(os.sched_getaffinity(0))
    binding = f"{cores[0]}-{cores[-1]}" if cores == [*range(cores[0], cores[-1] + 1)] else ",".join(map(str, cores))
    return Engine(
        name="vllm",
        title="vLLM CPU, float32 weights",
        version=version,
        command=[
            *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--dtype", "float32"),
            *("--max-model-len", "8192", "--host", "127.0.0.1", "--port"),
        ],
        environment={
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "VLLM_CPU_OMP_THREADS_BIND": binding,
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        },
    )


def one_at_a_time(engine: str, title: str, python: str, version: str, model: Path, note: str) -> Engine:
    """An engine that has no server of its own, behind ours for such."""
    script = Path(__file__).with_name("one_at_a_time_server.py")
    threads = str(len(os.sched_getaffinity(0)))
    return Engine(
        name=engine,
        title=title,
        version=version,
        command=[python, str(script), engine, "--model", str(model), "--threads", threads, "--port"],
        concurrent=False,
        note=note,
    )


def installed_version(python: str, *packages: str) -> str | None:
    """Of the first package that this Python has; None without any, or without such a Python."""
    script = "import importlib.metadata as m, sys\nprint(m.version(sys.argv[1]))"
    for package in packages:
        try:
            answer = subprocess.run([python, "-c", script, package], capture_output=True, text=True, check=False)
        except OSError:
            return None
        if answer.returncode == 0:
            return answer.stdout.strip()
    return None


class RunningEngine:
    """A server from its start to its end: `thaw` before it is asked anything, `freeze` while another is measured.

    A frozen process takes no time of any core, so that all engines can be up at once and be measured in turns.
    """

    def __init__(self, engine: Engine, log: Path) -> None:
        """Starts the process. Raises OSError if it cannot be."""
        self.engine = engine
        self.start_seconds = 0.0  # from the process's start to its first answer
        self._log = log
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._started = time.perf_counter()
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [*engine.command, str(port)],
                env={**os.environ, **engine.environment},
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that signals reach its workers too
            )

    def wait_until_ready(self) -> None:
        """Raises RuntimeError with the end of its log if the process ends first or is not ready in ten minutes."""
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/v1/models", timeout=5.0).is_success:
                    self.start_seconds = time.perf_counter() - self._started
                    return
            seconds = time.perf_counter() - self._started
            if self._process.poll() is not None or seconds > START_PATIENCE:
                state = f"status {self._process.returncode}" if self._process.poll() is not None else "still running"
                end = self._log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{self.engine.name} is not ready after {seconds:.0f} s ({state}):\n{end}")
            time.sleep(0.05)

    def settle(self) -> bool:
        """Waits until it has done what it goes on with after its first answers, such as taking memory.

        False if it is still at work after a quarter of a minute, as one is that polls.
        """
        give_up = time.monotonic() + SETTLE_PATIENCE
        while time.monotonic() < give_up:
            before = self.cpu_seconds()
            time.sleep(1.0)
            if self.cpu_seconds() - before < SETTLED_SHARE:
                return True
        return False

    def cpu_seconds(self) -> float:
        """What the process and its workers have used of all cores so far; 0.0 where the system does not tell."""
        ticks = 0
        for folder in self._processes():
            with contextlib.suppress(OSError):  # it has just ended
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])  # in user mode and in the kernel
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """Bytes in use by the process and its workers, shared ones counted once; 0 where the system does not tell."""
        total = 0
        for folder in self._processes():
            with contextlib.suppress(OSError, StopIteration):  # it has just ended
                lines = (folder / "smaps_rollup").read_text().splitlines()
                total += 1024 * int(next(line for line in lines if line.startswith("Pss:")).split()[1])
        return total

    def _processes(self) -> Iterator[Path]:
        """The folders in /proc of the process and its workers."""
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getpgid(int(folder.name)) == self._process.pid:
                    yield folder

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ends the process and its workers, by force after half a minute."""
        self.thaw()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_PATIENCE)
        self._signal(signal.SIGKILL)  # workers that outlived it
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
