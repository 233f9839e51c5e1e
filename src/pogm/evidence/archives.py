"""The runs of the sweeps, from the archives of packed records in results/ and from run folders."""

import tarfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pogm._system.errors import DataError
from pogm.benchmark.results.record_file import RecordWarning
from pogm.benchmark.results.records import Run, read_runs
from pogm.evidence.sweeps import ALL_SWEEPS, FOLDERS, SWEEPS, Sweep
from pogm.experiments.base import ERM

ARCHIVES = "*.tar.gz"
OTHER_RUNS = ("centre", *FOLDERS.values())  # folders whose records are not of the evidence
Complete = Mapping[Sweep, list[Run]]  # runs of the complete rows of every sweep


def find_archives(folder: Path) -> list[Path]:
    """Return the archives of packed records in a folder, and those of the evidence in its subfolders."""
    below = (path for path in sorted(folder.glob(f"*/{ARCHIVES}")) if path.parent.name not in OTHER_RUNS)
    return [*sorted(folder.glob(ARCHIVES)), *below]


def read_packed(*folders: Path) -> list[Run]:
    """Read the runs of all archives in some folders, and all run folders there.

    Raises:
        DataError: If an archive cannot be read.
    """
    with TemporaryDirectory() as unpacked:
        for number, path in enumerate(path for folder in folders for path in find_archives(folder)):
            try:
                with tarfile.open(path) as archive:
                    archive.extractall(Path(unpacked, str(number)), filter="data")
            except (OSError, EOFError, tarfile.TarError) as error:
                raise DataError(
                    f"Expected records, packed by benchmarks/pack_records.py, in {path}; found: {error}. Pack them "
                    "again."
                ) from error
        return read_runs(unpacked, *folders)


def sweeps_with_runs(runs: Sequence[Run]) -> Complete:
    """Return the runs of the complete rows of every sweep that has at least one; warn of runs of no sweep."""
    found = {sweep: sweep.complete_rows(runs) for sweep in SWEEPS}
    used = {run.id for sweep in SWEEPS for run in sweep.find_runs(runs)}
    if others := [run for run in runs if run.id not in used]:
        warnings.warn(
            f"{len(others)} of {len(runs)} runs are not of the evidence, for example {others[0].label} on "
            f"{others[0].dataset}: left out. They need the same data, seeds, network and length as ERM's runs. Tables "
            "of variants and of random searches are in results/variants/README.md and results/search/README.md.",
            RecordWarning,
            stacklevel=2,
        )
    return {sweep: complete for sweep, complete in found.items() if complete}


def read_all(folder: Path) -> dict[Sweep, list[Run]]:
    """Read the packed runs of all sweeps.

    A trial that is planned by the evidence and by another sweep has one run in the evidence. It counts for the other
    sweep, too, unless the records of that sweep have a run of their own.

    Args:
        folder: Folder of all results.
    """
    shared = read_packed(folder)
    found = {"evidence": shared}
    for experiment, name in FOLDERS.items():
        own = read_packed(folder / name) if (folder / name).is_dir() else []
        found[experiment] = list(({run.id: run for run in shared} | {run.id: run for run in own}).values())
    return {sweep: found[sweep.experiment] for sweep in ALL_SWEEPS}


def complete_sweeps(runs: Mapping[Sweep, Sequence[Run]]) -> dict[Sweep, list[Run]]:
    """Return the runs of the complete rows by sweep.

    A sweep of the evidence counts with one complete row; another one if ERM and a row with runs of its own, which the
    evidence does not have, are complete.

    Args:
        runs: Runs of all sweeps, see `read_all`.
    """
    found = dict(sweeps_with_runs(runs[SWEEPS[0]]))
    of_evidence = {id for sweep in SWEEPS for id in sweep.row_names}
    for sweep in (sweep for sweep in runs if sweep.experiment != "evidence"):
        complete = sweep.complete_rows(runs[sweep])
        own = {run.label for run in complete if run.id not in of_evidence} - {ERM.name}
        if own and any(run.label == ERM.name for run in complete):
            found[sweep] = complete
    return found


def compared_sweeps(complete: Complete) -> dict[Sweep, list[Run]]:
    """Return the sweeps in which ERM and another row are complete."""
    return {sweep: runs for sweep, runs in complete.items() if {ERM.name} < {run.label for run in runs}}
