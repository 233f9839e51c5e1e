"""SWAD: dense stochastic weight averaging while the validation loss is flat."""

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

MOST_COPIES = 1000  # of the weights, in memory


@dataclass(frozen=True)
class SWAD(Modifier):
    r"""Stochastic weight averaging densely (Cha et al., 2021): average the weights while the validation loss is flat.

    A segment is the sequence of weights after every step between two evaluations; its loss :math:`l_i` is the
    validation loss at its end. Averaging starts at the segment s where the loss stops decreasing and ends at the
    segment e before the loss stays above a limit c:

    .. math:: s = \min \{ i : l_i = \min(l_i, \dots, l_{i + N_s - 1}) \}, \qquad
        c = \tfrac{1 + r}{N_s} (l_s + \dots + l_{s + N_s - 1}), \\
        e = \min \{ i \ge \max(s, s + N_s - N_e) : \min(l_{i + 1}, \dots, l_{i + N_e}) > c \}, \qquad
        \bar\theta = \operatorname{mean} \{ \theta_t : t \text{ in segments } s, \dots, e \}

    If the loss never stays above c, e is the last segment. If it never stops decreasing, only the last segment is
    averaged. The averaged weights have their own record, at the step where segment e ends, and this record is the
    result of the run.

    All weights are averaged, including those that are not used for prediction. An evaluation without a step since the
    previous one (a step of POGM can use several minibatches) makes no segment. Training continues after e, for the
    records. Batch norm that is not frozen raises an error; the released implementation estimates its statistics again
    for the averaged weights. The memory is max(N_e + 3, N_s + 2) copies of the weights.

    Args:
        converge: N_s, the number of evaluations without a lower loss after which averaging starts.
        tolerate: N_e, the number of evaluations with a loss above the limit after which averaging ends.
        tolerance: r, the margin of the limit; 0.2 for VLCS.
        compat: Whether to average as the released implementation: all segments have the same weight, independent of
            their length; some segments just before s are included, and some are included twice.
    """

    parallel_axes: ClassVar[tuple[str, ...]] = ("domains", "samples")
    changes_training: ClassVar[bool] = False

    converge: int = hyper(3, least=1, most=MOST_COPIES)  # N_s
    tolerate: int = hyper(6, least=1, most=MOST_COPIES)  # N_e
    tolerance: float = hyper(0.3, least=0)  # r
    compat: bool = hyper(False)

    def start(self, state: State, problem: Problem) -> Tree:
        """Return a memory without segments; raise a `UsageError` for batch norm that is not frozen."""
        if problem.live:
            layer = min(problem.live).rpartition(".")[0]
            raise UsageError(
                "Expected frozen batch norm for SWAD, because running statistics do not belong to averaged weights; "
                f"found running statistics in {layer}. Set freeze_bn=true; if the algorithm adds the layer, as ARM, "
                "MADG and SelfReg do, leave SWAD out."
            )
        zero = torch.zeros_like(state.step)
        segment = {"weights": trees.map_leaves(torch.zeros_like, state.params), "count": zero}
        return {
            "segment": segment,  # sum of the weights since the last evaluation
            "recent": trees.repeat(
                segment | {"loss": zero.double(), "step": zero}, self._recent_count
            ),  # the newest last
            "total": segment | {"step": zero},  # segments that are certain to be averaged
            "last": zero - 1,  # index of the newest segment
            "first": zero - 1,  # s; −1 until it is known
            "limit": zero.double(),  # c
            "ended": zero > 0,  # e is known
        }

    def after(self, memory: Tree, state: State, batches: list[Batch], problem: Problem) -> tuple[Tree, State]:
        """Add the weights to the current segment."""
        segment = memory["segment"]
        extended = {"weights": trees.add(segment["weights"], state.params), "count": segment["count"] + 1}
        return memory | {"segment": extended}, state

    def observe(self, memory: Tree, loss: Tensor, step: int) -> Tree:
        """Close the current segment, and update s, the limit c and the averaged segments."""
        known, last = memory["first"] >= 0, memory["last"] + 1
        segment = self._close(memory["segment"]) | {"loss": loss, "step": torch.full_like(last, step)}
        recent = trees.map_leaves(lambda old, new: torch.cat([old[1:], new[None]]), memory["recent"], segment)
        losses = recent["loss"]

        window = losses[-self.converge :]
        begins = ~known & (last >= self.converge - 1) & (window[0] == window.min())
        first = torch.where(begins, last - self.converge + 1, memory["first"])
        limit = torch.where(begins, (1 + self.tolerance) * window.mean(), memory["limit"])
        risen = (last - self.tolerate >= first) & (losses[-self.tolerate :].min() > limit)

        updated = {"recent": recent, "last": last, "first": first, "limit": limit, "ended": known & risen}
        total = memory["total"]
        if self.compat:  # the copy of s has count 0: the first segment that is added replaces it
            copy = trees.index({name: recent[name] for name in total}, -self.converge)
            total = trees.where(begins, copy | {"count": torch.zeros_like(last)}, total)
            added = self._added_by_release(updated, begins)
        else:
            indices, certain = self._indices(updated), last - self.tolerate  # segments up to here are before e
            added = (indices >= first) & torch.where(begins, indices <= certain, indices == certain)
        after = updated | {
            "segment": trees.map_leaves(torch.zeros_like, memory["segment"]),
            "total": _add_segments(total, recent, added & (first >= 0)),
        }
        return trees.where(memory["ended"] | (memory["segment"]["count"] == 0), memory, after)

    def final(self, memory: Tree, params: Params) -> tuple[Params, Tensor]:
        """Return the averaged weights, and the step at which segment e ends."""
        indices, last = self._indices(memory), memory["last"]
        pending = self._pending_by_release(memory) if self.compat else indices >= memory["first"]
        open_end = pending & (indices > last - self.tolerate) & ~memory["ended"]
        included = torch.where(memory["first"] >= 0, open_end, indices == last) & (indices >= 0)
        total = _add_segments(memory["total"], memory["recent"], included)
        mean = trees.map_leaves(lambda leaf: leaf / total["count"].clamp(min=1).to(leaf.dtype), total["weights"])
        return trees.where(last >= 0, mean, params), total["step"]

    @property
    def _recent_count(self) -> int:
        """Number of segments that are stored separately: enough to include s, and the last possible e."""
        return max(self.converge, self.tolerate + 1)

    def _indices(self, memory: Tree) -> Tensor:
        """Return the indices of the recent segments; negative if there is none yet."""
        last: Tensor = memory["last"]
        return last - self._recent_count + 1 + torch.arange(self._recent_count, device=last.device)

    def _close(self, segment: Tree) -> Tree:
        """Return the sum of the weights and their number; with ``compat`` their mean, with number 1."""
        if not self.compat:
            return dict(segment)
        count = segment["count"].clamp(min=1)
        mean = trees.map_leaves(lambda leaf: leaf / count.to(leaf.dtype), segment["weights"])
        return {"weights": mean, "count": torch.ones_like(count)}

    # Averages of the released implementation. Its queue holds the last N_e segments, or all if there are fewer.

    def _oldest(self, memory: Tree) -> Tensor:
        """Return the index of the first segment in the queue."""
        return torch.clamp(memory["last"] - self.tolerate + 1, min=0)

    def _added_by_release(self, memory: Tree, begins: Tensor) -> Tensor:
        """Return which recent segments are added now, possibly for the second time."""
        indices, oldest = self._indices(memory), self._oldest(memory)
        surplus = self.tolerate - self.converge
        if surplus < 0:
            at_first = (indices > memory["first"]) & (indices <= memory["first"] - surplus)
        else:  # s and the segments just before it with a loss below the limit, except the first of them
            asked = (indices >= oldest) & (indices <= oldest + surplus)
            steep = asked & ~(memory["recent"]["loss"] <= memory["limit"])
            before = indices[None, :] < indices[:, None]  # [R, R]: the segment of the column is before that of the row
            flat = asked & ~(steep[None, :] & ~before).any(1)
            at_first = flat & (flat[None, :] & before).any(1)
        later = (indices == oldest) & (oldest >= memory["first"]) & ~memory["ended"]
        return torch.where(begins, at_first, later)

    def _pending_by_release(self, memory: Tree) -> Tensor:
        """Return which recent segments are added if training ends before e, up to the last below the limit."""
        indices, losses = self._indices(memory), memory["recent"]["loss"]
        before = indices[None, :] < indices[:, None]
        lowest = torch.where(before, torch.inf, losses[None, :]).amin(1)  # lowest loss from each segment on
        return torch.logical_and(indices > self._oldest(memory), lowest <= memory["limit"])


def _add_segments(total: Tree, recent: Tree, taken: Tensor) -> Tree:
    """Add some recent segments to the total; if the total has count 0, replace it."""
    sums = trees.map_leaves(lambda leaf: trees.mask(taken, leaf).sum(0), recent["weights"])
    weights = trees.where(total["count"] > 0, trees.add(total["weights"], sums), sums)
    count = total["count"] + torch.where(taken, recent["count"], 0).sum()
    step = torch.maximum(total["step"], torch.where(taken, recent["step"], 0).amax())
    return trees.where(taken.any(), {"weights": weights, "count": count, "step": step}, total)
