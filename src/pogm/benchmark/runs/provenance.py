"""Provenance of runs in ``trial.json``: device, versions, data and options, and whether a run is deterministic."""

import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from pogm._system.errors import UsageError
from pogm._system.files import read_json
from pogm._system.saved import check_form
from pogm.benchmark.results.record_digest import TRIAL

DECISIVE = (  # facts that affect bits
    *("pogm", "torch", "device", "processes"),
    *("captured", "compiled", "trajectories", "micro_batch"),
)


class DeterminismWarning(UserWarning):
    """A run cannot be repeated bit for bit, although the option --deterministic was given."""


def read_provenance(what: str, folder: Path) -> Any:
    """Return a fact from the provenance of a run, or of the first run of a sweep that can be read; None without one."""
    for path in (folder / TRIAL, *folder.glob(f"*/{TRIAL}")):
        with suppress(FileNotFoundError, NotADirectoryError, ValueError):  # the commands that need the file say why
            saved = read_json(path)
            check_form(saved, {"provenance": {}}, TRIAL)
            return saved["provenance"].get(what)
    return None


def read_provenance_path(what: str, folder: Path) -> Path | None:
    """Return the path of the data or weights of a run, or of the first run of a sweep; None if it does not exist."""
    path = read_provenance(what, folder)
    return Path(path) if isinstance(path, str) and Path(path).exists() else None


def stays_deterministic(folder: Path, started: dict[str, Any], now: dict[str, Any]) -> bool:
    """Compare the provenance of a run at its start and at a resume; return False if determinism was lost.

    A run that began without the option is not deterministic, whatever it is resumed with. A run that began with it must
    be resumed with it, and stays deterministic on the same device and software. On a CPU the option changes nothing.

    Raises:
        UsageError: If a deterministic run on a GPU is resumed without the option.
    """
    on_cpu = started.get("device") == now.get("device") == "cpu"
    if not started.get("deterministic"):
        if now.get("deterministic") and not on_cpu:
            text = f"The run in {folder} began without --deterministic: its results cannot be repeated bit for bit."
            warnings.warn(text, DeterminismWarning, stacklevel=3)
        return True
    if not now.get("deterministic") and not on_cpu:
        raise UsageError(
            f"Expected --deterministic, with which the run in {folder} began; found a resume without it. "
            "Add it, or start a new run in another folder."
        )
    decisive = (*DECISIVE, *(("threads",) if on_cpu else ()))
    changed = [
        f"{name} {now.get(name)} (was {started.get(name)})" for name in decisive if started.get(name) != now.get(name)
    ]
    if changed:
        text = (
            f"The run in {folder} is no longer deterministic, since it is resumed with {', '.join(changed)}. Its "
            "provenance says so from now on."
        )
        warnings.warn(text, DeterminismWarning, stacklevel=3)
    return not changed
