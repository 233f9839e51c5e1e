"""The processes that train one model: launch, communication, stop signals, and detection of lost processes."""

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

from pogm._system.errors import PogmError, UsageError, shorten

Result = TypeVar("Result")

SETUP_TIMEOUT = timedelta(hours=12)  # one process may decode images while the others wait; torchrun ends all if it dies
MOST_RANKS = 10**5
GRACE_SECONDS = 2.0  # for the other processes to report that they noticed a failure
STOP_CHECK_SECONDS = 0.05  # approximate time between two checks for a stop signal; a check takes below 1 % of that
STOP_CHECK_ROUNDS = 50  # most rounds between two checks


class LostRankError(PogmError):
    """Process of the run that died or does not answer."""


@dataclass(frozen=True)
class Launch:
    """Rank and number of processes, as torchrun sets them, and options of distributed training."""

    rank: int
    world_size: int
    local_rank: int = 0  # rank among the processes of this machine
    timeout: float = 600.0  # seconds that another process may take to answer
    spread: str = "auto"  # what the processes divide: domains, samples or both

    def __post_init__(self) -> None:
        if not 0 < self.timeout < 10**9:
            raise UsageError(f"Expected --timeout-seconds above 0; found {self.timeout:g}. Leave it out.")

    @classmethod
    def from_environment(cls, timeout: float = 600.0, spread: str = "auto") -> "Launch | None":
        """Read the environment variables of torchrun. Return None if they are not set."""
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        if not all(name in os.environ for name in names):
            return None
        world_size = _read_variable("WORLD_SIZE", 1, MOST_RANKS)
        rank, local_rank = (_read_variable(name, 0, world_size - 1) for name in ("RANK", "LOCAL_RANK"))
        _read_variable("MASTER_PORT", 0, 65535)  # torch reads it itself
        return cls(rank, world_size, local_rank, timeout, spread)


def _read_variable(name: str, least: int, most: int) -> int:
    """Read a whole number from a variable of the environment; 0 if it is not set."""
    text = os.environ.get(name, "0")
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise UsageError(
            f"Expected the environment variable {name} to be a whole number from {least} to {most}; found "
            f"{shorten(text)}. Start the processes by torchrun, or unset it."
        )
    return int(text)


class SingleProcess:
    """Replacement of ``World`` for a run in a single process."""

    is_first = True

    def run_on_first(self, function: Callable[[], Result]) -> Result:
        """Call the function and return its result."""
        return function()

    def share_stop_signal(self, get_signal: Callable[[], int]) -> Callable[[], int]:
        """Return the function itself: the local signal is the only one."""
        return get_signal


