"""What can be said on the command line: commands, options, defaults, help and examples."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pogm import __version__
from pogm.benchmark.catalogue import CATALOGUES
from pogm.benchmark.results.published import SOURCES
from pogm.benchmark.runs.executors import EXECUTORS, cores
from pogm.cli import board, commands, data, experiment, measure
from pogm.data.images.cache import ON_BAD_IMAGE
from pogm.engine.engine import CHOICES
from pogm.engine.parallel import SPREADS
from pogm.experiments.base import SCALES
from pogm.report.serve import PORT
from pogm.trackers import all_trackers

ABOUT = "Domain generalization: POGM and the methods it is compared with, in DomainBed's protocol."

EPILOG = """examples:
  pogm demo                                          four methods on two small datasets, tables and a report
  pogm run --dataset RotatedDigits --algorithm POGM --test-domain 75 --set kappa=0.1 --out runs/first
  pogm sweep --algorithms ERM POGM --datasets RotatedDigits --configurations 5 --out runs/sweep
  pogm measure --algorithms ERM POGM --target        do their steps agree with every domain, and with the unseen one?
  pogm experiment table2 --scale embedded            a table of the paper, on data that come with the package
  pogm status runs/sweep                             how many runs are done, running, failed or waiting
  pogm board runs/sweep                              the same and more in a browser, while it runs
  pogm resume runs/first                             go on after a crash or a Ctrl-C
  pogm report runs                                   tables here, and runs/report.html to look at
  pogm export runs --out sweep                       the runs as a DomainBed sweep, for its collector
  pogm data check ./hospitals                        read every image of a folder and say what is wrong
  pogm list algorithms                               every method with its defaults and search space
"""

SWEEP_EPILOG = """examples:
  pogm sweep --algorithms ERM POGM --datasets RotatedDigits --configurations 5 --trials 2 --out runs/sweep
  pogm sweep --algorithms ERM Fish Fishr POGM --datasets ColoredMNIST --data ~/data --out runs/cmnist --dry-run
  pogm sweep --algorithms ERM POGM --datasets RotatedDigits --set lr=1e-3 --set POGM.inner_steps=5 --out runs/set
  pogm status runs/sweep
A setting without the name of an algorithm is for all of them.
The same command again, or pogm resume, goes on where it stopped.
"""

RUN_EPILOG = """examples:
  pogm run --dataset RotatedDigits --algorithm POGM --test-domain 75 --out runs/first
  pogm run --dataset ColoredMNIST --data ~/data --algorithm Fishr --set penalty=100 --test-domain=-90% --out runs/second
  pogm run --dataset RotatedDigits --algorithm OfficialPOGM --with Mixup --test-domain 0 --out runs/third
  pogm run --dataset ./hospitals --algorithm POGM --test-domain site_c --out runs/fourth      folders of your images
  torchrun --nproc-per-node 4 -m pogm run --dataset DomainNet ...     one model on four GPUs, the same result
The same command again goes on where it stopped, and does nothing once the run is done.
"""

MEASURE_EPILOG = """examples:
  pogm measure                                       ERM, Fish, Fishr and POGM on RotatedDigits, three seeds each
  pogm measure --algorithms ERM POGM --dataset ColoredDigits --test-domain=-90% --target --divergence
  pogm measure --algorithms Fishr POGM --set POGM.kappa=0.1 --set Fishr.penalty_anneal_iters=50 --with Mixup
  pogm measure --dataset VLCS --data ~/data --every 10 --lag 20 --set network=resnet18 --out runs/vlcs
A setting without an algorithm's name is for all of them. The same command again goes on where it stopped, and only
prints once all is done. Measuring changes nothing in a run; what it costs is said beneath the table.
"""

EXPERIMENT_EPILOG = """examples:
  pogm experiment paper --scale embedded             every table and figure of the paper, small: minutes on two cores
  pogm experiment table1 table2 --scale mnist --data ~/data --dry-run
  pogm experiment table1 --scale full --data ~/data --executor ray --address HOST:PORT
  pogm experiment figure4 --scale pacs --data ~/data --weights resnet50_imagenet_v1.safetensors --precision bf16
  pogm experiment table1 --scale embedded --algorithms ERM POGM --set POGM.kappa=0.1 --trials 5
  pogm list experiments                              their names, and the scales
The same command again goes on where it stopped, and only redraws once all is done. Experiments share their runs.
"""

DATA_EPILOG = """examples:
  pogm data list                                     which datasets are there, and how to get the others
  pogm data check ./hospitals                        read every image; say what is corrupt, doubled or in two classes
  pogm data fetch PACS --data ~/data                 download, verify, unpack
  pogm data prepare DomainNet --from ~/downloads     make the layout out of what was published
