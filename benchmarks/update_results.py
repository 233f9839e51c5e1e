"""Update the generated parts of results/ from the packed records: PLAN.md, and the tables of the pages.

python benchmarks/update_results.py [--check]

A sweep with complete rows of ERM and another method that is on no page gets a section in results/SCALE/README.md; edit
its text. A table of a page (results/**/README.md) follows a comment that names it, such as ``<!-- records: evidence,
colored_mnist -->``; see `pogm.evidence.pages`. The text around the tables is written by hand. With
``--check`` nothing is written, and the exit code is 1 if a file is not up to date.
"""

import sys
from pathlib import Path

from pogm._system.files import write_atomic
from pogm.evidence.archives import compared_sweeps, complete_sweeps, read_all
from pogm.evidence.pages import MARK, new_section, update_tables
from pogm.evidence.plan import plan_text
from pogm.evidence.sweeps import SWEEPS

RESULTS = Path(__file__).parent.parent / "results"
HEAD = """\
# Evidence: which method helps

By the [protocol](../PROTOCOL.md). `python benchmarks/update_results.py` writes the tables from the records,
`tests/test_results.py` checks them, and the [plan](../PLAN.md) lists what is missing.
"""


def main(check: bool = False) -> int:
    """Write or check all files and return the exit code."""
    runs = read_all(RESULTS)
    complete = complete_sweeps(runs)
    wanted = {RESULTS / "PLAN.md": plan_text(runs)}
    wanted |= {path: update_tables(path.read_text("utf-8"), complete) for path in sorted(RESULTS.rglob("README.md"))}
    shown = {mark["sweep"] for text in wanted.values() for mark in MARK.finditer(text) if mark["kind"] == "evidence"}
    for sweep, found in compared_sweeps({sweep: complete[sweep] for sweep in SWEEPS if sweep in complete}).items():
        if sweep.name not in shown:
            path = RESULTS / sweep.scale_name / "README.md"
            path.parent.mkdir(exist_ok=True)
            wanted[path] = wanted.get(path, HEAD) + new_section(sweep, found)
    old = [path for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in old:
        print(f"{path.relative_to(RESULTS.parent)}: {'not up to date' if check else 'updated'}")
        if not check:
            write_atomic(path, wanted[path].encode())
    return int(check and bool(old))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
