"""The command line in processes of its own, that tests may kill: forked from one that has imported all, in 0.1 s."""

import json
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pogm._system.errors import PogmError
from pogm.benchmark.results.records import Record, read_records
from pogm.cli import main
from pogm.core.batch import Batch
from pogm.distributed.world import Launch, joined
from pogm.modifiers.base import Modifier

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "pogm.cli.execution",
        "pogm.cli.results",
        "pogm.cli.planning",
        "pogm.experiments.output",
        "pogm.data.datasets.rotated_digits",
        "sklearn.datasets",
        "torch._dynamo",
    ]
)

SHORT = ("--test-domain", "75", "--evaluate-every", "10", "--checkpoint-seconds", "0", "--device", "cpu")


@dataclass(frozen=True)
class Finished:
    """How a command ended: its exit code (negative: the signal that killed it) and what it said."""

    code: int
    out: str
    err: str


@dataclass
class Started:
    """A command that is running."""

    process: BaseProcess
    said: Path

    def wait(self) -> Finished:
        self.process.join(60)
        code = self.process.exitcode
        assert code is not None, "still running after a minute"
        self.process.close()
        finished = Finished(code, (self.said / "out").read_text(), (self.said / "err").read_text())
        shutil.rmtree(self.said)
        return finished


def start(*words: object, fault: str = "", **variables: str) -> Started:
    """Start ``pogm <words>``, with these variables in its environment."""
    said = Path(tempfile.mkdtemp(prefix="pogm-test-"))
    variables["POGM_FAULT"] = fault
    process = _context.Process(target=_command, args=([str(word) for word in words], variables, said))
    process.start()
    return Started(process, said)


def pogm(*words: object, fault: str = "") -> Finished:
    """Run ``pogm <words>`` to its end, whatever that is."""
    return start(*words, fault=fault).wait()


def start_together(world: int, *words: object, faults: Mapping[int, str] | None = None) -> list[Started]:
    """Start ``torchrun --nproc-per-node <world> -m pogm <words>``, without torchrun; some may have faults."""
    port = free_port()
    faults = faults or {}
    return [start(*words, fault=faults.get(r, ""), **surroundings(r, world, port)) for r in range(world)]


def together(world: int, *words: object, faults: Mapping[int, str] | None = None) -> list[Finished]:
    """Run that to the end of each."""
    return [started.wait() for started in start_together(world, *words, faults=faults)]


def _command(words: list[str], variables: dict[str, str], said: Path) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(said / name, os.O_WRONLY | os.O_CREAT), number)
    os.environ.update(variables)
    sys.exit(main(words))


class Team:
    """Processes that have joined, and do together what they are told: the same function with other arguments."""

    def __init__(self, world: int, timeout: float = 60.0):
        self.port = free_port()
        self.pipes, self.processes = [], []
        for rank in range(world):
            here, there = _context.Pipe()
            process = _context.Process(target=_member, args=(there, rank, world, self.port, timeout), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def do(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What ``function(ranks, *args)`` gives each of them."""
        for pipe in self.pipes:
            pipe.send((function, args))
        return self.results()

    def results(self) -> list[Any]:
        """What each of them answers; None for one that was killed."""
        found = []
        for pipe in self.pipes:
            assert pipe.poll(60), "no answer for a minute"
            try:
                found.append(pipe.recv())
            except (EOFError, ConnectionResetError):
                found.append(None)
        for answer in found:
            if isinstance(answer, AssertionError):
                raise answer
        return found

    def end(self) -> None:
        """Send them home."""
        for pipe in self.pipes:
            with suppress(OSError):
                pipe.send(None)
        for process in self.processes:
            process.join(20)
            if process.is_alive():
                process.kill()


def _member(pipe: Any, rank: int, world: int, port: int, timeout: float) -> None:
    torch.set_num_threads(1)
    os.environ.update(surroundings(rank, world, port))
    launch = Launch.found(timeout)
    assert launch is not None
    with joined(launch, torch.device("cpu")) as ranks:
        while (told := pipe.recv()) is not None:
            function, args = told
            try:
                pipe.send(function(ranks, *args))
            except PogmError as error:
                pipe.send(error)
            except Exception:
                pipe.send(AssertionError(traceback.format_exc()))


def surroundings(rank: int, world: int, port: int) -> dict[str, str]:
    """What torchrun would tell a process."""
    words = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port, "MASTER_ADDR": "localhost"}
    return {name: str(value) for name, value in words.items()}


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as place:
        place.bind(("localhost", 0))
        port: int = place.getsockname()[1]
        return port


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited for {seconds} s"
        time.sleep(0.01)


@contextmanager
def running(folder: Path) -> Iterator[Started]:
    """A run that would take forever, once it has a checkpoint; killed at the end."""
    words = ("run", "--dataset", "RotatedDigits", "--algorithm", "ERM", *SHORT, "--steps", 10**8)
    command = start(*words, "--evaluate-every", 1000, "--out", folder)
    try:
        until(lambda: any(folder.glob("checkpoints/*.json")))
        yield command
    finally:
        if command.process._closed is False and command.process.is_alive():  # type: ignore[attr-defined]
            command.process.kill()


def records(folder: Path) -> list[Record]:
    """What was recorded, without what depends on the clock; every line is strict JSON and every step comes once."""

    def refuse(literal: str) -> None:
        raise AssertionError(f"{literal} is not JSON")

    lines = (folder / "records.jsonl").read_text().splitlines()
    parsed: list[dict[str, Any]] = [json.loads(line, parse_constant=refuse) for line in lines]
    assert len(parsed) == len(read_records(folder / "records.jsonl"))
    for record in parsed:
        del record["seconds_per_step"]
    return parsed


def weights(folder: Path) -> bytes:
    """The tensors of the last checkpoint, as they lie on disk."""
    return max(folder.glob("checkpoints/*.safetensors")).read_bytes()


class Deadly(Modifier):
    """Kills the process that trains with it, before anything is written."""

    def network(self, network: nn.Module) -> nn.Module:
        os.kill(os.getpid(), signal.SIGKILL)
        return network


class Poison(Modifier):
    """Makes the pixels of the second training domain NaN."""

    def batch(self, batch: Batch, key: Any, num_classes: int) -> Batch:
        x = batch.x.clone()
        x[1] = float("nan")
        return batch._replace(x=x)
