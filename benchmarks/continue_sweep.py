"""Continue a sweep of results/PLAN.md: train runs that its archive lacks, and add those that finish to the archive.

python benchmarks/continue_sweep.py results/mnist/rotated_mnist.tar.gz --data DATA [--out OUT] [--minutes 9]

The finished runs of all archives in results are unpacked into OUT/SCALE/runs, the command of results/PLAN.md trains
what is missing, and the runs that no other archive has are packed. After --minutes the command is stopped; runs that
have not finished continue if OUT is kept. Other options are passed on, for example ``--workers 2``, ``--weights
FILE`` or ``--algorithms "ERM + SWAD"``. Then update the tables: ``python benchmarks/update_results.py``.
"""

import argparse
import shlex
import signal
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from pack_records import pack

from pogm.benchmark.results.record_digest import DONE
from pogm.evidence.archives import find_archives
from pogm.evidence.sweeps import ALL_SWEEPS, Sweep

RESULTS = Path(__file__).parent.parent / "results"
SECONDS_TO_STOP = 60  # in which stopped runs write their checkpoints


def unpack(sweep: Sweep, runs: Path, results: Path) -> set[str]:
    """Unpack the runs of a sweep from all archives, and return the names of those that only other archives have."""
    own = results / sweep.archive
    found: dict[Path, set[str]] = {}
    for path in dict.fromkeys((*find_archives(results), *find_archives(own.parent))):
        with tarfile.open(path) as archive:
            members = [one for one in archive.getmembers() if one.name.partition("/")[0] in sweep.row_names]
            archive.extractall(runs, members, filter="data")
        found[path] = {one.name.partition("/")[0] for one in members}
    return set().union(*found.values()) - found.get(own, set())


def run(command: Sequence[str], minutes: float | None) -> int:
    """Run a command, stop it after a number of minutes, and return its exit code."""
    with subprocess.Popen(command) as process:
        try:
            return process.wait(None if minutes is None else 60 * minutes)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            try:
                return process.wait(SECONDS_TO_STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                return process.wait()


def continue_sweep(
    sweep: Sweep, out: Path, options: Sequence[str], minutes: float | None = None, results: Path = RESULTS
) -> int:
    """Train runs that are missing, add them to the archive, and return the exit code of the command."""
    runs = out / sweep.scale_name / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    of_others = unpack(sweep, runs, results)
    _, *words = shlex.split(sweep.command())
    for option in {"--data", "--out", "--weights"} & {*words}:
        if option != "--weights" or option in options:  # the caller has the paths
            index = words.index(option)
            del words[index : index + 2]
    code = run([sys.executable, "-m", "pogm", *words, *options, "--out", str(out)], minutes)
    own = {name for name in sweep.row_names if (runs / name / DONE).exists()} - of_others
    if own:
        archive = results / sweep.archive
        archive.parent.mkdir(parents=True, exist_ok=True)
        print(f"{pack(runs, archive, own)} runs: {archive}")
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    archives = {(RESULTS / sweep.archive).resolve(): sweep for sweep in ALL_SWEEPS}
    parser.add_argument("archive", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/evidence"))
    parser.add_argument("--minutes", type=float)
    known, options = parser.parse_known_args()
    if known.archive.resolve() not in archives:
        names = "\n".join(str(path.relative_to(RESULTS.parent)) for path in archives)
        parser.error(f"Expected the archive of a sweep; found {known.archive}. Choose one of:\n{names}")
    return continue_sweep(archives[known.archive.resolve()], known.out, options, known.minutes)


if __name__ == "__main__":
    sys.exit(main())
