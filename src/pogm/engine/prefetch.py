"""Images that do not fit on the device: gathered on the host while it computes, and sent through pinned memory.

Minibatches are a function of a key, so the host knows the rows of the next round without asking the device.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from pogm.core import random, trees
from pogm.core.state import Purpose, State
from pogm.data.transforms.base import Part
from pogm.engine.sampling import HELD_OUT, SampleIndices, chosen


class Streamed:
    """A window on the device with the images of one round, filled before the round begins.

    With ``held_out``, there is another one behind it, with images of the held-out domains for a probe.
    """

    def __init__(
        self,
        images: Tensor,
        rows: SampleIndices,
        batch_size: int,
        turns: int,
        device: torch.device,
        held_out: bool = False,
    ):
        self.images = images  # [N, channels, height, width] on the host, or in a mapped file
        rows = trees.map_leaves(torch.Tensor.cpu, rows)
        self.pools = [rows.train, rows.held_out] if held_out else [rows.train]
        self.batch_size, self.turns, self.device = batch_size, turns, device
        domains = [pool.rows.shape[0] for pool in self.pools]
        shapes = [(turns, count, batch_size, *images.shape[1:]) for count in domains]
        sizes = [torch.Size(shape).numel() for shape in shapes]
        self.window = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
        parts = torch.split(self.window, sizes)
        self.views = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]  # one for each pool
        self.staging = [_Staging(self.window.numel(), device) for _ in range(2)]
        self.helper = ThreadPoolExecutor(1, "images")
        self.state: State | None = None  # the one whose next round is being gathered
        self.coming: Future[Tensor]

    @property
    def shape(self) -> torch.Size:
        """Of all of them, wherever they are."""
        return self.images.shape

    def take(self, rows: Tensor, turn: int, part: Part | None = None) -> Tensor:
        """The window's images, which are those rows'; turns go on with those of the held-out domains."""
        images: Tensor = self.views[turn // self.turns][turn % self.turns]
        return images if part is None else images[part]

    def prepare(self, state: State) -> None:
        """Fill the window for the next round of a state."""
        if state is not self.state:  # the first, or one that was restored
            self.round, self.key = int(state.step), state.key.cpu()
            self.coming = self.helper.submit(self._gather, state._replace(key=self.key), self.round)
        staged = self.coming.result()
        self.window.copy_(staged, non_blocking=True)
        self.staging[self.round % 2].sent()

    def follow(self, state: State) -> None:
        """Begin to gather for the round after the one that led to this state."""
        self.state, self.round = state, self.round + 1
        self.coming = self.helper.submit(self._gather, state._replace(key=self.key), self.round)

    def _gather(self, state: State, number: int) -> Tensor:
        keys = [state.random_key(Purpose.DATA, number * self.turns + turn) for turn in range(self.turns)]
        keys += [random.fold(key, HELD_OUT) for key in keys]
        pools = [pool for pool in self.pools for _ in range(self.turns)]
        drawn = [chosen(pool, key, self.batch_size) for pool, key in zip(pools, keys, strict=False)]
        rows = torch.cat([these.flatten() for these in drawn])
        return self.staging[number % 2].gather(self.images, rows)

    def passes(self, parts: Sequence[Tensor]) -> Iterator[Tensor]:
        """The images of one set of rows after the other; each set is gathered while the one before is in use."""
        hosted = [part.cpu() for part in parts]
        shape = self.images.shape[1:]
        buffers = [_Staging(max(map(len, hosted)) * shape.numel(), self.device) for _ in range(2)]
        with ThreadPoolExecutor(1, "images") as helper:
            coming = helper.submit(buffers[0].gather, self.images, hosted[0])
            for number, part in enumerate(hosted):
                staged = coming.result()
                images = staged.view(len(part), *shape).to(self.device, non_blocking=True)
                buffers[number % 2].sent()
                if number + 1 < len(hosted):
                    coming = helper.submit(buffers[(number + 1) % 2].gather, self.images, hosted[number + 1])
                yield images


class _Staging:
    """Memory that the device can copy from while the host goes on."""

    def __init__(self, numbers: int, device: torch.device):
        self.on_gpu = device.type == "cuda"
        self.memory = torch.empty(numbers, dtype=torch.uint8, pin_memory=self.on_gpu)
        self.copied = torch.cuda.Event() if self.on_gpu else None  # type: ignore[no-untyped-call]

    def gather(self, images: Tensor, rows: Tensor) -> Tensor:
        """Copy these rows here, once what was here before has left."""
        if self.copied is not None:
            self.copied.synchronize()
        there = self.memory[: rows.numel() * images[0].numel()]
        torch.index_select(images.flatten(1), 0, rows, out=there.view(rows.numel(), -1))
        return there

    def sent(self) -> None:
        """Note that a copy to the device is under way."""
        if self.copied is not None:
            self.copied.record()
