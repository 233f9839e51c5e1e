"""The command line in processes of its own, that tests may kill: forked from one that has imported all, in 0.1 s."""

import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torch import nn

from pogm.benchmark.records import Record, read_records
from pogm.cli import main
from pogm.core.batch import Batch
from pogm.modifiers.base import Modifier

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["pogm.cli", "pogm.datasets.rotated_digits", "sklearn.datasets", "torch._dynamo"])

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


def start(*words: object, fault: str = "") -> Started:
    """Start ``pogm <words>``."""
    said = Path(tempfile.mkdtemp(prefix="pogm-test-"))
    process = _context.Process(target=_command, args=([str(word) for word in words], fault, said))
    process.start()
    return Started(process, said)


def pogm(*words: object, fault: str = "") -> Finished:
    """Run ``pogm <words>`` to its end, whatever that is."""
    return start(*words, fault=fault).wait()


def _command(words: list[str], fault: str, said: Path) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(said / name, os.O_WRONLY | os.O_CREAT), number)
    os.environ["POGM_FAULT"] = fault
    sys.exit(main(words))


def until(true: Callable[[], bool]) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "waited for a minute"
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
