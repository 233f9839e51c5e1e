"""Options and actions that ``pogm soup`` and ``pogm ensemble`` share. Torch is imported when a command runs."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pogm._system.messages import suggest
from pogm._system.terminal import print_line
from pogm.cli.json_output import Output
from pogm.cli.options import Data
from pogm.cli.parser import group, option

if TYPE_CHECKING:
    from pogm.benchmark.combining.combine import Planned


@dataclass(frozen=True, kw_only=True)
class Combining:
    """Runs that are combined, and where."""

    title: ClassVar[str] = "runs to combine"
    algorithms: tuple[str, ...] = option(
        "Combine only runs with these labels in tables, such as ERM or 'ERM + Mixup' (default: all).",
        (),
        metavar="LABEL",
        complete="algorithms",
    )
    across_algorithms: bool = option(
        "Combine the runs of all algorithms with each other (default: each algorithm for itself).", False
    )
    pool_trials: bool = option(
        "Combine the runs of all trials into one model, although their splits differ. Validation images are those that "
        "no run has trained on (default: one model for each trial).",
        False,
    )
    data: Data = group(Data)
    device: str = option("cpu, cuda, cuda:1, ... (default: cuda if a GPU is found, else cpu).", "auto")
    dry_run: bool = option("Check the runs, list the combinations, and stop.", False)

    def run(self, command: str, folder: Path, out: Path, rules: Sequence[str], output: Output) -> int:
        """Combine the runs of a folder, print the tables and the next commands, and return the exit code.

        Args:
            command: Name of the command.
            folder: Folder of the runs.
            out: Folder for the combined models.
            rules: As in `plan_combinations`.
            output: Form of the result.
        """
        from pogm.benchmark.combining.combine import combine, plan_combinations
        from pogm.benchmark.combining.members import find_groups
        from pogm.benchmark.progress.run_progress import show_image_progress, show_progress
        from pogm.benchmark.results.records import read_runs
        from pogm.benchmark.runs.provenance import read_provenance_path
        from pogm.data.images.index import reuse_scans
        from pogm.engine.engine import Engine

        engine = Engine(device=self.device)
        engine.torch_device()  # refuses a device that does not exist
        groups = find_groups(
            read_runs(folder),
            labels=self.algorithms,
            across_algorithms=self.across_algorithms,
            pool_trials=self.pool_trials,
        )
        planned = plan_combinations(groups, out, rules, show_image_progress)
        if self.dry_run:
            document = {"dry_run": True, "folder": out, "groups": [one.to_json() for one in planned]}
            output.show(command, document, lambda: print_plan(planned))
            return 0
        data = self.data.for_run(read_provenance_path("data", groups[0].members[0].run.folder)).folder
        with reuse_scans():  # an image folder is listed once
            for dataset in {one.group.trial.dataset for one in planned if one.left}:
                dataset.prepare(data, show_image_progress)
            for _ in show_progress(combine(planned, data, engine), sum(one.passes for one in planned), "models"):
                pass
        return self._finish(command, planned, folder, out, output)

    def _finish(self, command: str, planned: "Sequence[Planned]", folder: Path, out: Path, output: Output) -> int:
        from pogm.benchmark.results.accuracy_tables import dataset_table
        from pogm.benchmark.results.records import read_runs
        from pogm.benchmark.results.selection import TRAINING_DOMAIN
        from pogm.cli.single_run import model_commands
        from pogm.cli.tables import find_tables

        inside = out.resolve().is_relative_to(folder.resolve())
        runs = read_runs(folder) if inside else read_runs(folder, out)
        datasets = dict.fromkeys(one.group.members[0].run.dataset for one in planned)
        tables = [dataset_table(runs, name, TRAINING_DOMAIN) for name in datasets]
        has_tables = not all(table.empty for table in tables)  # they are empty if no held-out domain was evaluated
        in_json = find_tables(runs, selections=(TRAINING_DOMAIN,)) if has_tables and output.json is not None else None
        document: dict[str, Any] = {
            "folder": out,
            "groups": [one.to_json() for one in planned],
            "tables": in_json.to_json() if in_json is not None else [],
        }

        def show_text() -> None:
            if has_tables:
                print("\n".join(table.text() for table in tables), end="")
            else:
                print_validation(planned)

        output.show(command, document, show_text)
        largest = min(planned, key=lambda one: len(one.group.trial.test_domains))  # trained on the most domains
        first = next(iter(largest.folders.values()))
        shown = [folder] if inside else [folder, out]
        report = [f"pogm report {shlex.join(map(str, shown))}"] if has_tables else []
        suggest([*report, *model_commands(largest.group.members[0].trial, first)[-1:]])
        return 0


def print_plan(planned: "Sequence[Planned]") -> None:
    """Print one line for each combination: its members, their cost, and if it is done."""
    from pogm.benchmark.combining.folder import label_of
    from pogm.benchmark.progress.estimate import duration

    for one in planned:
        run, count = one.group.members[0].run, len(one.group.members)
        cost = "" if one.group.seconds is None else f", trained for {duration(one.group.seconds)}"
        for rule, folder in one.folders.items():
            state = "to do" if rule in one.left else "done"
            print_line(
                f"{run.dataset}  {one.group.held_out}  {label_of(one.group, rule)}  {count} runs{cost}  {state}  "
                f"{folder}"
            )
    print_line(f"{sum(one.passes for one in planned)} models to evaluate.")


def print_validation(planned: "Sequence[Planned]") -> None:
    """Print the validation score of each combination, for runs that have no accuracy at a held-out domain."""
    from pogm.benchmark.combining.folder import label_of
    from pogm.benchmark.results.combined import COMBINATION
    from pogm.benchmark.runs.selected_model import MODEL, read_description

    for one in planned:
        group = one.group
        form = "R² {:.3f}" if group.trial.dataset.task == "regression" else "{:.1%}"
        for rule, folder in one.folders.items():
            description = read_description(folder / MODEL)
            score, facts = description["selection"]["validation"], description[COMBINATION]
            shown = "unknown" if score is None else form.format(score)
            print_line(
                f"{group.members[0].run.dataset}  {group.held_out}  {label_of(group, rule)}  "
                f"{facts['kept']} of {facts['considered']} runs  validation: {shown}  "
                f"{folder}"
            )
