"""``pogm doctor``: what is installed and found on this machine, and what to do if something is missing."""

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

from pogm import __version__
from pogm._system.cpu import count_cores
from pogm._system.terminal import print_line
from pogm.cli.json_output import Output
from pogm.cli.options import Data as DataOptions
from pogm.cli.parser import Command, group

NEEDED = ("torch", "torchvision", "timm", "numpy", "scikit-learn", "safetensors", "rich", "pillow", "jinja2")
LITTLE_SPACE = 5  # GiB
DEVELOPMENT = ("dev", "docs")  # extras that users do not need


@dataclass(frozen=True, kw_only=True)
class Doctor(Command):
    """Show versions, GPU, extras, data folder, cache and disk space, with advice; nothing is changed."""

    examples: ClassVar[str] = "pogm doctor\npogm doctor --data ~/data --json"
    notes: ClassVar[str] = (
        "The exit code is 1 if a package is missing that pogm needs; otherwise 0, also with warnings."
    )

    data: DataOptions = group(DataOptions)
    output: Output = group(Output)

    def run(self) -> int:
        """Print what is found; the exit code is 1 if a needed package is missing."""
        packages = {name: version(name) for name in NEEDED}
        missing = [name for name, found in packages.items() if found is None]
        warnings: list[str] = []
        if missing:
            warnings.append(f"Missing packages: {', '.join(missing)}. Run: pip install --force-reinstall pogm")
        document: dict[str, Any] = {
            "python": platform.python_version(),
            "pogm": __version__,
            "packages": packages,
            "cores": count_cores(),
            "gpus": [],
            "extras": find_extras(),
        }
        if packages["torch"] is not None:
            document |= describe_gpus(warnings)
            document["datasets"] = describe_datasets(self.data.folder, warnings) if not missing else None
        else:
            document["datasets"] = None
        document["data"] = describe_folder(self.data.folder, "data folder", warnings) if self.data.folder else None
        document["cache"] = {**describe_folder(cache_folder(), "cache", warnings), "bytes": folder_size(cache_folder())}
        document["current_folder"] = describe_folder(Path(), "current folder", warnings)
        document |= {"warnings": warnings, "ok": not missing}
        self.output.show("doctor", document, lambda: _print(document))
        return 1 if missing else 0


