"""Stochastic weight averaging, densely, where the validation loss is flat."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pogm._system.errors import UsageError
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.hyperparameters import hyper
from pogm.core.problem import Problem
from pogm.core.state import State
from pogm.core.trees import Params, Tree
from pogm.modifiers.base import Modifier


@dataclass(frozen=True)
class SWAD(Modifier):
    r"""Stochastic weight averaging densely (Cha et al., 2021): the mean of the weights over a flat stretch of the run.

    The weights after every round since the evaluation before make a segment; its loss :math:`l_i` is the validation
    loss at its end. The stretch begins where the loss stops falling, and ends before it has risen for long:

    .. math:: s = \min \{ i : l_i = \min(l_i, \dots, l_{i + N_s - 1}) \}, \qquad
        c = \tfrac{1 + r}{N_s} (l_s + \dots + l_{s + N_s - 1}), \\
        e = \min \{ i \ge \max(s, s + N_s - N_e) : \min(l_{i + 1}, \dots, l_{i + N_e}) > c \}, \qquad
        \bar\theta = \operatorname{mean} \{ \theta_t : t \text{ in segments } s, \dots, e \}

    Where the loss never rises so, e is the last segment; where it never stops falling, the last segment alone counts.
    The mean has a record of its own, at the step where segment e ends, and that record stands for the run.

    All weights are averaged: those that do not predict do no harm. An evaluation that no round came before (POGM takes
    several minibatches for one) makes no segment. Training goes on after e, for the records. Live batch norm, whose
    statistics the released implementation estimates anew for the mean, is refused.

    ``compat`` averages as the released implementation does: every segment counts alike, however long, and some just
    before s may count, some twice. Beside the weights this keeps N_e + 3 copies of them (or N_s + 2 if that is more).
    """

    spreads: ClassVar[tuple[str, ...]] = ("domains", "samples")

    converge: int = hyper(3, least=1)  # N_s: evaluations without a lower loss
    tolerate: int = hyper(6, least=1)  # N_e: evaluations with a loss above the limit
    tolerance: float = hyper(0.3, least=0)  # r; 0.2 for VLCS
    compat: bool = hyper(False)

    def start(self, state: State, problem: Problem) -> Tree:
        """No segments yet."""
        if problem.live:
            layer = min(problem.live).rpartition(".")[0]
            raise UsageError(
                "Expected a network whose batch norm keeps its statistics, for SWAD; found running statistics that "
                f"training changes, in {layer}, which are not those of averaged weights. Set freeze_bn to true; where "
                "the algorithm brought them, as ARM and MADG do, leave SWAD out."
            )
        zero = torch.zeros_like(state.step)
        segment = {"weights": trees.map_leaves(torch.zeros_like, state.params), "count": zero}
        return {
            "segment": segment,  # the sum of the weights since the last evaluation
            "recent": trees.repeat(segment | {"loss": zero.double(), "step": zero}, self._kept),  # the newest last
            "total": segment | {"step": zero},  # what will count whatever comes
            "last": zero - 1,  # the number of the newest segment
            "first": zero - 1,  # s; −1 until it is known
            "limit": zero.double(),  # c
            "ended": zero > 0,  # e is known
        }

    def after(self, memory: Tree, state: State, batches: list[Batch], problem: Problem) -> tuple[Tree, State]:
        """Add the weights to the segment."""
        segment = memory["segment"]
        longer = {"weights": trees.add(segment["weights"], state.params), "count": segment["count"] + 1}
        return memory | {"segment": longer}, state

    def observe(self, memory: Tree, loss: Tensor, step: int) -> Tree:
        """Close the segment, and see whether the stretch begins or ends with it."""
        known, last = memory["first"] >= 0, memory["last"] + 1
        segment = self._closed(memory["segment"]) | {"loss": loss, "step": torch.full_like(last, step)}
        recent = trees.map_leaves(lambda old, new: torch.cat([old[1:], new[None]]), memory["recent"], segment)
        losses = recent["loss"]

        watched = losses[-self.converge :]
        begins = ~known & (last >= self.converge - 1) & (watched[0] == watched.min())
        first = torch.where(begins, last - self.converge + 1, memory["first"])
        limit = torch.where(begins, (1 + self.tolerance) * watched.mean(), memory["limit"])
        risen = (last - self.tolerate >= first) & (losses[-self.tolerate :].min() > limit)

        seen = {"recent": recent, "last": last, "first": first, "limit": limit, "ended": known & risen}
        total = memory["total"]
        if self.compat:  # the first segment to come takes the place of s
            copy = trees.index({name: recent[name] for name in total}, -self.converge)
            total = trees.where(begins, copy | {"count": torch.zeros_like(last)}, total)
            added = self._added_by_release(seen, begins)
        else:
            numbers, surest = self._numbers(seen), last - self.tolerate  # up to there, it is part of the stretch
            added = (numbers >= first) & torch.where(begins, numbers <= surest, numbers == surest)
        after = seen | {
            "segment": trees.map_leaves(torch.zeros_like, memory["segment"]),
            "total": _joined(total, recent, added & (first >= 0)),
        }
        return trees.where(memory["ended"] | (memory["segment"]["count"] == 0), memory, after)

    def final(self, memory: Tree, params: Params) -> tuple[Params, Tensor]:
        """The mean over the stretch, and the step at which it ends."""
        numbers, last = self._numbers(memory), memory["last"]
        coming = self._coming_by_release(memory) if self.compat else numbers >= memory["first"]
        open_end = coming & (numbers > last - self.tolerate) & ~memory["ended"]
        taken = torch.where(memory["first"] >= 0, open_end, numbers == last) & (numbers >= 0)
        total = _joined(memory["total"], memory["recent"], taken)
        mean = trees.map_leaves(lambda leaf: leaf / total["count"].clamp(min=1).to(leaf.dtype), total["weights"])
        return trees.where(last >= 0, mean, params), total["step"]

    @property
    def _kept(self) -> int:
        """How many segments are kept apart: s must be among them, and the last that may be e."""
        return max(self.converge, self.tolerate + 1)

    def _numbers(self, memory: Tree) -> Tensor:
        """Of the recent segments; negative where there is none yet."""
        last: Tensor = memory["last"]
        return last - self._kept + 1 + torch.arange(self._kept, device=last.device)

    def _closed(self, segment: Tree) -> Tree:
        """A segment as it enters the mean: a sum and its length; or, as released, a mean that counts once."""
        if not self.compat:
            return dict(segment)
        count = segment["count"].clamp(min=1)
        mean = trees.map_leaves(lambda leaf: leaf / count.to(leaf.dtype), segment["weights"])
        return {"weights": mean, "count": torch.ones_like(count)}

    # What the released implementation averages. Its queue holds the last N_e segments, or all if there are fewer.

    def _oldest(self, memory: Tree) -> Tensor:
        """The number of the first segment in the queue."""
        return torch.clamp(memory["last"] - self.tolerate + 1, min=0)

    def _added_by_release(self, memory: Tree, begins: Tensor) -> Tensor:
        """The recent segments that count from now on, perhaps not for the first time."""
        numbers, oldest = self._numbers(memory), self._oldest(memory)
        surplus = self.tolerate - self.converge
        if surplus < 0:
            at_first = (numbers > memory["first"]) & (numbers <= memory["first"] - surplus)
        else:  # the flat segments just before s, and s; all but the first of them
            asked = (numbers >= oldest) & (numbers <= oldest + surplus)
            steep = asked & ~(memory["recent"]["loss"] <= memory["limit"])
            before = numbers[None, :] < numbers[:, None]  # [R, R]: the second comes before the first
            flat = asked & ~(steep[None, :] & ~before).any(1)
            at_first = flat & (flat[None, :] & before).any(1)
        later = (numbers == oldest) & (oldest >= memory["first"]) & ~memory["ended"]
        return torch.where(begins, at_first, later)

    def _coming_by_release(self, memory: Tree) -> Tensor:
        """The recent segments that count when training ends before e: those before the last flat one, and it."""
        numbers, losses = self._numbers(memory), memory["recent"]["loss"]
        before = numbers[None, :] < numbers[:, None]
        lowest = torch.where(before, torch.inf, losses[None, :]).amin(1)  # from each on
        return torch.logical_and(numbers > self._oldest(memory), lowest <= memory["limit"])


def _joined(total: Tree, recent: Tree, taken: Tensor) -> Tree:
    """The total with some recent segments; the first of all take the place of what was there."""
    sums = trees.map_leaves(lambda leaf: trees.masked(taken, leaf).sum(0), recent["weights"])
    weights = trees.where(total["count"] > 0, trees.add(total["weights"], sums), sums)
    count = total["count"] + torch.where(taken, recent["count"], 0).sum()
    step = torch.maximum(total["step"], torch.where(taken, recent["step"], 0).amax())
    return trees.where(taken.any(), {"weights": weights, "count": count, "step": step}, total)
