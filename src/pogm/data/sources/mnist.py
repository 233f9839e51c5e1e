"""Preparation of MNIST (LeCun et al., 1998): four IDX files, plain or gzipped."""

from pathlib import Path

from pogm._system.errors import DataError, IntegrityError
from pogm.data.sources.catalogue import CATALOGUE, hash_file
from pogm.data.sources.layout import make_folder

DATASET = "MNIST"


def prepare(raw: Path, out: Path) -> Path:
    """Make ``out/MNIST/raw`` from the four files in ``raw``."""
    plan: dict[str, Path] = {}
    for file in CATALOGUE[DATASET].files:
        zipped, plain = raw / file.name, raw / file.name.removesuffix(".gz")
        path = plain if plain.exists() else zipped
        if not path.exists():
            raise DataError(
                f"Expected {zipped.name} or {plain.name} in {raw}; found neither. Run `pogm data fetch` first."
            )
        found = hash_file(path, unpacked=path == zipped)
        if found != file.sha256:
            raise IntegrityError(
                f"Expected SHA-256 {file.sha256} of the unpacked content of {path}; "
                f"found {found or 'no gzip file'}. Move the file away and fetch it again."
            )
        plan[path.name] = path
    folder = out / "MNIST" / "raw"
    return folder if folder.resolve() == raw.resolve() else make_folder(folder, plan)
