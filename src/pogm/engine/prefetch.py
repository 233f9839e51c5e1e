"""Streaming of inputs that do not fit on the device.

A thread gathers the inputs of the next round on the host while the device computes, and sends them through pinned
memory. Minibatches are a function of a random key, so the host knows their sample indices without asking the device.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from pogm.core import random, trees
from pogm.core.state import Purpose, State
from pogm.data.transforms.base import Part
from pogm.engine.sampling import HELD_OUT, SampleIndices, draw_indices


class Streamed:
    """Input store on the host, with a window on the device that holds the inputs of one round.

    Args:
        inputs: [N, ...] on the host or in a memory-mapped file.
        sample_indices: Sample indices of the trial.
        batch_size: Samples of each domain in a minibatch.
        turns: Minibatches of a round.
        device: Device of the window.
        held_out: Also load minibatches of the held-out domains, for a probe.
    """

    def __init__(
        self,
        inputs: Tensor,
        sample_indices: SampleIndices,
        batch_size: int,
        turns: int,
        device: torch.device,
        held_out: bool = False,
    ):
        self.inputs = inputs
        sample_indices = trees.map_leaves(torch.Tensor.cpu, sample_indices)
        self.pools = [sample_indices.train, sample_indices.held_out] if held_out else [sample_indices.train]
        self.batch_size, self.turns, self.device = batch_size, turns, device
        domains = [pool.indices.shape[0] for pool in self.pools]
        shapes = [(turns, count, batch_size, *inputs.shape[1:]) for count in domains]
        sizes = [torch.Size(shape).numel() for shape in shapes]
        self.window = torch.empty(sum(sizes), dtype=inputs.dtype, device=device)
        parts = torch.split(self.window, sizes)
        self.views = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]  # one for each pool
        self.staging = [_Staging(self.window.numel(), inputs.dtype, device) for _ in range(2)]
        self.executor = ThreadPoolExecutor(1, "inputs")
        self.state: State | None = None  # the state for whose next round inputs are being gathered
        self.future: Future[Tensor]

    @property
    def shape(self) -> torch.Size:
        """Shape of all inputs together."""
        return self.inputs.shape

    def take(self, indices: Tensor, turn: int, part: Part | None = None) -> Tensor:
        """Return the inputs of a minibatch from the window, which ``prepare`` has filled with these indices.

        Turns from ``turns`` on are those of the held-out domains.
        """
        inputs: Tensor = self.views[turn // self.turns][turn % self.turns]
        return inputs if part is None else inputs[part]

    def prepare(self, state: State) -> None:
        """Fill the window with the inputs of the next round of a state."""
        if state is not self.state:  # the first round, or a restored state
            self.round, self.key = int(state.step), state.key.cpu()
            self.future = self.executor.submit(self._gather, state._replace(key=self.key), self.round)
        staged = self.future.result()
        self.window.copy_(staged, non_blocking=True)
        self.staging[self.round % 2].record_copy()

    def follow(self, state: State) -> None:
        """Start to gather the inputs of the round after this state."""
        self.state, self.round = state, self.round + 1
        self.future = self.executor.submit(self._gather, state._replace(key=self.key), self.round)

    def _gather(self, state: State, number: int) -> Tensor:
        keys = [state.random_key(Purpose.DATA, number * self.turns + turn) for turn in range(self.turns)]
        keys += [random.fold(key, HELD_OUT) for key in keys]
        pools = [pool for pool in self.pools for _ in range(self.turns)]
        drawn = [draw_indices(pool, key, self.batch_size) for pool, key in zip(pools, keys, strict=False)]
        indices = torch.cat([some.flatten() for some in drawn])
        return self.staging[number % 2].gather(self.inputs, indices)

    def iterate(self, parts: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield the inputs of one set of sample indices after the other. The next set is gathered in the meantime."""
        on_host = [part.cpu() for part in parts]
        shape = self.inputs.shape[1:]
        buffers = [_Staging(max(map(len, on_host)) * shape.numel(), self.inputs.dtype, self.device) for _ in range(2)]
        with ThreadPoolExecutor(1, "inputs") as executor:
            future = executor.submit(buffers[0].gather, self.inputs, on_host[0])
            for number, part in enumerate(on_host):
                staged = future.result()
                inputs = staged.view(len(part), *shape).to(self.device, non_blocking=True)
                buffers[number % 2].record_copy()
                if number + 1 < len(on_host):
                    future = executor.submit(buffers[(number + 1) % 2].gather, self.inputs, on_host[number + 1])
                yield inputs


class _Staging:
    """Pinned memory from which the device copies asynchronously."""

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device):
        self.on_gpu = device.type == "cuda"
        self.memory = torch.empty(size, dtype=dtype, pin_memory=self.on_gpu)
        self.copied = torch.cuda.Event() if self.on_gpu else None  # type: ignore[no-untyped-call]

    def gather(self, inputs: Tensor, indices: Tensor) -> Tensor:
        """Copy inputs into this memory, after the last copy from it to the device has finished."""
        if self.copied is not None:
            self.copied.synchronize()
        target = self.memory[: indices.numel() * inputs[0].numel()]
        torch.index_select(inputs.flatten(1), 0, indices, out=target.view(indices.numel(), -1))
        return target

    def record_copy(self) -> None:
        """Record that a copy to the device was started."""
        if self.copied is not None:
            self.copied.record()