@dataclass(eq=False)
class World:
    """All processes of a run, from the perspective of one of them."""

    rank: int
    size: int
    timeout: float  # seconds
    store: Store
    spread: str = "auto"
    bytes_sent: int = 0  # by the collective operations of process groups
    has_failed: bool = False  # True after a process was lost
    groups: dict[tuple[int, ...], "ProcessGroup"] = field(default_factory=dict)  # by the ranks of their members

    @property
    def is_first(self) -> bool:
        """True for rank 0, the process that writes files."""
        return self.rank == 0

    @cached_property
    def all_ranks(self) -> "ProcessGroup":
        """Process group of all ranks."""
        return ProcessGroup(self, tuple(range(self.size)), None)

    def subgroup(self, partition: Sequence[Sequence[int]]) -> "ProcessGroup":
        """Return the process group that contains this rank. All processes must call this with the same partition."""
        for members in map(tuple, partition):
            if members not in self.groups:
                with self.detect_lost_ranks():
                    handle = dist.new_group(list(members), timeout=timedelta(seconds=self.timeout))
                self.groups[members] = ProcessGroup(self, members, handle)
        return next(self.groups[tuple(members)] for members in partition if self.rank in members)

    def run_on_first(self, function: Callable[[], Result]) -> Result:
        """Call a function on rank 0, and return its result or raise its error on all ranks."""
        outcome: list[Any] = [None, None]
        if self.is_first:
            try:
                outcome[0] = function()
            except (PogmError, OSError) as error:
                outcome[1] = error
        with self.detect_lost_ranks():
            dist.broadcast_object_list(outcome, 0, device=torch.device("cpu"))
        result, failure = outcome
        if failure is not None:
            raise failure
        return result  # type: ignore[no-any-return]

    def broadcast(self, leaf: Tensor) -> None:
        """Overwrite a tensor on the host with the tensor of rank 0."""
        with self.detect_lost_ranks():
            dist.broadcast(leaf, 0)

    def send(self, leaf: Tensor, destination: int) -> None:
        """Send a tensor to another rank, through the memory of the host."""
        with self.detect_lost_ranks():
            dist.send(leaf.cpu().contiguous(), destination)

    def receive(self, leaf: Tensor, source: int) -> None:
        """Overwrite a tensor on the host with the tensor that another rank sends."""
        with self.detect_lost_ranks():
            dist.recv(leaf, source)

    def all_reduce_max(self, *numbers: int) -> list[int]:
        """Return the maximum over all ranks of each number. Runs on the host, so the GPU is not interrupted."""
        maxima = torch.tensor(numbers)
        with self.detect_lost_ranks():
            dist.all_reduce(maxima, dist.ReduceOp.MAX)
        result: list[int] = maxima.tolist()
        return result

    def share_stop_signal(self, get_signal: Callable[[], int]) -> Callable[[], int]:
        """Return a function that gives all ranks the same stop signal after the same round.

        Args:
            get_signal: Returns the signal that this process received, or 0.
        """
        return StopSignal(self, get_signal)

    @contextmanager
    def detect_lost_ranks(self) -> Iterator[None]:
        """Convert torch's errors about broken or slow connections to a LostRankError that names the lost ranks."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.has_failed = True
            silent = self._silent_ranks()
            who = f"rank {' and '.join(map(str, silent))} does" if silent else "one does"
            raise LostRankError(
                f"Expected all {self.size} processes to answer within {self.timeout:g} s; found that {who} not "
                f"({_reason(error)}). The same command continues from the last checkpoint."
            ) from error

    def _silent_ranks(self) -> list[int]:
        """Return the ranks that do not report the failure within the grace period."""
        try:
            silent = self._missing_reports("lost", range(self.size), allowed=1)
            answering = [rank for rank in range(self.size) if rank not in silent]
            # Rank 0 hosts the store: it waits until the others have read from it.
            self._missing_reports("known", answering if self.is_first else [], allowed=0)
            return silent
        except RuntimeError:  # the process that hosts the store is lost
            return []

    def _missing_reports(self, name: str, ranks: Iterable[int], allowed: int) -> list[int]:
        """Report under a name, and return the ranks without such a report.

        Returns when at most ``allowed`` reports are missing, or at the end of the grace period.
        """
        self.store.set(f"{name}/{self.rank}", "")
        end = time.monotonic() + GRACE_SECONDS
        while len(missing := [r for r in ranks if not self.store.check([f"{name}/{r}"])]) > allowed:
            if time.monotonic() > end:
                break
            time.sleep(GRACE_SECONDS / 40)
        return missing


@dataclass(frozen=True)
class ProcessGroup:
    """Some of the processes, in the order of their ranks, and collective operations among them."""

    world: World
    members: tuple[int, ...]  # ranks
    handle: Any  # torch's process group; None for all processes

    @property
    def index(self) -> int:
        """Index of this rank within the group."""
        return self.members.index(self.world.rank)

    def all_gather(self, local: Tensor) -> Tensor:
        """Return the tensors of all members, which have one shape: [members, ...]."""
        local = local.contiguous()
        result = local.new_empty(len(self.members) * local.numel())
        with self.world.detect_lost_ranks():
            dist.all_gather_into_tensor(result, local.flatten(), group=self.handle)
        self._count_bytes(local.nbytes * (len(self.members) - 1))
        return result.view(len(self.members), *local.shape)

    def mean(self, local: Tensor) -> Tensor:
        """Return the mean of the tensors of all members."""
        total = local.clone()
        with self.world.detect_lost_ranks():
            dist.all_reduce(total, group=self.handle)
        self._count_bytes(2 * local.nbytes * (len(self.members) - 1) // len(self.members))
        return total / len(self.members)

    def all_to_all(self, parts: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """Send one tensor to each member, and return the tensors that this process receives from each.

        Args:
            parts: Tensors to send, in the order of the members.
            shapes: Shapes of the tensors to receive, in the same order.
        """
        sizes = [torch.Size(shape).numel() for shape in shapes]
        result = parts[0].new_empty(sum(sizes))
        outgoing = torch.cat([part.flatten() for part in parts])
        with self.world.detect_lost_ranks():
            dist.all_to_all_single(result, outgoing, sizes, [part.numel() for part in parts], group=self.handle)
        self._count_bytes(outgoing.nbytes - parts[self.index].nbytes)
        return [piece.view(shape) for piece, shape in zip(torch.split(result, sizes), shapes, strict=True)]

    def _count_bytes(self, sent: int) -> None:
        """Count bytes sent by a ring algorithm, which both gloo and NCCL use for tensors of this size."""
        self.world.bytes_sent += sent


class StopSignal:
    """Stop signal that all ranks see after the same round, whichever rank received it.

    All ranks exchange their signals together, every few rounds. They also agree on the number of rounds until the next
    exchange, so that exchanges are about ``STOP_CHECK_SECONDS`` apart.
    """

    def __init__(self, world: World, get_signal: Callable[[], int]):
        self.world, self.get_signal = world, get_signal
        self.interval = self.rounds_left = 1
        self.last_check = time.monotonic()

    def __call__(self) -> int:
        """Return the signal, or 0. Call this after every round."""
        self.rounds_left -= 1
        if self.rounds_left:
            return 0
        seconds_per_round = (time.monotonic() - self.last_check) / self.interval
        rounds = max(1, min(STOP_CHECK_ROUNDS, round(STOP_CHECK_SECONDS / max(seconds_per_round, 1e-9))))
        signal, self.interval = self.world.all_reduce_max(self.get_signal(), rounds)
        self.rounds_left, self.last_check = self.interval, time.monotonic()
        return signal


@contextmanager
def connect(launch: Launch, device: torch.device) -> Iterator[World]:
    """Connect the processes of a run, by NCCL for GPUs and by gloo for CPUs. Tensors on the host always use gloo.

    Raises:
        LostRankError: Not all processes connected in time.
    """
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"
    rank, size, limit = launch.rank, launch.world_size, timedelta(seconds=launch.timeout)
    try:
        store, _, _ = next(rendezvous("env://", rank, size, timeout=limit))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"attempt {attempt}", store)  # torchrun keeps one store with the addresses of old attempts
        store.set(f"ready/{rank}", "")
        store.wait([f"ready/{other}" for other in range(size)], SETUP_TIMEOUT)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    except RuntimeError as error:
        raise LostRankError(
            f"Expected {size} processes to find one another within {launch.timeout:g} s; found: "
            f"{_reason(error)}. Start them all with one torchrun command, and read the output of each."
        ) from error
    world = World(rank, size, launch.timeout, store, launch.spread)
    try:
        yield world
    finally:
        if not world.has_failed:  # otherwise this would wait for the lost processes
            dist.destroy_process_group()


def _reason(error: RuntimeError) -> str:
    """Return the first sentence of an error of torch, without the position in its source code."""
    line = str(error).splitlines()[0]
    return re.sub(r"^\[\S*\] ", "", line).partition(". ")[0].rstrip(".")
