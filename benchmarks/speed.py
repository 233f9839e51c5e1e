"""How fast and how large: ours, beside what the hardware allows and what DomainBed and the authors' code take.

python benchmarks/speed.py --device cuda [--rows mnist pacs meta] [--engine compile=on ...] [--data FOLDER] [--out ...]
python benchmarks/speed.py --device cpu [--out ...]

On a GPU, in one run: ``mnist``, a ColoredMNIST trial of protocol size, alone and several at once; ``pacs``, a minibatch
of PACS with a ResNet-50, and its memory; ``meta``, the meta-update alone. On a CPU: ``cpu``, our step over that of a
loop written by hand, in turns on one thread. Floors are written by hand (`bare.py`) and measured in the same run. Data
are noise of the right shape, except ColoredMNIST where ``--data`` has MNIST. What fails says why, and the rest goes on.

python benchmarks/speed.py --page docs/speed.md RESULTS.json ...

writes the page of results, those of `growth.py` and `precision.py` among them.
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
from rows.run import SMALL, Measurement, Run, Size, engine_options, facts, using_cache

ROWS: dict[str, Callable[[Run], Iterator[Measurement]]] = {"mnist": mnist, "pacs": pacs, "meta": meta, "cpu": cpu}


def measured(run: Run, rows: Sequence[str], each: Callable[[Figure], None]) -> list[Figure]:
    """Every figure of some rows; one that fails, or whose time has come too late, says so."""
    figures = []
    for row in rows:
        for work, measure in ROWS[row](run):
            try:
                if run.left <= 0:
                    raise MeasurementError("not begun: the time was up (--limit)")
                figure = replace(measure(), work=work)
                if not run.comparable(row):
                    figure = replace(figure, target=None, reference=None)
            except Exception as error:
                figure = Figure(work, failed=reason(error))
            clock.tidy(run.device)
            figures.append(figure)
            each(figure)
    return figures


PAGE = """# Speed and scale

Measured by `benchmarks/speed.py`, `growth.py` and `precision.py`, which say how; the results are in
`benchmarks/results`. A floor is the same work written by hand in PyTorch (`benchmarks/bare.py`), recorded as a CUDA
graph where there is a GPU, in the same run: of a ColoredMNIST trial its steps and evaluations, of a PACS minibatch the
gradient alone, compiled, of the meta-update a copy of as many bytes, of memory and on a CPU the whole step. The figures
of DomainBed and the authors' code were given with the task (an H200, torch 2.11) and not measured again here. In
brackets: the middle half of the repeats.

POGM's rows are with `centre="mean"`, as the authors' code has it. The default, `centre="erm"`, takes 1.04 to 1.07 times
as long with one inner step and 1.7 to 1.9 times with five ([measured](centre.md#what-it-costs)).

## What makes it fast

- **Images stay on the device** if they fit, and minibatches are drawn and augmented there; nothing is fetched between
  evaluations.
- **A round is one CUDA graph**, which the host replays (not with `--trajectories host`).
- **Marked functions are compiled** (`core/compilation.py`): the network's passes, the optimizer, sampling and
  augmentation, inner products, the solver and the update. Everything else runs eagerly. `--compile auto` compiles on a
  GPU for runs of 1,000 minibatches or more; results of the compiler are kept in `TORCHINDUCTOR_CACHE_DIR`. If the
  compiler fails on a function, a warning says so and the function runs eagerly. Compiled runs differ in rounding, and
  the provenance of a run says whether it was compiled.
- **Weights are views of one tensor** (`core/flat_params.py`): what is done to all of them is one operation, not 161.
- **Independent work goes side by side** on streams: domains of a round where images are small, like trials of a sweep.
  Networks of linear layers are mapped by `vmap` instead (on a CPU those of up to 131,072 weights); with convolutions
  that takes longer than one after the other.
- **`--precision bf16`** for networks and weights in float32; `tf32` and `fp32` are there too, and are part of a trial.
- On a CPU, Adam is torch's own fused kernel (for networks that are not mapped and have more than 65,536 weights) on
  parts that stay in the cache, large tensors lie on large pages (`THP_MEM_ALLOC_ENABLE=1`, unless it is set), and the
  process keeps memory that is freed for the next step, so that it stays at its peak: POGM with a ResNet-50 on four
  images of 64×64 took 0.99 s a step instead of 2.3 s (one run each).

What they cost: a step makes new weights and does not change old ones, so that it can be captured, mapped, saved and
resumed at any point, and it draws by keys, so that a run does not depend on what ran before it. Beside a network that
takes a millisecond on a CPU both show; beside a convolutional one they do not. On a GPU the solver for more than eight
domains takes about 4 ms a round, launched in many small kernels; up to eight it is one of a handful.
"""


def write_page(page: Path, results: Sequence[dict[str, Any]]) -> None:
    """The page, out of what both benchmarks found."""
    lines = [PAGE]
    for found in results:
        about = f"{found['device']}, torch {found['torch']}. `{found['command']}`\n"
        if found["benchmark"] == "growth":
            lines += [f"## How cost grows, {found['device']}\n", about, *growth.section(found), ""]
            continue
        if found["benchmark"] == "precision":
            where = f"{found['dataset']}, {found['device']}"
            lines += [f"## Whether bf16 moves results: {where}\n", about, *precision.section(found), ""]
            continue
        figures = [Figure(**figure) for figure in found["figures"]]
        lines += [f"## {found['device']}\n", about + f"{found['data']}\n", *table(figures), ""]
        if found["floors"]:
            lines += [*floors_table(found["floors"]), ""]
    page.write_text("\n".join(lines).rstrip() + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", nargs="+", choices=ROWS, help="on a GPU all but cpu, on a CPU cpu alone")
    parser.add_argument("--precisions", nargs="+", help="the first is PACS's too; bf16 tf32, on a CPU fp32")
    parser.add_argument("--engine", nargs="+", default=[], metavar="NAME=VALUE", help="options of the engine")
    parser.add_argument("--data", type=Path, help="a folder with MNIST")
    parser.add_argument("--steps", type=int, help="of a ColoredMNIST trial; fewer than 5,001 are extrapolated")
    parser.add_argument("--together-steps", type=int, help="of trials at once (1,001); the same")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds after which nothing new is begun")
    parser.add_argument("--small", action="store_true", help="tiny sizes: to see that it runs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", type=Path, help="write the page out of files of results, and measure nothing")
    parser.add_argument("results", type=Path, nargs="*")
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
        with using_cache(str(run.cache / "own")):
            report(run, rows, arguments, options.out)


def report(run: Run, rows: Sequence[str], arguments: Sequence[str], out: Path | None) -> None:
    """Measure, print, and write after every figure what is known by then."""
    found: dict[str, Any] = {
        **facts("speed", run.device, arguments),
        "data": f"ColoredMNIST is {'MNIST' if noise.has_mnist(run.data) else 'noise'}, all else is noise.",
        "figures": [],
        "floors": run.floors,
    }

    def keep(figure: Figure) -> None:
        found["figures"].append(asdict(figure))
        print(" | ".join(cells(figure)), f"| {figure.note}", flush=True)
        if out:
            out.write_text(json.dumps(found, indent=1) + "\n")

    figures = measured(run, rows, keep)
    print("\n".join(["", f"{found['device']}, torch {found['torch']}. {found['data']}", "", *table(figures), ""]))
    print("\n".join(floors_table(run.floors)))


if __name__ == "__main__":
    main()
