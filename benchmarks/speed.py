"""Time and memory of our steps, compared with handwritten loops (floors), DomainBed and the authors' code.

python benchmarks/speed.py --device cuda [--rows mnist pacs meta] [--engine compile=on ...] [--data FOLDER] [--out ...]
python benchmarks/speed.py --device cpu [--out ...]

Rows on a GPU: ``mnist``, a ColoredMNIST trial of protocol size, alone and several at once; ``pacs``, a minibatch of
PACS with a ResNet-50, and its memory; ``meta``, the meta-update alone. Row on a CPU: ``cpu``, the time of our step
divided by that of a handwritten loop, measured alternately on one thread. Floors are handwritten loops (`bare.py`),
measured in the same run. Data are noise of the right shape, except ColoredMNIST if ``--data`` has MNIST. A measurement
that fails reports the reason, and the others continue.

python benchmarks/speed.py --page docs/speed.md [RESULTS.json ...]

writes the tables of the page, including those of `growth.py` and `precision.py`. The text above them stays as it is.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import clock
import growth
import noise
import precision
from rows.cpu import cpu
from rows.figure import Figure, MeasurementError, cells, floors_table, reason, table
from rows.meta import meta
from rows.mnist import mnist
from rows.pacs import pacs
from rows.run import SMALL, Measurement, Run, Size, engine_options, facts, use_cache

ROWS: dict[str, Callable[[Run], Iterator[Measurement]]] = {"mnist": mnist, "pacs": pacs, "meta": meta, "cpu": cpu}


def measure(run: Run, rows: Sequence[str], each: Callable[[Figure], None]) -> list[Figure]:
    """Measure every figure of some rows. A figure that fails, or starts after the time limit, has the reason."""
    figures = []
    for row in rows:
        for work, measure in ROWS[row](run):
            try:
                if run.left <= 0:
                    raise MeasurementError("not started: time limit reached (--limit)")
                figure = replace(measure(), work=work)
                if not run.comparable(row):
                    figure = replace(figure, target=None, reference=None)
            except Exception as error:
                figure = Figure(work, failed=reason(error))
            clock.free_memory(run.device)
            figures.append(figure)
            each(figure)
    return figures


BELOW = "<!-- results of: python benchmarks/speed.py --page docs/speed.md -->\n"
STORED = [  # results whose tables the page has
    Path(__file__).parent / "results" / f"{name}.json"
    for name in ("speed_h200", "speed_cpu", "precision_h200", "precision_cpu", "growth_h200", "growth_cpu")
]


def write_page(page: Path, results: Sequence[dict[str, Any]]) -> None:
    """Write the part of the page that follows `BELOW` from the results of the benchmarks."""
    above = page.read_text().partition(BELOW)[0] if page.exists() else ""
    lines: list[str] = []
    for found in results:
        about = f"{found['device']}, torch {found['torch']}. `{found['command']}`\n"
        if found["benchmark"] == "growth":
            lines += [f"## Scaling of cost, {found['device']}\n", about, *growth.section(found), ""]
            continue
        if found["benchmark"] == "precision":
            where = f"{found['dataset']}, {found['device']}"
            lines += [f"## Effect of bf16 on results: {where}\n", about, *precision.section(found), ""]
            continue
        figures = [Figure(**figure) for figure in found["figures"]]
        lines += [f"## {found['device']}\n", about + f"{found['data']}\n", *table(figures), ""]
        if found["floors"]:
            lines += [*floors_table(found["floors"]), ""]
    page.write_text(above + BELOW + "\n" + "\n".join(lines).rstrip() + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--rows", nargs="+", choices=ROWS, help="rows to measure (default: cpu on a CPU, all others on a GPU)"
    )
    parser.add_argument(
        "--precisions", nargs="+", help="precisions (default: bf16 tf32, on a CPU fp32); PACS uses the first"
    )
    parser.add_argument("--engine", nargs="+", default=[], metavar="NAME=VALUE", help="options of the engine")
    parser.add_argument("--data", type=Path, help="folder with MNIST (default: noise)")
    parser.add_argument(
        "--steps", type=int, help="steps of a ColoredMNIST trial; times of fewer than 5,001 are extrapolated"
    )
    parser.add_argument(
        "--together-steps", type=int, help="steps of several trials at once (default: 1,001), extrapolated"
    )
    parser.add_argument("--limit", type=float, default=900.0, help="seconds after which no measurement starts")
    parser.add_argument("--small", action="store_true", help="use tiny sizes, to test the script")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", type=Path, help="write the page from files of results, and measure nothing")
    parser.add_argument("results", type=Path, nargs="*", default=STORED, help="files of results, for --page")
    options = parser.parse_args(arguments)
    if options.page:
        write_page(options.page, [json.loads(path.read_text()) for path in options.results])
        return

    size = SMALL if options.small else Size()
    given = {"steps": options.steps, "together_steps": options.together_steps}
    size = replace(size, **{name: value for name, value in given.items() if value})
    on_cpu = options.device == "cpu"
    precisions = options.precisions or (["fp32"] if on_cpu else ["bf16", "tf32"])
    with tempfile.TemporaryDirectory(prefix="pogm-speed-", ignore_cleanup_errors=True) as cache:
        engine = engine_options(options.engine)
        run = Run(options.device, size, engine, precisions, Path(cache), options.data, options.limit)
        rows = options.rows or (["cpu"] if on_cpu else ["pacs", "meta", "mnist"])
        with use_cache(str(run.cache / "own")):
            report(run, rows, arguments, options.out)


def report(run: Run, rows: Sequence[str], arguments: Sequence[str], out: Path | None) -> None:
    """Measure and print all figures; write the results after every figure."""
    found: dict[str, Any] = {
        **facts("speed", run.device, arguments),
        "data": f"Images: {'MNIST' if noise.has_mnist(run.data) else 'noise'} for ColoredMNIST, noise for other rows.",
        "figures": [],
        "floors": run.floors,
    }

    def keep(figure: Figure) -> None:
        found["figures"].append(asdict(figure))
        print(" | ".join(cells(figure)), f"| {figure.note}", flush=True)
        if out:
            out.write_text(json.dumps(found, indent=1) + "\n")

    figures = measure(run, rows, keep)
    print("\n".join(["", f"{found['device']}, torch {found['torch']}. {found['data']}", "", *table(figures), ""]))
    print("\n".join(floors_table(run.floors)))


if __name__ == "__main__":
    main()
