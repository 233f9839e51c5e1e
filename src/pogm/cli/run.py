"""``pogm run``: one run."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pogm._system.messages import note
from pogm._system.terminal import print_line
from pogm.cli.json_output import Output
from pogm.cli.options import (
    MOST_SAMPLES,
    MOST_SEED,
    Distributed,
    Execution,
    Hyperparameters,
    Training,
    modifiers_option,
    probe_option,
)
from pogm.cli.parser import Command, group, option

if TYPE_CHECKING:
    from pogm.benchmark.plan.trial import Trial
    from pogm.benchmark.runs.options import RunOptions


@dataclass(frozen=True, kw_only=True)
class Run(Command):
    """Train one algorithm on one dataset, with some domains held out."""

    trains: ClassVar[bool] = True
    examples: ClassVar[str] = """
pogm run --dataset RotatedDigits --algorithm POGM --test-domain 75 --out runs/first
pogm run --dataset ColoredMNIST --data ~/data --algorithm Fishr --set penalty=100 --test-domain=-90% --out runs/second
pogm run --dataset RotatedDigits --algorithm OfficialPOGM --with Mixup --test-domain 0 --out runs/third
pogm run --dataset ./hospitals --algorithm POGM --test-domain site_c --out runs/fourth      a folder of your images
pogm run --dataset sites/metadata.csv:label=y --group patient --algorithm POGM --test-domain c --out runs/fifth
pogm run --dataset RotatedDigits --algorithm my_module:MyMethod --test-domain 0 --out runs/sixth      your own class
torchrun --nproc-per-node 4 -m pogm run --dataset DomainNet ...     one model on four GPUs, the same result"""
    notes: ClassVar[str] = "The same command again continues a stopped run, and does nothing if the run is done."
    under_torchrun: ClassVar[bool] = True

    dataset: str = option(
        "Name of a dataset (see: pogm list datasets), a folder <domain>/<class>/<image>, or a metadata file with the "
        "columns path, label and domain.",
        complete="datasets",
    )
    algorithm: str = option(
        "Name of an algorithm (see: pogm list algorithms), or the path of a class: module:Class.",
        complete="algorithms",
    )
    preset: str | None = option("Named set of hyperparameters of the algorithm (default: none).", None)
    modifiers: tuple[str, ...] = modifiers_option("the algorithm")
    test_domain: tuple[str, ...] = option(
        "Domains to hold out, by name or by number from 0 (default: none; needs --train-on-all).",
        (),
        metavar="DOMAIN",
    )
    train_on_all: bool = option(
        "Train on all domains and hold out none, for a model that will be used on new domains.", False
    )
    samples: int | None = option(
        "Train on this many samples of each training domain at most, a fifth of them for validation; the held-out "
        "domains keep all (default: all samples).",
        None,
        least=10,
        most=MOST_SAMPLES,
    )
    settings: Hyperparameters = group(Hyperparameters)
    training: Training = group(Training)
    seed: int = option("Seed of the initial weights and of the minibatches.", 0, least=0, most=MOST_SEED)
    init_seed: int | None = option(
        "Seed of the initial weights alone; pogm soup can average runs with the same one (default: --seed).",
        None,
        least=0,
        most=MOST_SEED,
    )
    data_seed: int | None = option(
        "Seed of generated datasets, such as RotatedDigits (default: --seed).", None, least=0, most=MOST_SEED
    )
    trial_seed: int | None = option(
        "Seed of the split into training and validation images (default: --seed).", None, least=0, most=MOST_SEED
    )
    probe_every: int = probe_option()
    out: Path = option("Folder of the run.", metavar="FOLDER")
    allow_change: bool = option(
        "Continue the run in --out although --steps or --evaluate-every differ from those that it began with; list the "
        "changes. Other settings cannot change.",
        False,
    )
    dry_run: bool = option(
        "Print the trial as JSON, its sizes and its time, and stop. Reads the data, and trains a few steps.", False
    )
    execution: Execution = group(Execution)
    distributed: Distributed = group(Distributed)
    output: Output = group(Output)

    def run(self) -> int:
        """Train, print a line for each evaluation, and print a summary."""
        from pogm._system.errors import UsageError
        from pogm.cli.execution import add_launch, make_run_options
        from pogm.data.images.index import reuse_scans

        if bool(self.test_domain) == self.train_on_all:
            found = "both" if self.train_on_all else "neither"
            raise UsageError(
                f"Expected --test-domain DOMAIN or --train-on-all; found {found}. Name the domain to hold out; "
                "pogm list datasets shows the names."
            )
        run_options = add_launch(make_run_options(self.execution, [self.dataset], self.out), self.distributed)
        with reuse_scans():  # an image folder is listed once
            trial = self._make_trial(run_options)
            (self._show if self.dry_run else self._train)(trial, run_options)
        return 0

    def _make_trial(self, run_options: "RunOptions") -> "Trial":
        from pogm.benchmark.plan.parsing import build_trial
        from pogm.benchmark.progress.run_progress import show_image_progress
        from pogm.cli.execution import setting_texts
        from pogm.data.images.parallel import no_progress
        from pogm.diagnostics import Probe

        return build_trial(
            self.settings.add_to(self.dataset),
            self.algorithm,
            self.test_domain,
            data=run_options.data,
            preset=self.preset,
            modifiers=self.modifiers,
            settings=setting_texts(self.settings, self.execution.weights),
            steps=self.training.steps,
            evaluate_every=self.training.evaluate_every,
            seed=self.seed,
            init_seed=self.init_seed,
            data_seed=self.data_seed,
            trial_seed=self.trial_seed,
            precision=self.training.precision,
            evaluation=self.training.evaluation,
            samples=self.samples,
            probe=Probe.each(self.probe_every),
            progress=show_image_progress if run_options.launch is None else no_progress,
        )

    @property
    def _changes_run(self) -> bool:
        """True if an earlier run may continue with other settings."""
        from pogm.benchmark.results.record_digest import TRIAL

        return self.allow_change and (self.out / TRIAL).exists()

    def _show(self, trial: "Trial", run_options: "RunOptions") -> None:
        """Print the trial, its sizes and its time."""
        from pogm._system.files import canonical_json
        from pogm.benchmark.runs.directory import check_change, check_owner
        from pogm.cli.single_run import show_run

        (check_change if self._changes_run else check_owner)(self.out, trial)
        plan = {"dry_run": True, "folder": self.out, "trial": trial.id, "content": trial.to_json()}
        if run_options.is_first_process:
            self.output.show("run", plan, lambda: print_line(canonical_json(trial.to_json()), flush=True))
        show_run(trial, self.out, run_options)

    def _train(self, trial: "Trial", run_options: "RunOptions") -> None:
        from pogm.benchmark.runs.directory import change_run
        from pogm.cli.execution import prepare
        from pogm.cli.single_run import train_run

        launch = run_options.launch
        if launch is None or launch.local_rank == 0:  # one process of each machine; the others wait for it
            prepare([trial], run_options)
        if run_options.is_first_process:
            where = f"{trial.dataset.title}, trial {trial.id}, into {self.out}"
            count = f", with {launch.world_size} processes" if launch and launch.world_size > 1 else ""
            note(f"{trial.label} on {where}{count}")
            if self._changes_run:
                note(f"Changes of {self.out}: {change_run(self.out, trial) or 'none'}")
        train_run(trial, self.out, run_options, self.output, "run")


COMMAND = Run