"""

REPORT_EPILOG = """examples:
  pogm report runs/demo
  pogm report runs --format csv > table.csv
  pogm report runs domainbed/sweep                   a DomainBed sweep as it is, beside ours
  pogm report runs --against paper                   the tables of the paper beside ours, with differences
"""


RESUME_EPILOG = "examples:\n  pogm resume runs/first\n  pogm resume runs/sweep --retry-failed\n"
PREPARE_EPILOG = "example:\n  pogm data prepare TerraIncognita --from ~/downloads/terra --data ~/data\n"
BOARD_EPILOG = "examples:\n  pogm board runs/sweep\n  pogm board runs --port 8000 --open\n"
EXPORT_EPILOG = "example:\n  pogm export runs --layout domainbed --out runs-for-domainbed\n"


def parser() -> argparse.ArgumentParser:
    """The grammar of the command line."""
    plain = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser("pogm", description=ABOUT, epilog=EPILOG, formatter_class=plain)
    top.add_argument("--version", action="version", version=f"pogm {__version__}")
    choices = top.add_subparsers(required=True, metavar="command")

    def command(
        name: str, function: Callable[[argparse.Namespace], int | None], epilog: str = "", group: Any = choices
    ) -> Any:
        summary = (function.__doc__ or "").splitlines()[0]
        sub = group.add_parser(name, help=summary, description=summary, epilog=epilog, formatter_class=plain)
        sub.set_defaults(command=function)
        return sub

    sub = command("demo", commands.demo, "example:\n  pogm demo --out runs/demo --seeds 3\n")
    sub.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for the runs and the report")
    sub.add_argument("--seeds", type=int, default=3, help="seeds per held-out domain (default 3)")
    sub.add_argument("--workers", type=int, default=cores(), help="processes (default: one per core)")
    sub.add_argument("--dry-run", action="store_true", help="say what would be run, and stop")

    sub = command("run", commands.run_one, RUN_EPILOG)
    sub.add_argument("--dataset", required=True, help="a name (see: pogm list datasets) or a folder of images")
    sub.add_argument("--algorithm", required=True, help="see: pogm list algorithms")
    sub.add_argument("--preset", help="a named set of the algorithm's hyperparameters")
    sub.add_argument("--with", dest="modifiers", action="append", default=[], metavar="MODIFIER", help="such as Mixup")
    sub.add_argument("--test-domain", action="append", required=True, help="its name or number; repeat for several")
    _add_choices(sub)
    sub.add_argument("--steps", type=int, help="minibatches of each domain (default: the dataset's)")
    sub.add_argument("--evaluate-every", type=int, help="minibatches between evaluations (default: the dataset's)")
    sub.add_argument("--seed", type=int, default=0, help="of weights, minibatches and all else (default 0)")
    sub.add_argument("--data-seed", type=int, help="of the data's construction (default: the seed)")
    sub.add_argument("--trial-seed", type=int, help="of the train/validation split (default: the seed)")
    sub.add_argument("--precision", default="fp32", help="fp32, tf32, bf16 or fp64 (default fp32); recorded")
    _add_probe(sub)
    sub.add_argument("--out", type=Path, required=True, help="folder of the run")
    sub.add_argument("--dry-run", action="store_true", help="print the trial and stop")
    _add_settings(sub)
    _add_processes(sub)

    sub = command("sweep", commands.start_sweep, SWEEP_EPILOG)
    sub.add_argument("--algorithms", nargs="+", required=True, metavar="NAME", help="see: pogm list algorithms")
    sub.add_argument("--datasets", nargs="+", required=True, metavar="NAME", help="names, or folders of images")
    sub.add_argument("--with", dest="modifiers", nargs="+", default=[], metavar="MODIFIER", help="on every algorithm")
    _add_choices(sub)
    sub.add_argument("--configurations", type=int, default=20, help="of hyperparameters; the first is the defaults")
    sub.add_argument("--trials", type=int, default=3, help="repetitions with other seeds and splits (default 3)")
    sub.add_argument("--mode", default="single", help="single: hold out each domain; full: each pair too")
    sub.add_argument("--steps", type=int, help="minibatches of each domain (default: the dataset's)")
    sub.add_argument("--evaluate-every", type=int, help="minibatches between evaluations (default: the dataset's)")
    sub.add_argument("--precision", default="fp32", help="fp32, tf32, bf16 or fp64 (default fp32); recorded")
    _add_probe(sub)
    sub.add_argument("--out", type=Path, required=True, help="folder of the sweep")
    sub.add_argument("--dry-run", action="store_true", help="count the runs, measure a few steps, say hours and memory")
    _add_driver(sub)

    sub = command("measure", measure.measure, MEASURE_EPILOG)
    sub.add_argument(
        "--algorithms",
        nargs="+",
        default=["ERM", "Fish", "Fishr", "POGM"],
        metavar="NAME",
        help="default: ERM Fish Fishr POGM",
    )
    sub.add_argument("--dataset", default="RotatedDigits", help="a name or a folder of images (default RotatedDigits)")
    sub.add_argument("--test-domain", action="append", help="its name or number; repeat for several (default 0)")
    sub.add_argument("--with", dest="modifiers", nargs="+", default=[], metavar="MODIFIER", help="on every algorithm")
    _add_choices(sub)
    sub.add_argument("--seeds", type=int, default=3, help="runs of each algorithm (default 3)")
    sub.add_argument("--every", type=int, default=1, metavar="ROUNDS", help="between measurements (default 1: all)")
    sub.add_argument(
        "--lag", type=int, metavar="ROUNDS", help="of the invariant angle (default 10, or the next that fits)"
    )
    sub.add_argument("--cyclic", action="store_true", help="the authors' lag, since a snapshot of every LAG rounds")
    sub.add_argument("--target", action="store_true", help="also ask whether the held-out domain lies in the hull")
    sub.add_argument("--divergence", action="store_true", help="also ask how far the domains' predictions differ")
    sub.add_argument("--steps", type=int, help="minibatches of each domain (default: the dataset's)")
    sub.add_argument("--evaluate-every", type=int, help="minibatches between evaluations (default: the dataset's)")
    sub.add_argument("--precision", default="fp32", help="fp32, tf32, bf16 or fp64 (default fp32); recorded")
    sub.add_argument(
        "--out", type=Path, default=Path("runs/measure"), help="folder for the runs (default: runs/measure)"
    )
    sub.add_argument("--format", choices=("text", "csv", "json"), default="text")
    sub.add_argument("--workers", type=int, default=cores(), help="processes (default: one per core)")
    sub.add_argument("--dry-run", action="store_true", help="list the runs, time steps with and without measuring")
    _add_settings(sub)

    sub = command("experiment", experiment.experiment, EXPERIMENT_EPILOG)
    sub.add_argument(
        "names", nargs="+", metavar="name", help="such as table1 or figure2; paper for all of the paper, or all"
    )
    sub.add_argument("--scale", required=True, help=f"how large: {', '.join(SCALES)}")
    sub.add_argument(
        "--out", type=Path, default=Path("runs/paper"), help="a folder for each scale goes in it (default: runs/paper)"
    )
    changes = sub.add_argument_group("changes of the scale", "Tables and page go to a folder of their own.")
    changes.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a hyperparameter of all rows, or of one algorithm: ALGORITHM.NAME=VALUE; may be repeated",
    )
    changes.add_argument("--datasets", nargs="+", default=[], metavar="NAME", help="instead of the scale's")
    changes.add_argument(
        "--algorithms", nargs="+", default=[], metavar="NAME", help="only these rows of a table or methods of a figure"
    )
    changes.add_argument("--network", help="see: pogm list networks (default: the scale's, or that of --weights)")
    changes.add_argument("--precision", help="fp32, tf32, bf16 or fp64 (default: the scale's)")
    changes.add_argument("--steps", type=int, help="minibatches of each domain (default: the scale's)")
    changes.add_argument("--evaluate-every", type=int, help="minibatches between evaluations (default: the scale's)")
    changes.add_argument("--trials", type=int, help="repetitions with other seeds and splits (default: the scale's)")
    sub.add_argument(
        "--dry-run", action="store_true", help="count the runs, measure a few steps, say how long it takes"
    )
    _add_driver(sub)

    group = choices.add_parser(
        "data", help="List, check, fetch and prepare datasets.", epilog=DATA_EPILOG, formatter_class=plain
    ).add_subparsers(required=True, metavar="command")
    sub = command("list", data.list_data, "example:\n  pogm data list --data ~/data\n", group)
    _add_data(sub)
    sub = command("check", data.check_data, "examples:\n  pogm data check PACS\n  pogm data check ./hospitals\n", group)
    sub.add_argument("dataset", help="a name, or a folder of images")
    sub.add_argument("--json", action="store_true", help="for programs")
    _add_data(sub)
    sub = command("fetch", data.fetch_data, "example:\n  pogm data fetch PACS --data ~/data\n", group)
    sub.add_argument("datasets", nargs="+", metavar="dataset", help="names; see: pogm data list")
    _add_data(sub)
    sub = command("prepare", data.prepare_data, PREPARE_EPILOG, group)
    sub.add_argument("dataset", help="its name")
    sub.add_argument("--from", dest="raw", type=Path, required=True, help="the folder with what was downloaded")
    _add_data(sub)

    sub = command("status", commands.show_status, "example:\n  pogm status runs/sweep\n")
    sub.add_argument("folder", type=Path, help="folder of a sweep")

    sub = command("board", board.show_board, BOARD_EPILOG)
    sub.add_argument("folder", type=Path, help="folder of a sweep, an experiment or any runs")
    sub.add_argument("--port", type=int, help=f"on this machine (default: {PORT}, or the next that is free)")
    sub.add_argument("--open", action="store_true", help="in the browser, too")

    sub = command("resume", commands.resume, RESUME_EPILOG)
    sub.add_argument("folder", type=Path, help="folder of a run, or of a sweep")
    _add_driver(sub)
    _add_processes(sub)

    sub = command("report", commands.report, REPORT_EPILOG)
    sub.add_argument(
        "folders", type=Path, nargs="+", metavar="folder", help="folders with runs, ours or DomainBed's, at any depth"
    )
    sub.add_argument("--format", choices=("text", "csv", "json", "latex", "html"), default="text")
    sub.add_argument("--out", type=Path, help="where the HTML report goes (default: the first folder)")
    sub.add_argument(
        "--oracle-early-stop", type=int, metavar="STEP", help="print the oracle stopped early after STEP instead"
    )
    sub.add_argument(
        "--against", choices=tuple(SOURCES), help="published results to put beside ours; as csv, these lines alone"
    )

    sub = command("export", commands.export, EXPORT_EPILOG)
    sub.add_argument("folders", type=Path, nargs="+", metavar="folder", help="folders with runs, at any depth")
    sub.add_argument(
        "--layout", choices=("domainbed",), default="domainbed", help="whose (default and only: DomainBed)"
    )
    sub.add_argument("--out", type=Path, required=True, help="a new folder, one job folder in it for each run")

    sub = command("list", commands.list_things, "example:\n  pogm list algorithms\n")
    sub.add_argument("what", choices=(*CATALOGUES, "experiments"))
    return top


def _add_choices(sub: Any) -> None:
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a hyperparameter of all algorithms, or of one: ALGORITHM.NAME=VALUE; may be repeated",
    )
    sub.add_argument("--on-bad-image", choices=ON_BAD_IMAGE, help="of a folder of images (default: refuse)")


def _add_probe(sub: Any) -> None:
    sub.add_argument(
        "--probe-every",
        type=int,
        default=0,
        metavar="ROUNDS",
        help="measure domain angles and all else that pogm measure does (default: not)",
    )


def _add_driver(sub: Any) -> None:
    sub.add_argument("--executor", choices=EXECUTORS, default="local", help="here, or on a Ray cluster")
    sub.add_argument("--address", help="of the Ray cluster (default: start one here)")
    sub.add_argument("--workers", type=int, default=cores(), help="processes of a sweep (default: one per core)")
    sub.add_argument("--retry-failed", action="store_true", help="run those trials of a sweep again that failed")
    _add_settings(sub)


def _add_data(sub: Any) -> None:
    sub.add_argument("--data", type=Path, default=os.environ.get("POGM_DATA"), help="data folder (default: $POGM_DATA)")


def _add_settings(sub: Any) -> None:
    _add_data(sub)
    sub.add_argument("--weights", type=Path, metavar="FILE", help="of the network, to begin with (default: published)")
    sub.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, ... (default: a GPU if there is one)")
    sub.add_argument("--no-capture", action="store_true", help="on a GPU, do not record the step as a CUDA graph")
    sub.add_argument(
        "--compile",
        choices=CHOICES["compile"],
        default="auto",
        help="fuse operations with torch's compiler, a minute once for each shape (default: on a GPU, for long runs)",
    )
    sub.add_argument(
        "--trajectories",
        choices=CHOICES["trajectories"],
        default="auto",
        help="and inner optimizers: on the device, there in bf16, or on the host (default: there if they do not fit)",
    )
    sub.add_argument(
        "--memory-gb", type=float, help="of the device, for weights and trajectories (default: half of what is free)"
    )
    sub.add_argument(
        "--deterministic",
        action="store_true",
        help="on a GPU, use only kernels that give the same bits in repeated and resumed runs; an operation that has "
        "none is an error. On a CPU runs repeat without it, for the same --threads",
    )
    sub.add_argument("--threads", type=int, default=1, help="of a CPU (default 1, so that results do not depend on it)")
    sub.add_argument(
        "--checkpoint-seconds", type=float, default=30.0, help="at least, between checkpoints (default 30)"
    )
    sub.add_argument(
        "--track", action="append", default=[], metavar="TRACKER", help=f"{', '.join(all_trackers())}; may be repeated"
    )


def _add_processes(sub: Any) -> None:
    sub.add_argument(
        "--spread", choices=SPREADS, help="under torchrun, over processes (default auto: domains, then samples)"
    )
    sub.add_argument(
        "--timeout-seconds", type=float, default=600.0, help="for processes to answer one another (default 600)"
    )
