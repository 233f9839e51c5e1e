"""``pogm experiment``: the tables and figures of the paper."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pogm._system.errors import UsageError
from pogm._system.terminal import print_line
from pogm.cli.json_output import Output
from pogm.cli.options import MOST_REPETITIONS, MOST_STEPS, Execution, Planning, Scheduling
from pogm.cli.parser import Command, argument, group, option

if TYPE_CHECKING:
    from pogm.benchmark.runs.runner import RunOptions
    from pogm.data.datasets.base import DomainDataset
    from pogm.experiments.base import Plan, Scale


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Options that change the scale. The tables and the page of a changed scale go to a separate folder."""

    title: ClassVar[str] = "changes of the scale (tables and the page are written to a separate folder)"
    settings: tuple[str, ...] = option(
        "Set a hyperparameter of all rows, or of one algorithm: ALGORITHM.NAME=VALUE; may be repeated (default: none).",
        (),
        flag="--set",
        repeat=True,
        metavar="NAME=VALUE",
        complete="settings",
    )
    datasets: tuple[str, ...] = option(
        "Names of datasets, or folders of images, to use (default: those of the scale).",
        (),
        metavar="NAME",
        complete="datasets",
    )
    algorithms: tuple[str, ...] = option(
        "Rows of a table, or methods of a figure, to run (default: all).", (), metavar="NAME", complete="algorithms"
    )
    network: str | None = option(
        "Name of a network, see: pogm list networks (default: that of the scale, or that of --weights).",
        None,
        complete="networks",
    )
    precision: str | None = option(
        "Precision of the network: fp32, tf32, bf16 or fp64 (default: that of the scale).", None
    )
    steps: int | None = option(
        "Number of minibatches of each training domain (default: that of the scale).", None, least=1, most=MOST_STEPS
    )
    evaluate_every: int | None = option(
        "Number of minibatches between two evaluations (default: that of the scale).", None, least=1, most=MOST_STEPS
    )
    evaluation: str | None = option(
        "Samples that evaluations predict: all, or selection (without the samples that the run trains on) (default: "
        "that of the scale).",
        None,
    )
    trials: int | None = option(
        "Number of repetitions with different seeds and splits (default: that of the scale).",
        None,
        least=1,
        most=MOST_REPETITIONS,
    )


