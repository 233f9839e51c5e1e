"""Commands and teams of ranks in processes that tests may kill. `fork_server.py` starts them."""

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
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import fork_server
import torch
from torch import nn

from pogm._system.errors import PogmError
from pogm.benchmark.executors import worker
from pogm.benchmark.results.record_file import Record, read_records
from pogm.cli import main
from pogm.core.batch import Batch
from pogm.distributed.world import Launch, connect
from pogm.modifiers.base import Modifier

CONTEXT = _context = multiprocessing.get_context("forkserver")

SHORT = ("--test-domain", "75", "--evaluate-every", "10", "--checkpoint-seconds", "0", "--device", "cpu")


@dataclass(frozen=True)
class Finished:
    """Exit code of a command (negative for a signal) and its output."""

    code: int
    out: str
    err: str


@dataclass
class Started:
    """Running command."""

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


def start(*words: object, fault: str = "", output: str = "", **variables: str) -> Started:
    """Start ``pogm <words>`` with these environment variables; write its output to another file if one is given."""
    said = Path(tempfile.mkdtemp(prefix="pogm-test-"))
    variables["POGM_FAULT"] = fault
    variables["POGM_CACHE"] = os.environ["POGM_CACHE"]  # the fork server may have that of another process
    args = ([str(word) for word in words], variables, said, output, fork_server.start())
    process = _context.Process(target=_command, args=args)
    process.start()
    return Started(process, said)


def pogm(*words: object, fault: str = "") -> Finished:
    """Run ``pogm <words>`` until it ends."""
    return start(*words, fault=fault).wait()


def start_together(size: int, *words: object, faults: Mapping[int, str] | None = None) -> list[Started]:
    """Start ``torchrun --nproc-per-node <size> -m pogm <words>``, without torchrun, with faults by rank."""
    port = free_port()
    faults = faults or {}
    return [start(*words, fault=faults.get(r, ""), **torchrun_variables(r, size, port)) for r in range(size)]


def together(size: int, *words: object, faults: Mapping[int, str] | None = None) -> list[Finished]:
    """Do the same, and wait until all processes end."""
    return [started.wait() for started in start_together(size, *words, faults=faults)]


def _command(words: list[str], variables: dict[str, str], said: Path, output: str, server: str) -> None:
    _redirect(said, output)
    os.environ.update(variables)
    # Workers of the command come from the fork server of the tests. A server of the command would import torch again,
    # which takes 5 s.
    fork_server.share(server)
    worker._serve = partial(_worker, said, output)
    sys.exit(main(words))


def _worker(said: Path, output: str, *args: Any) -> None:
    """Run a worker with the output files of its command."""
    _redirect(said, output)
    worker._serve(*args)


def _redirect(said: Path, output: str) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(said / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        if output:
            os.dup2(os.open(output, os.O_WRONLY), number)


class Team:
    """Connected processes that run functions together."""

    def __init__(self, size: int, timeout: float = 60.0):
        self.port = free_port()
        self.pipes, self.processes = [], []
        for rank in range(size):
            parent_end, child_end = _context.Pipe()
            process = _context.Process(target=_member, args=(child_end, rank, size, self.port, timeout), daemon=True)
            process.start()
            child_end.close()
            self.pipes.append(parent_end)
            self.processes.append(process)

    def do(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Call ``function(world, *args)`` in every process and return the results."""
        for pipe in self.pipes:
            pipe.send((function, args))
        return self.results()

    def results(self) -> list[Any]:
        """Return the result or error of each process; None for a process that was killed."""
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
        """End all processes."""
        for pipe in self.pipes:
            with suppress(OSError):
                pipe.send(None)
        for process in self.processes:
            process.join(20)
            if process.is_alive():
                process.kill()


def _member(pipe: Any, rank: int, size: int, port: int, timeout: float) -> None:
    torch.set_num_threads(1)
    os.environ.update(torchrun_variables(rank, size, port))
    launch = Launch.from_environment(timeout)
    assert launch is not None
    with connect(launch, torch.device("cpu")) as world:
        while (request := pipe.recv()) is not None:
            function, args = request
            try:
                pipe.send(function(world, *args))
            except PogmError as error:
                pipe.send(error)
            except Exception:
                pipe.send(AssertionError(traceback.format_exc()))


def torchrun_variables(rank: int, size: int, port: int) -> dict[str, str]:
    """Return the environment variables that torchrun sets for a process."""
    words = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port, "MASTER_ADDR": "localhost"}
    return {name: str(value) for name, value in words.items()}


def free_port() -> int:
    """Return a port that is not in use."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port: int = listener.getsockname()[1]
        return port


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited for {seconds} s"
        time.sleep(0.01)


@contextmanager
def running(folder: Path) -> Iterator[Started]:
    """Start a very long run, wait for its first checkpoint, and kill it at the end of the block."""
    words = ("run", "--dataset", "RotatedDigits", "--algorithm", "ERM", *SHORT, "--steps", 10**8)
    command = start(*words, "--evaluate-every", 1000, "--out", folder)
    try:
        until(lambda: any(folder.glob("checkpoints/*.json")))
        yield command
    finally:
        if command.process._closed is False and command.process.is_alive():  # type: ignore[attr-defined]
            command.process.kill()


def records(folder: Path) -> list[Record]:
    """Return the records without times. Check that every line is strict JSON and that every step occurs once."""

    def refuse(literal: str) -> None:
        raise AssertionError(f"{literal} is not JSON")

    lines = (folder / "records.jsonl").read_text().splitlines()
    parsed: list[dict[str, Any]] = [json.loads(line, parse_constant=refuse) for line in lines]
    assert len(parsed) == len(read_records(folder / "records.jsonl"))
    for record in parsed:
        del record["seconds_per_step"]
    return parsed


def weights(folder: Path) -> bytes:
    """Return the file of tensors of the last checkpoint."""
    return max(folder.glob("checkpoints/*.safetensors")).read_bytes()


def model_weights(folder: Path) -> bytes:
    """Return the weights of the selected model. A finished run of a sweep has no checkpoint."""
    (path,) = folder.glob("model/*.safetensors")
    return path.read_bytes()


class Deadly(Modifier):
    """Modifier that kills the process before anything is written."""

    def network(self, network: nn.Module) -> nn.Module:
        os.kill(os.getpid(), signal.SIGKILL)
        return network


class Poison(Modifier):
    """Modifier that sets the pixels of the second training domain to NaN."""

    def batch(self, batch: Batch, key: Any, num_classes: int) -> Batch:
        x = batch.x.clone()
        x[1] = float("nan")
        return batch._replace(x=x)
