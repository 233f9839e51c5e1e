"""``pogm status``: state of the runs of a sweep, of experiments, or of any other folder."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pogm._system.terminal import print_line
from pogm.cli.json_output import Output
from pogm.cli.parser import Command, argument, group

SHOWN = 20  # problems


@dataclass(frozen=True, kw_only=True)
class Status(Command):
    """Count the runs in a folder that are done, running, interrupted, failed or waiting."""

    examples: ClassVar[str] = """
pogm status runs/sweep
pogm status runs/paper                              all scales of pogm experiment; or one: runs/paper/embedded"""

    folder: Path = argument("Folder of a sweep, of experiments, or of other runs.")

    output: Output = group(Output)

    def run(self) -> int:
        """Print a line for each algorithm and dataset, and the total."""
        from pogm.benchmark.results.record_digest import SWEEP
        from pogm.benchmark.runs.plan_index import count_states, read_plan_index
        from pogm.benchmark.runs.state import STATES, find_problems

        if (self.folder / SWEEP).exists():
            if (planned := read_plan_index(self.folder)) is not None:
                counts = count_states(self.folder, planned)
            else:
                from pogm.benchmark.runs.sweep_directory import status

                counts = status(self.folder)
            problems = list(find_problems(self.folder))
        else:
            counts, problems = self._count_runs()
        _print_problems(problems)
        total = sum(counts.values(), Counter())

        def show_text() -> None:
            for (dataset, label), found in counts.items():
                listed = ", ".join(f"{found[state]} {state}" for state in STATES if found[state])
                print_line(f"{dataset}  {label}  {listed}")
            count = total.total()
            states = ", ".join(f"{total[state]} {state}" for state in STATES)
            print_line(f"{count} run{'s' * (count != 1)}: {states}")

        rows = [
            {"dataset": dataset, "label": label, **{state: found[state] for state in STATES}}
            for (dataset, label), found in counts.items()
        ]
        summed = {"runs": total.total(), **{state: total[state] for state in STATES}}
        self.output.show(
            "status", {"folder": self.folder, "total": summed, "rows": rows, "problems": problems}, show_text
        )
        return 0

    def _count_runs(self) -> tuple[dict[tuple[str, str], Counter[str]], list[str]]:
        """Count the runs and planned trials at any depth, by dataset, label and state; return the problems, too."""
        from pogm._system.errors import UsageError
        from pogm.report.watch import Watcher

        found = Watcher(self.folder).read()
        if not found.started and not found.waiting:
            raise UsageError(
                f"Expected the folder of a sweep, with sweep.json, or a folder of runs; found none in {self.folder}. "
                "Start one with: pogm sweep (--dry-run writes nothing)"
            )
        failed = [one.run for one in found.started if one.state == "failed"]
        problems = [*found.problems, *(f"{run.folder} failed: {run.failure}" for run in failed)]
        return found.count_states(), problems


def _print_problems(problems: Sequence[str]) -> None:
    """Print the last line of each problem, which is the message of a traceback; at most `SHOWN`, and each once."""
    alike: dict[str, list[str]] = {}
    for problem in problems:
        first, *others = problem.strip().splitlines()
        text = f"{first}{f' … {others[-1]}' if others else ''}"
        alike.setdefault(text.partition(" failed: ")[2] or text, []).append(text)
    shown = list(alike.values())[:SHOWN]
    for text, *rest in shown:
        same = f" (and {len(rest)} more with the same message)" if rest else ""
        print(f"pogm: {text}{same}", file=sys.stderr)
    if left := len(problems) - sum(map(len, shown)):
        print(f"pogm: And {left} more. See: pogm report", file=sys.stderr)


COMMAND = Status
