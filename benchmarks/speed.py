"""Time and memory of our steps, compared with handwritten loops (floors), DomainBed and the authors' code.

python benchmarks/speed.py --device cuda [--rows mnist pacs meta] [--engine compile=on ...] [--data FOLDER] [--out ...]
python benchmarks/speed.py --device cpu [--out ...]

Rows on a GPU: ``mnist``, a ColoredMNIST trial of protocol size, alone and several at once; ``pacs``, a minibatch of
PACS with a ResNet-50, and its memory; ``meta``, the meta-update alone. Row on a CPU: ``cpu``, the time of our step
divided by that of a handwritten loop, measured alternately on one thread. Floors are handwritten loops (`bare.py`),
measured in the same run. Data are noise of the right shape, except ColoredMNIST if ``--data`` has MNIST. A measurement
that fails reports the reason, and the others continue.

python benchmarks/speed.py --page docs/speed.md RESULTS.json ...

writes the page of results, including those of `growth.py` and `precision.py`.
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


PAGE = """# Speed and scale

`benchmarks/speed.py`, `growth.py` and `precision.py` measured these numbers; the results are in `benchmarks/results`.

- *handwritten* is a handwritten PyTorch version (`benchmarks/bare.py`), measured in the same run and, on a GPU, as a
  CUDA graph. It contains the steps and evaluations of a ColoredMNIST trial; only the compiled gradient of a PACS
  minibatch; for the meta-update, a copy of the same number of bytes; for memory and on a CPU, the whole step.
- *DomainBed / the authors*: these numbers were given to us (H200, torch 2.11). We did not measure them.
- Parentheses contain the first and the third quartile of the repeats.
- In the sections about scaling, `~ K^1.01` is a power law that was fitted to all points. The exponent between the two
  largest values, where fixed costs matter least, is in parentheses.
- The rows of POGM have `centre="mean"`, as in the authors' code. The default, `centre="erm"`, takes 1.04 to 1.07 times
  as long with one inner step and 1.7 to 1.9 times with five ([measurements](centre.md#what-it-costs)).

## Why it is fast

- **Images stay on the device** if they fit. Minibatches are drawn and augmented there, and nothing is copied to the
  host between evaluations.
- **A round is one CUDA graph**, which the host replays (not with `--trajectories host`).
- **Marked functions are compiled** (`core/compilation.py`): the network's passes, the optimizer, sampling and
  augmentation, inner products, the solver and the update. Everything else runs eagerly. `--compile auto` compiles on a
  GPU if this saves more time than compilation takes. The estimate uses measured costs (`compile_choice.py`), the
  remaining runs of the sweep that can use the same code, and whether the compiler cache (`TORCHINDUCTOR_CACHE_DIR`)
  already has the code. Networks without measured costs are compiled from 1,000 minibatches on, and so are deterministic
  runs, because their bits must not depend on other runs. If the compiler fails on a function, a warning says so and
  the function runs eagerly. Compiled runs differ in rounding, and the provenance of a run says whether it was compiled;
  a resumed run keeps the choice.
- **Processes share a GPU** for small images: up to three, if its memory allows. While one loads data, compiles or
  writes a model, another one trains.
- **Weights are views of one tensor** (`core/flat_params.py`): an operation on all weights is one kernel, and not
  one for each tensor (161 in a ResNet-50).
- **Independent work runs in parallel** on CUDA streams: the domains of a round if images are small, and similar trials
  of a sweep. Networks of linear layers are vectorised by `vmap` instead (on a CPU if they have up to 131,072 weights);
  for convolutions `vmap` is slower than a loop.
- **`--precision bf16`** computes passes in bfloat16 and keeps weights in float32; other choices are `tf32` and
  `fp32`. The precision is part of a trial.
- On a CPU, Adam is torch's fused kernel (for networks that do not use `vmap` and have more than 65,536 weights),
  applied to chunks that fit into the cache. Large tensors are allocated on large pages (`THP_MEM_ALLOC_ENABLE=1`,
  unless it is set). The process keeps freed memory for the next step, so its memory stays at the peak: POGM with a
  ResNet-50 on four images of 64×64 took 0.99 s per step instead of 2.3 s (one run each).

The design has costs that matter for a network whose step takes a millisecond on a CPU, but not for a convolutional
network. A step computes new weights and does not change the old ones, so that it works in a CUDA graph and under `vmap`
and can be saved and resumed. Random numbers are functions of a key, so that a run does not depend on earlier runs. For
the MLP of the rows below, the parts of a step took this CPU time on one thread, each measured separately (shortest of
30 repeats of 40 calls):

| part of a step | ours, µs | handwritten, µs | why |
|---|---|---|---|
| draw a minibatch | 169 | 58 | keyed random numbers: about 20 operations on 32 integers |
| gradient of one domain | 641 | 478 | `functional_call`; one loss for each sample, then two means |
| Adam, one domain | 271 | 709 | copies and torch's fused kernel on one vector; handwritten: torch's default |
| inner products of trajectories | 244 | 98 | float64 instead of float32 |
| solver, checks and metrics of POGM | 410 | 46 | many small operations; handwritten: the solver alone |
| weighted sum and update | 300 | not measured | one pass over all weights for each trajectory |

The parts do not add up to a step: in a step, the new weights and moments also replace other data in the caches.

This table, and the rows of the MLP below, were measured before three changes: random numbers of small shapes come from
NumPy, a pass replaces the weights without `functional_call`, and the views of flat weights are made in one call. After
them a step of the MLP took 1.11 to 1.13 times as long as the handwritten loop with ERM (before: 1.15 to 1.21), and 1.15
to 1.27 times with POGM (before: 1.23 to 1.29; medians of 15 alternating repeats, two to four times each).

On a GPU with Triton the solver for 9 to 64 domains is one kernel (`pareto/interior_kernel.py`). The kernel takes
0.28 ms for 16 domains and 0.71 ms for 32 (H200, torch 2.11, CUDA graphs, median of 5 × 50 replays). A whole solve took
0.50 ms for 16 domains, 1.1 ms for 32 and 4.3 ms for 64 with an earlier version of the kernel (0.41 ms for 16 domains),
and 4.5 ms for 16 domains with many small kernels. An evaluation of 70,000 images with the MNIST CNN takes 43 ms since
group norm adds up channels first; the rows below have 49 ms.

The eigenvalues of `AlignedMTL`, `ConFIG`, `IMTLG` and `PGrad` and the Newton steps of `NashMTL` are one kernel each
(`pareto/weighting_kernels.py`). With them a step of the MNIST CNN with three domains has 497 to 517 operations, not
1397 to 1579, and 889 instead of 4054 for `PGrad` (ERM: 129, POGM: 750; counted on a CPU, without views). Times were not
measured.

The first step of ERM with a ResNet-50 (96 images, compiled) took 62 s with an empty compiler cache and 55 s after the
weights were moved out of the traced function; in a second process it took 14 s (one run each, H200). The rows below are
older measurements (78 s and 22 s).
"""


def write_page(page: Path, results: Sequence[dict[str, Any]]) -> None:
    """Write the page from the results of the benchmarks."""
    lines = [PAGE]
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
    page.write_text("\n".join(lines).rstrip() + "\n")


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