def version(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def find_extras() -> list[dict[str, Any]]:
    """Return the extras of pogm: their packages, those that are missing, and the command that installs them."""
    try:
        requirements = metadata.requires("pogm") or []
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return []
    packages: dict[str, list[str]] = {}
    for requirement in requirements:
        name, extra = re.match(r"[\w.-]+", requirement), re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        if name and extra and extra[1] not in DEVELOPMENT:
            packages.setdefault(extra[1], []).append(name[0])
    return [
        {
            "name": extra,
            "packages": {name: version(name) for name in names},
            "installed": all(version(name) is not None for name in names),
            "install": f"pip install 'pogm[{extra}]'",
        }
        for extra, names in packages.items()
    ]


def describe_gpus(warnings: list[str]) -> dict[str, Any]:
    """Return the GPUs that torch can use, the version of CUDA and of the driver."""
    try:
        import torch

        found: dict[str, Any] = {"cuda": torch.version.cuda, "driver": driver_version(), "gpus": []}
        if torch.cuda.is_available():
            for number in range(torch.cuda.device_count()):
                properties = torch.cuda.get_device_properties(number)
                free, total = torch.cuda.mem_get_info(number)
                found["gpus"].append({"name": properties.name, "memory_bytes": total, "free_bytes": free})
    except Exception as error:  # a broken installation of torch or of the driver
        warnings.append(f"torch cannot look for GPUs: {type(error).__name__}: {error}. Reinstall torch or the driver.")
        return {"cuda": None, "driver": driver_version(), "gpus": []}
    if not found["gpus"]:
        if found["driver"]:
            warnings.append(
                f"There is a driver of NVIDIA ({found['driver']}), but torch {torch.__version__} finds no GPU. Install "
                "a build of torch for its version of CUDA: https://pytorch.org/get-started"
            )
        else:
            warnings.append("No GPU was found: large networks train slowly. Small ones train well on a CPU.")
    return found


def driver_version() -> str | None:
    """Return the version of the driver of NVIDIA; None if there is none."""
    try:
        found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return None
    return found[1] if found else None


def describe_datasets(data: Path | None, warnings: list[str]) -> dict[str, str]:
    """Return whether each dataset is present, by name."""
    from pogm.cli.data import describe_dataset
    from pogm.data.datasets import named_datasets

    if data is None:
        warnings.append("No data folder is set. For datasets that do not come with pogm: set POGM_DATA, or pass --data")
    return {name: describe_dataset(dataset, data) for name, dataset in named_datasets().items()}


def cache_folder() -> Path:
    """Return the folder of the image cache, as ``pogm.data.images.store.cache_directory`` does, without torch."""
    return Path(os.environ.get("POGM_CACHE") or Path.home() / ".cache" / "pogm")


def describe_folder(folder: Path, name: str, warnings: list[str]) -> dict[str, Any]:
    """Return whether a folder exists and can be written, and the free space of its disk; warn if there is a problem."""
    path = folder.expanduser()
    existing = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
    writable, free = _is_writable(existing), shutil.disk_usage(existing).free
    if not path.exists() and name == "data folder":
        warnings.append(f"The data folder {folder} does not exist. Create it, or correct --data or POGM_DATA.")
    elif not writable and name != "data folder":
        warnings.append(f"The {name} {folder} cannot be written. Change its permissions or choose another folder.")
    if free < LITTLE_SPACE * 2**30:
        warnings.append(f"The disk of the {name} has {free / 2**30:.1f} GiB left. Free some space.")
    return {"path": folder, "exists": path.exists(), "writable": writable, "free_bytes": free}


def _is_writable(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def folder_size(folder: Path) -> int:
    """Return the bytes of all files in a folder; 0 if it does not exist. Unreadable files are left out."""
    total, waiting = 0, [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total


def _print(found: dict[str, Any]) -> None:
    def gib(size: int) -> str:
        return f"{size / 2**30:.1f} GiB"

    print_line(f"Python {found['python']} ({sys.executable}), pogm {found['pogm']}, {found['cores']} cores")
    print_line("Packages: " + ", ".join(f"{name} {one or 'missing'}" for name, one in found["packages"].items()))
    for gpu in found["gpus"]:
        memory = f"{gib(gpu['memory_bytes'])}, {gib(gpu['free_bytes'])} free"
        print_line(f"GPU: {gpu['name']}, {memory}; driver {found['driver'] or 'unknown'}, CUDA {found['cuda']}")
    if not found["gpus"]:
        print_line("GPU: none")
    _print_extras(found["extras"])
    if found["data"]:
        one = found["data"]
        print_line(f"Data folder: {one['path']}{'' if one['exists'] else ' (missing)'}, {gib(one['free_bytes'])} free")
    else:
        print_line("Data folder: not set")
    datasets = found["datasets"] or {}
    width = max(map(len, datasets), default=0)
    for name, state in datasets.items():
        print_line(f"  {name:<{width}} {state}")
    one = found["cache"]
    print_line(f"Cache: {one['path']}, {gib(one['bytes'])} used, {gib(one['free_bytes'])} free")
    one = found["current_folder"]
    print_line(f"Current folder: {'' if one['writable'] else 'not '}writable, {gib(one['free_bytes'])} free")
    for warning in found["warnings"]:
        print_line(f"Warning: {warning}")
    print_line("Everything that pogm needs is installed." if found["ok"] else "Something that pogm needs is missing.")


def _print_extras(extras: Sequence[dict[str, Any]]) -> None:
    if not extras:
        print_line("Extras: unknown, because pogm is not installed as a package")
    for extra in extras:
        versions = ", ".join(f"{name} {found}" for name, found in extra["packages"].items())
        print_line(f"  {extra['name']:<15} {versions if extra['installed'] else 'not installed; ' + extra['install']}")


COMMAND = Doctor
