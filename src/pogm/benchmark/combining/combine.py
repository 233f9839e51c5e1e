"""Combine the runs of a sweep: plan, check everything, then compute what is not done yet."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pogm._system.errors import MemoryLimitError
from pogm._system.messages import log_time
from pogm.benchmark.combining.checks import check_compatible, check_weights
from pogm.benchmark.combining.evaluation import Evaluator
from pogm.benchmark.combining.folder import is_done, label_of, write_combination
from pogm.benchmark.combining.members import Group
from pogm.benchmark.combining.soups import count_passes, make_ensemble, make_soups
from pogm.data.images.parallel import Progress, no_progress
from pogm.engine.engine import Engine

SOUPS = ("uniform", "greedy")


@dataclass(frozen=True)
class Planned:
    """A group of runs, and the combinations of it."""

    group: Group
    folders: dict[str, Path]  # by rule
    left: tuple[str, ...]  # rules that are not done

    @property
    def passes(self) -> int:
        """Number of models to evaluate."""
        return count_passes(self.group, self.left)

    def to_json(self) -> dict[str, Any]:
        """Return the plan of this group for --json."""
        run = self.group.members[0].run
        return {
            "dataset": run.dataset,
            "held_out": [run.domains[number] for number in sorted(run.test_domains)],
            "trial_seed": None if self.group.pooled else self.group.trial_seed,
            "members": [member.run.id for member in self.group.members],
            "seconds": self.group.seconds,
            "combinations": [
                {"label": label_of(self.group, rule), "rule": rule, "folder": folder, "done": rule not in self.left}
                for rule, folder in self.folders.items()
            ],
        }


def plan_combinations(
    groups: Sequence[Group], out: Path, rules: Sequence[str], progress: Progress = no_progress
) -> list[Planned]:
    """Check that the runs of every group can be combined, and find the combinations that are not done.

    Args:
        groups: Runs to combine.
        out: Folder of the combinations.
        rules: "uniform" and "greedy" for soups; "logits" or "probabilities" for an ensemble.
        progress: Shows how many groups were checked.

    Raises:
        UsageError: Runs cannot be combined; the message has the reason.
        IntegrityError: Fewer than two models of a group are intact.
    """
    planned = []
    for group in progress(groups, len(groups), "groups"):
        mean = None if set(rules) <= set(SOUPS) else rules[0]
        check_compatible(group, mean=mean)
        # The folder does not depend on the members, so new members replace the old result.
        folders = {rule: out / f"{rule}-{group.cell(rule)}" for rule in rules}
        if any(not is_done(folder, group, rule) for rule, folder in folders.items()):
            with log_time("Checked the weights of %s", group.title):
                group = check_weights(group)
        left = tuple(rule for rule, folder in folders.items() if not is_done(folder, group, rule))
        planned.append(Planned(group, folders, left))
    return planned


def combine(planned: Sequence[Planned], data: Path | None, engine: Engine) -> Iterator[None]:
    """Compute and write the combinations that are not done; yield after every model that was evaluated.

    Args:
        planned: Groups from `plan_combinations`.
        data: Data folder.
        engine: Device.

    Raises:
        MemoryLimitError: The images and one model do not fit into memory.
    """
    for one in planned:
        if one.left:
            yield from _combine_group(one, data, engine)


def _combine_group(one: Planned, data: Path | None, engine: Engine) -> Iterator[None]:
    try:
        with log_time("Loaded the images for %s", one.group.title):
            evaluator = Evaluator(one.group, data, engine)
        if set(one.left) <= set(SOUPS):
            found = yield from make_soups(one.group, evaluator, one.left)
        else:
            (mean,) = one.left
            found = {mean: (yield from make_ensemble(one.group, evaluator, mean))}
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise MemoryLimitError(
            f"Expected one model and the images for {one.group.title} to fit into memory; found that memory is full. "
            "Use a larger device, or --device cpu."
        ) from error
    for rule, combined in found.items():
        with log_time("Wrote %s", one.folders[rule]):
            write_combination(one.folders[rule], one.group, rule, combined, evaluator)
