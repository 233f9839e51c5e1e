"""Update the generated parts of results/ from the packed records: PLAN.md, and the tables of the pages.

python benchmarks/update_results.py [--check]

A table of a page (results/**/README.md) follows a comment that names it, such as ``<!-- records: evidence,
colored_mnist -->``; see `pogm.experiments.evidence_pages`. The text around the tables is written by hand. With
``--check`` nothing is written, and the exit code is 1 if a file is not up to date.
"""

import sys
from pathlib import Path

from pogm._system.files import write_atomic
from pogm.experiments.evidence_pages import update_tables
from pogm.experiments.evidence_plan import plan_text
from pogm.experiments.protocol import read_packed, sweeps_with_runs

RESULTS = Path(__file__).parent.parent / "results"


def main(check: bool = False) -> int:
    """Write or check all files and return the exit code."""
    runs = read_packed(RESULTS)
    complete = sweeps_with_runs(runs)
    wanted = {RESULTS / "PLAN.md": plan_text(runs)}
    wanted |= {path: update_tables(path.read_text("utf-8"), complete) for path in sorted(RESULTS.rglob("README.md"))}
    old = [path for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in old:
        print(f"{path.relative_to(RESULTS.parent)}: {'not up to date' if check else 'updated'}")
        if not check:
            write_atomic(path, wanted[path].encode())
    return int(check and bool(old))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