@dataclass(frozen=True, kw_only=True)
class Experiment(Command):
    """Make tables and figures of the paper: train what is missing, print the tables, write files and a page."""

    trains: ClassVar[bool] = True
    examples: ClassVar[str] = """
pogm experiment paper --scale embedded             every table and figure of the paper, small: minutes on two cores
pogm experiment table1 table2 --scale mnist --data ~/data --dry-run
pogm experiment table1 --scale full --data ~/data --executor ray --address HOST:PORT
pogm experiment figure4 --scale pacs --data ~/data --weights resnet50_imagenet_v1.safetensors --precision bf16
pogm experiment table1 --scale embedded --algorithms ERM POGM --set POGM.kappa=0.1 --trials 5
pogm list experiments                              names and scales"""
    notes: ClassVar[str] = (
        "The same command again continues where it stopped. If all runs are done, it only writes tables and figures.\n"
        "Experiments that need the same run share it."
    )

    names: tuple[str, ...] = argument(
        "Experiments such as table1, figure2 or evidence; paper: all of the paper; all: all that pogm list experiments "
        "shows.",
        metavar="NAME",
        complete="experiments",
    )
    scale: str = option(
        "Datasets, number of runs and length: embedded, small, features, mnist, pacs, office_caltech or full.",
        complete="scales",
    )
    out: Path = option(
        "Folder for runs, tables and figures; each scale has a subfolder.", Path("runs/paper"), metavar="FOLDER"
    )
    changes: Changes = group(Changes)
    planning: Planning = group(Planning)
    scheduling: Scheduling = group(Scheduling)
    execution: Execution = group(Execution)
    output: Output = group(Output)

    def run(self) -> int:
        """Train what is missing, then print the tables and write tables, figures and the page."""
        from pogm.benchmark.results.comparison import Comparison
        from pogm.benchmark.results.table import Table
        from pogm.benchmark.runs.sweep_directory import save_plan
        from pogm.cli.execution import (
            check_weights_exist,
            left_to_run,
            make_run_options,
            prepare,
            warn_late_schedules,
        )
        from pogm.cli.planning import show_estimates
        from pogm.cli.results import run_scheduled, wait_for_all
        from pogm.experiments import find_experiments
        from pogm.experiments.output import RUNS, show
        from pogm.experiments.planning import all_trials, check_scale
        from pogm.experiments.trials import first_trial

        chosen, scale, workers = find_experiments(self.names), self.make_scale(), self.scheduling.workers
        check_scale(chosen, scale)
        run_options = self.scheduling.set_kept_models(make_run_options(self.execution, self.changes.datasets, self.out))
        plans = {one.name: one.rows(scale) for one in chosen}
        for first in {row: first_trial(found) for plan in plans.values() for row, found in plan.items()}.values():
            warn_late_schedules(first)
        runs = self.out / scale.name / RUNS
        if self.planning.only_plan:
            plan = self._show_plan(plans, scale, runs, run_options)
            if self.planning.only_count:
                self.output.show("experiment", plan)
                return 0
        trials = all_trials(chosen, scale)
        left = left_to_run(trials, runs)
        check_weights_exist(left, run_options)
        if self.planning.estimate:
            self.output.show("experiment", show_estimates(left, run_options, workers))
            return 0
        done = True
        if trials:
            prepare(left, run_options)
            save_plan(trials, runs)
            done = wait_for_all(run_scheduled(trials, runs, run_options, self.scheduling), trials, runs)
        folder, exhibits = show(chosen, scale, self.out)
        tables = {
            name: [one.to_dict() for one in found if isinstance(one, Table | Comparison)]
            for name, found in exhibits.items()
        }
        self.output.show("experiment", {"folder": folder, "all_done": done, "tables": tables})
        return 0 if done else 1

    def make_scale(self) -> "Scale":
        """Return the scale, changed by the options; ``Scale.changed_by`` lists these options.

        Raises:
            UsageError: If a name is unknown or given twice.
        """
        from pogm.algorithms import all_algorithms
        from pogm.benchmark.plan.combination import algorithm_names
        from pogm.data.datasets import is_named_dataset
        from pogm.experiments.base import find_scale
        from pogm.models import check_network

        scale, given = find_scale(self.scale), self.changes
        changes: dict[str, Any] = {}
        words: list[str] = []
        plugins = all_algorithms().plugins  # the other names are names of rows
        paths = {name: algorithm_names([name])[0] for name in given.algorithms if plugins.has(name)}
        algorithms = tuple(paths.get(name, name) for name in given.algorithms)
        folders = {name: self._find_folder(name) for name in given.datasets if not is_named_dataset(name)}
        datasets = tuple(folders[name].title if name in folders else name for name in given.datasets)
        lists: dict[str, Sequence[str]] = {"datasets": datasets, "algorithms": algorithms}
        for name, values in lists.items():
            if values:
                changes[name] = values
                words += [f"--{name}", *values]
        if given.settings:
            changes["settings"] = given.settings
            words += [word for setting in given.settings for word in ("--set", setting)]
        for name in ("network", "precision", "steps", "evaluate_every", "evaluation", "trials"):
            if (value := getattr(given, name)) is not None:
                changes[name] = value
                words += [f"--{name.replace('_', '-')}", str(value)]
        for name, values in lists.items():
            if len(set(values)) < len(values):
                raise UsageError(f"Expected each of --{name} once; found {', '.join(values)}. Leave one out.")
        if "network" in changes:
            check_network(changes["network"])
            changes["large_network"] = None
        if "trials" in changes:
            changes["seeds"] = changes["trials"]  # repetitions of the figures
        if "steps" in changes and scale.latest_start is not None:
            changes["latest_start"] = min(scale.latest_start, max(1, changes["steps"] // 3))
        changes |= {"others": tuple(paths.values()), "folders": tuple(folders.values())}
        return self._add_weights(replace(scale, **changes, changed_by=tuple(words)))

    def _find_folder(self, path: str) -> "DomainDataset":
        """Return the dataset at a path. Its images are read in a dry run, too: the ids of trials depend on them."""
        from pogm.benchmark.plan.datasets import find_dataset
        from pogm.benchmark.progress.run_progress import show_image_progress

        return find_dataset(path, self.execution.data.folder, show_image_progress)

    def _add_weights(self, scale: "Scale") -> "Scale":
        """Return the scale with weights from a file, and with the network that the file is known to belong to.

        The file is that of --weights; without it, a known file at or in $POGM_WEIGHTS, unless --network is given. A
        dry run does not need the file.
        """
        from pogm.models.weights import WEIGHTS_VARIABLE, find_known_file, find_network, hash_weights

        path = self.planning.usable_weights(self.execution.weights)
        if path is None and self.execution.weights is not None:
            return replace(scale, changed_by=(*scale.changed_by, "--weights", str(self.execution.weights)))
        if path is None:
            found = os.environ.get(WEIGHTS_VARIABLE)
            large = any(scale.dataset(name).large for name in scale.datasets)
            path = find_known_file(Path(found)) if found and large and not scale.was_given("--network") else None
            if path is None:
                return scale
            print_line(
                f"pogm: Initial weights of networks for photographs: {path}, from ${WEIGHTS_VARIABLE}.",
                file=sys.stderr,
            )
        weights, words = hash_weights(path), [*scale.changed_by, "--weights", str(path)]
        network = None if scale.was_given("--network") else find_network(weights)
        if network is not None:
            scale = replace(scale, large_network=network)
        return replace(scale, weights=weights, changed_by=tuple(words))

    def _show_plan(
        self, plans: Mapping[str, "Plan"], scale: "Scale", runs: Path, run_options: "RunOptions"
    ) -> dict[str, Any]:
        """Print the number of runs of each experiment, then of each row and dataset, and their time if it is known."""
        from pogm.cli.planning import RunCounts, read_finished, show_plan
        from pogm.experiments.output import describe_changes
        from pogm.experiments.trials import finished_keys, trial_keys

        if scale.changed_by:
            print_line(describe_changes(scale))
        finished = read_finished(runs)
        counts, planned = RunCounts(), 0
        every: dict[Any, bool] = {}  # done or not, by key
        for name, plan in plans.items():
            own: dict[Any, bool] = {}
            for row, trials in plan.items():
                done = finished_keys(trials, finished)
                label = " + ".join((row.algorithm, *row.modifiers))
                for key, dataset in trial_keys(trials).items():
                    own[key] = key in done
                    if key not in every:
                        counts.add(row.name, label, dataset, done=own[key])
                        every[key] = own[key]
            planned += len(own)
            print_line(f"{name:<16} {len(own)} runs, {sum(own.values())} of them done")
        shared = planned - len(every)
        print_line(f"All {len(every)} runs ({shared} of the above are shared), {sum(every.values())} of them done.")
        return show_plan(counts, runs, finished, run_options, self.scheduling.workers) if every else {}


COMMAND = Experiment
