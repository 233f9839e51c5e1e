"""MNIST (LeCun et al., 1998): four IDX files, zipped or not, by whoever zipped them."""

from pathlib import Path

from pogm._system.errors import DataError, IntegrityError
from pogm.data.sources.catalogue import CATALOGUE
from pogm.data.sources.layout import build
from pogm.data.sources.source import hash_of

DATASET = "MNIST"


def prepare(raw: Path, out: Path) -> Path:
    """Make ``out/MNIST/raw`` from the four files in ``raw``."""
    plan: dict[str, Path] = {}
    for source in CATALOGUE[DATASET].files:
        zipped, plain = raw / source.name, raw / source.name.removesuffix(".gz")
        path = plain if plain.exists() else zipped
        if not path.exists():
            raise DataError(
                f"Expected {zipped.name} or {plain.name} in {raw}; found neither. Run `pogm data fetch` first."
            )
        found = hash_of(path, unpacked=path == zipped)
        if found != source.sha256:
            raise IntegrityError(
                f"Expected SHA-256 {source.sha256} of the unpacked content of {path}; "
                f"found {found or 'no gzip file'}. Move the file away and fetch it again."
            )
        plan[path.name] = path
    folder = out / "MNIST" / "raw"
    return folder if folder.resolve() == raw.resolve() else build(folder, plan)
