"""The processes that train one model: how they find one another, what they say, and when one falls silent."""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from pogm._system.errors import PogmError, UsageError
from pogm.distributed.process_group import ProcessGroup

Result = TypeVar("Result")

PREPARING = timedelta(hours=12)  # that one may take to decode images before all begin; torchrun ends them if it dies
GRACE = 2.0  # seconds for those who noticed a failure to say so
OFTEN = 0.05  # seconds, about, between two questions whether to stop: each takes less than one of a hundred
ROUNDS = 50  # and rounds, at most


class LostRankError(PogmError):
    """A process of the run has died, or does not answer."""


@dataclass(frozen=True)
class Launch:
    """What torchrun has told this process, and how long the others may take to answer."""

    rank: int
    world: int
    local: int = 0  # the rank among those of this machine
    timeout: float = 600.0  # seconds
    spread: str = "auto"  # domains, samples or both over processes

    def __post_init__(self) -> None:
        if not 0 < self.timeout < 10**9:
            raise UsageError(f"Expected --timeout-seconds above 0; found {self.timeout:g}. Leave it out.")

    @classmethod
    def found(cls, timeout: float = 600.0, spread: str = "auto") -> "Launch | None":
        """By torchrun's variables; None where nobody set them."""
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        if not all(name in os.environ for name in names):
            return None
        rank, world, local = (int(os.environ.get(name, 0)) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        return cls(rank, world, local, timeout, spread)


class SingleProcess:
    """A run of a single process, which need not ask anyone."""

    leads = True

    def first(self, function: Callable[[], Result]) -> Result:
        """What the function gives."""
        return function()

    def agreement(self, asked: Callable[[], int]) -> Callable[[], int]:
        """What it was asked."""
        return asked


@dataclass(eq=False)
class World:
    """All processes of a run, as one of them sees it."""

    rank: int
    world: int
    timeout: float
    store: Store
    spread: str = "auto"
    sent: int = 0  # bytes, to others, by the groups below
    lost: bool = False
    groups: dict[tuple[int, ...], ProcessGroup] = field(default_factory=dict)

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    @cached_property
    def everyone(self) -> ProcessGroup:
        """All of them."""
        return ProcessGroup(self, tuple(range(self.world)), None)

    def among(self, parts: Sequence[Sequence[int]]) -> ProcessGroup:
        """The part of all processes that this one is in. All have to ask, with the same parts."""
        for members in map(tuple, parts):
            if members not in self.groups:
                with self.answered():
                    handle = dist.new_group(list(members), timeout=timedelta(seconds=self.timeout))
                self.groups[members] = ProcessGroup(self, members, handle)
        return next(self.groups[tuple(members)] for members in parts if self.rank in members)

    def first(self, function: Callable[[], Result]) -> Result:
        """What a function gives the first process, for all. Where it fails there, it fails everywhere."""
        outcome: list[Any] = [None, None]
        if self.leads:
            try:
                outcome[0] = function()
            except (PogmError, OSError) as error:
                outcome[1] = error
        with self.answered():
            dist.broadcast_object_list(outcome, 0, device=torch.device("cpu"))
        result, failure = outcome
        if failure is not None:
            raise failure
        return result  # type: ignore[no-any-return]

    def hand_out(self, leaf: Tensor) -> None:
        """Make everyone's tensor, on the host, the first process's."""
        with self.answered():
            dist.broadcast(leaf, 0)

    def send(self, leaf: Tensor, to: int) -> None:
        """Give another process a tensor, by way of the hosts."""
        with self.answered():
            dist.send(leaf.cpu().contiguous(), to)

    def receive(self, leaf: Tensor, of: int) -> None:
        """Fill a tensor on the host with what another process sends."""
        with self.answered():
            dist.recv(leaf, of)

    def most(self, *numbers: int) -> list[int]:
        """The largest of everyone's numbers, one by one. On the host: the device goes on meanwhile."""
        mine = torch.tensor(numbers)
        with self.answered():
            dist.all_reduce(mine, dist.ReduceOp.MAX)
        result: list[int] = mine.tolist()
        return result

    def agreement(self, asked: Callable[[], int]) -> Callable[[], int]:
        """What any of them was asked, for all to know after the same round."""
        return Agreement(self, asked)

    @contextmanager
    def answered(self) -> Iterator[None]:
        """Make what torch says of a connection that broke, or took too long, an error to read."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.lost = True
            silent = self._silent()
            who = f"rank {' and '.join(map(str, silent))} does" if silent else "one does"
            raise LostRankError(
                f"Expected all {self.world} processes to answer within {self.timeout:g} s; found that {who} not "
                f"({_reason(error)}). The same command goes on from the last checkpoint."
            ) from error

    def _silent(self) -> list[int]:
        """Who has not noticed, a moment later, that something failed."""
        try:
            silent = self._without("lost", range(self.world), enough=1)
            answering = [rank for rank in range(self.world) if rank not in silent]
            self._without("known", answering if self.leads else [], enough=0)  # it keeps the store for the others
            return silent
        except RuntimeError:  # whoever kept the store is gone
            return []

    def _without(self, word: str, ranks: Iterable[int], enough: int) -> list[int]:
        """Say a word, and tell who of some has not said it a moment later, or when no more than so many have not."""
        self.store.set(f"{word}/{self.rank}", "")
        end = time.monotonic() + GRACE
        while len(silent := [r for r in ranks if not self.store.check([f"{word}/{r}"])]) > enough:
            if time.monotonic() > end:
                break
            time.sleep(GRACE / 40)
        return silent


def _reason(error: RuntimeError) -> str:
    """The first sentence of what torch says, without the place in its source."""
    line = str(error).splitlines()[0]
    return re.sub(r"^\[\S*\] ", "", line).partition(". ")[0].rstrip(".")


class Agreement:
    """Whether any process was asked to stop, for all to stop after the same round.

    All ask together, every so often: how many rounds that is, they agree upon as well.
    """

    def __init__(self, ranks: World, asked: Callable[[], int]):
        self.ranks, self.asked = ranks, asked
        self.interval = self.left = 1
        self.since = time.monotonic()

    def __call__(self) -> int:
        """After every round: the signal, or 0."""
        self.left -= 1
        if self.left:
            return 0
        pace = (time.monotonic() - self.since) / self.interval
        signal, self.interval = self.ranks.most(self.asked(), max(1, min(ROUNDS, round(OFTEN / max(pace, 1e-9)))))
        self.left, self.since = self.interval, time.monotonic()
        return signal


@contextmanager
def joined(launch: Launch, device: torch.device) -> Iterator[World]:
    """Join the others, over NCCL on GPUs and over gloo on CPUs; what is on the host goes over gloo either way."""
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"
    rank, world, limit = launch.rank, launch.world, timedelta(seconds=launch.timeout)
    try:
        store, _, _ = next(rendezvous("env://", rank, world, timeout=limit))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"attempt {attempt}", store)  # torchrun's has the addresses of those it started before
        store.set(f"ready/{rank}", "")
        store.wait([f"ready/{other}" for other in range(world)], PREPARING)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=limit)
    except RuntimeError as error:
        raise LostRankError(
            f"Expected {world} processes to find one another within {launch.timeout:g} s; found: "
            f"{_reason(error)}. Start them all with one torchrun command, and look at what each says."
        ) from error
    ranks = World(rank, world, launch.timeout, store, launch.spread)
    try:
        yield ranks
    finally:
        if not ranks.lost:  # else those who are gone would be waited for
            dist.destroy_process_group()
