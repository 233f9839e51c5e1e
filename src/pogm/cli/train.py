"""``pogm train``: from images of several sites to a model."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, ClassVar

from pogm._system.messages import note, suggest
from pogm._system.terminal import print_line
from pogm.cli.json_output import Output
from pogm.cli.options import MOST_SEED, MOST_STEPS, Execution, Hyperparameters, workers_option
from pogm.cli.parser import Command, argument, group, option

if TYPE_CHECKING:
    from pogm.benchmark.plan.trial import Trial
    from pogm.benchmark.runs.runner import RunOptions
    from pogm.data.datasets.base import Domain, DomainDataset
    from pogm.deployment.training_plan import TrainingPlan

MOST_MEMBERS = 100  # runs of one average


@dataclass(frozen=True, kw_only=True)
class Train(Command):
    """Train a model on images or tables of several sites, and forecast its accuracy at a new site."""

    trains: ClassVar[bool] = True
    examples: ClassVar[str] = """
pogm train ./hospitals --out model
pogm train ./hospitals --hold-out site_c --out model                  then: pogm evaluate model ./hospitals/site_c
pogm train ./hospitals --compare ERM Fish POGM --minutes 30 --out model
pogm train ./hospitals --soup 3 --out model                           average the weights of three runs
pogm train patients.csv:label=outcome,domain=hospital --out model      a table, or arrays in an .npz file
pogm train ./hospitals --weights mobilenet_v2_imagenet.safetensors --set image_size=128 --out model"""
    notes: ClassVar[str] = (
        "The folder has the form <site>/<class>/<image>. For the forecast, each site is held out once; then a model\n"
        "is trained on all sites. The same command again continues after a stop, with the minibatches that are left\n"
        "and again --minutes of time."
    )

    folder: str = argument(
        "Folder of images <site>/<class>/<image>, a metadata file, a table, or a dataset.", complete="datasets"
    )
    algorithm: str = option(
        "Algorithm that trains the model, alone or with modifiers: 'ERM + SWAD' (see: pogm list).",
        "ERM",
        complete="algorithms",
    )
    compare: tuple[str, ...] = option(
        "Compare these algorithms at held-out sites, and train with the best (default: only --algorithm).",
        (),
        metavar="NAME",
        complete="algorithms",
    )
    hold_out: tuple[str, ...] = option(
        "Site that is never used for training, to evaluate the model on; may be repeated (default: none).",
        (),
        repeat=True,
        metavar="SITE",
    )
    network: str | None = option(
        "Name of the network (default: that of --weights, or resnet50).", None, complete="networks"
    )
    minutes: float | None = option(
        "Time for the whole command, in minutes: it sets the number of steps, and stops runs that are slower than "
        "expected (default: no limit).",
        None,
        least=0.01,
        most=10**5,
    )
    steps: int | None = option(
        "Number of minibatches of each site (default: 20 passes over a site of median size).",
        None,
        least=1,
        most=MOST_STEPS,
    )
    soup: int = option(
        "Train N runs with the same initial weights and other minibatches instead of each run, and average the weights "
        "of those that do not lower the validation accuracy (default: 1). For pretrained networks.",
        1,
        least=1,
        most=MOST_MEMBERS,
    )
    seed: int = option("Seed of weights, minibatches and splits.", 0, least=0, most=MOST_SEED)
    precision: str = option("Precision of the network: fp32, tf32, bf16 or fp64.", "fp32")
    settings: Hyperparameters = group(Hyperparameters)
    out: Path = option("Folder of the model.", metavar="FOLDER")
    dry_run: bool = option("Show the runs and their time, and stop.", False)
    workers: int = workers_option()
    execution: Execution = group(Execution)
    output: Output = group(Output)

    def run(self) -> int:
        """Train and write the model."""
        from pogm.data.images.index import reuse_scans

        with reuse_scans():
            return self._train()

    def _train(self) -> int:
        from pogm._system.errors import UsageError
        from pogm.benchmark.plan.datasets import find_dataset
        from pogm.benchmark.progress.run_progress import show_image_progress
        from pogm.cli.execution import check_weights_exist, make_run_options, prepare
        from pogm.deployment import training_plan
        from pogm.models.weights import RANDOM

        start = time.monotonic()
        if self.minutes is not None and self.steps is not None:
            raise UsageError("Expected --minutes or --steps; found both. Leave one out.")
        run_options = make_run_options(self.execution, [self.folder], self.out)
        name = self.settings.add_to(self.folder)
        dataset = find_dataset(name, run_options.data, show_image_progress)
        options = self._plan_options(dataset)
        steps = training_plan.read_steps(self.out, options)
        plan = self._plan(dataset, steps or training_plan.LEAST_STEPS)
        check_weights_exist(plan.trials[:1], run_options)
        if self.soup > 1 and plan.trials[0].training.weights == RANDOM:
            note(
                "--soup is for pretrained networks; averages of networks that begin with random weights gained little "
                "or nothing in our comparisons."
            )
        prepare(plan.trials[:1], run_options)
        domains = plan.trials[0].dataset.load(run_options.data, self.seed)  # with the settings of the command line
        training_plan.check_data(plan, domains)
        counts = self._show_sites(dataset, domains)
        deadline = None if self.minutes is None else start + 60 * self.minutes
        if steps is None:
            steps = self._choose_steps(plan, dataset, counts, run_options, deadline)
            plan = self._plan(dataset, steps)
            if not self.dry_run:
                training_plan.write_steps(self.out, options, steps)
        if self.dry_run:
            self._show_plan(plan, run_options)
            return 0
        return self._run_plan(plan, run_options, deadline)

    def _plan_options(self, dataset: "DomainDataset") -> dict[str, Any]:
        """Return everything that determines the runs, to recognise an interrupted training."""
        return {
            "content": dataset.to_json(),
            "algorithms": list(self.compare or (self.algorithm,)),
            "hold_out": list(self.hold_out),
            "settings": list(self._setting_texts()),
            "minutes": self.minutes,
            "steps": self.steps,
            "seed": self.seed,
            "precision": self.precision,
            **({"soup": self.soup} if self.soup > 1 else {}),
        }

    def _setting_texts(self) -> tuple[str, ...]:
        from pogm.cli.execution import network_settings

        return network_settings(self.settings, self.execution.weights, self.network)

    def _plan(self, dataset: "DomainDataset", steps: int) -> "TrainingPlan":
        from pogm.deployment.training_plan import make_plan

        algorithms = self.compare or (self.algorithm,)
        settings = self._setting_texts()
        fields = {"seed": self.seed, "precision": self.precision}
        return make_plan(dataset, algorithms, self.hold_out, settings, steps, self.soup, **fields)

    def _show_sites(self, dataset: "DomainDataset", domains: "Sequence[Domain]") -> list[int]:
        """Print the number of images or samples of each site, and return it for the training sites."""
        from pogm.data.datasets.array_dataset import ArrayDataset

        counts = {name: len(domain.labels) for name, domain in zip(dataset.domains, domains, strict=True)}
        shown = ", ".join(f"{name} {count}{' (held out)' * (name in self.hold_out)}" for name, count in counts.items())
        task = "regression" if dataset.task == "regression" else f"{dataset.num_classes} classes"
        what = "samples" if isinstance(dataset, ArrayDataset) else "images"
        print_line(f"{dataset.title}: {task}; {what} by site: {shown}")
        return [count for name, count in counts.items() if name not in self.hold_out]

    def _choose_steps(
        self,
        plan: "TrainingPlan",
        dataset: "DomainDataset",
        counts: list[int],
        run_options: "RunOptions",
        deadline: float | None,
    ) -> int:
        from pogm.deployment.training_plan import default_steps, steps_in_time

        if self.steps is not None:
            return self.steps
        if deadline is not None:
            return steps_in_time(plan, deadline, run_options, self.workers)
        return default_steps(dataset, counts, plan.trials[0].training.batch_size)

    def _show_plan(self, plan: "TrainingPlan", run_options: "RunOptions") -> None:
        from pogm.cli.planning import show_estimates

        finals = plan.members(next(iter(plan.finals.values())))
        count = str(self.soup) if self.soup > 1 else "one"
        average = f" Each model averages the weights of up to {self.soup} runs." if self.soup > 1 else ""
        print_line(
            f"{len(plan.trials)} runs that hold out a site, then {count} on all sites; {finals[0].steps} minibatches "
            f"each.{average}"
        )
        self.output.show("train", show_estimates([*plan.trials, *finals], run_options, self.workers))

    def _run_plan(self, plan: "TrainingPlan", run_options: "RunOptions", deadline: float | None) -> int:
        """Run what is left, choose the algorithm, train on all sites, and write the model."""
        from pogm.deployment import training
        from pogm.deployment.forecast import compare_best
        from pogm.deployment.training_plan import plan_deadlines

        first_end, end = plan_deadlines(plan, deadline, run_options, self.workers)
        cut = self._run_trials(plan.first_trials, run_options, first_end)
        if cut is None:
            return 1
        note(
            "Averaging weights and predicting the held-out sites" if self.soup > 1 else "Predicting the held-out sites"
        )
        results = {
            name: list(training.held_out_results(plan, name, self.out, self.hold_out, run_options, cut))
            for name in plan.forecasts
        }
        chosen, forecasts = training.choose_algorithm(results)
        for name, found in forecasts.items():
            mark = " <- chosen" if name == chosen and len(forecasts) > 1 else ""
            print_line(f"{name}: {found.text()}{mark}")
        if len(forecasts) > 1:
            print_line(compare_best(forecasts))
        final = plan.finals[chosen]
        if final not in plan.first_trials:
            note(f"Training {chosen} on all sites: {', '.join(plan.sites)}")
            more = self._run_trials(plan.members(final), run_options, end)
            if more is None:
                return 1
            cut |= more
        note("Writing the model and its card")
        description = training.finish_model(plan, chosen, results, forecasts, self.out, run_options, cut)
        step, averaged = description["selection"]["step"], description.get("combination", {}).get("kept", 1)
        if cut:
            last = f"{'up to ' * (averaged > 1)}step {step}"
            print_line(
                f"The time limit stopped {len(cut)} runs before their last minibatch, and their best steps so far were "
                f"used: for the model, {last} of {final.steps - 1}. The same command continues them."
            )
        document = {
            "folder": self.out,
            "algorithm": chosen,
            "forecasts": {
                name: {"mean": f.mean, "low": f.low, "high": f.high, "accuracies": f.accuracies, "text": f.text()}
                for name, f in forecasts.items()
            },
            "sites": plan.sites,
            "step": step,
            "steps": final.steps,
            "averaged_runs": averaged,
            "stopped_runs": len(cut),
            "card": self.out / "card.html",
        }
        self.output.show("train", document, lambda: self._summarise(chosen, final, averaged))
        return 0

    def _run_trials(
        self, trials: "Sequence[Trial]", run_options: "RunOptions", deadline: float | None
    ) -> set[str] | None:
        """Run what is left of the trials. Return the ids of those that were stopped in time; None if one failed."""
        from pogm.benchmark.executors.local import run_all
        from pogm.benchmark.executors.waiting_trials import run_waiting_trials
        from pogm.benchmark.progress.sweep_progress import track_steps
        from pogm.cli.results import print_failures
        from pogm.deployment.training import RUNS

        folder = self.out / RUNS
        execute = partial(run_all, workers=self.workers, deadline=deadline)
        running = run_waiting_trials(trials, folder, run_options, execute, retry_failed=True)
        outcomes = list(track_steps(running, trials, folder))
        if print_failures(outcomes, folder):
            return None
        return {outcome.trial.id for outcome in outcomes if outcome.is_cut}

    def _summarise(self, chosen: str, final: "Trial", averaged: int) -> None:
        from pogm.cli.single_run import model_commands
        from pogm.data.dataset_paths import is_file_name, split_options

        average = f", {f'mean of {averaged}' if averaged > 1 else 'one'} of {self.soup} runs" if self.soup > 1 else ""
        print_line(f"Model: {self.out} ({chosen}{average}), with its card: {self.out / 'card.html'}")
        commands = model_commands(final, self.out)
        if not any(command.startswith("pogm evaluate") for command in commands):  # its samples are not read from files
            suggest(commands)
            return
        what = "IMAGES" if (self.out / "hardest_images.png").exists() else "FILE"
        new = "NEW_SITE" if what == "IMAGES" else "FILE"
        if self.hold_out:
            is_file = is_file_name(split_options(self.folder)[0])
            site, folder = self.hold_out[0], self.folder.rstrip("/")
            new = f"{quote(folder)} --site {quote(site)}" if is_file else quote(f"{folder}/{site}")
        out = quote(str(self.out))
        print_line(f"Next: pogm evaluate {out} {new}    or    pogm predict {out} {what} --csv predictions.csv")


COMMAND = Train
