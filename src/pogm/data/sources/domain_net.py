"""Preparation of DomainNet (Peng et al., 2019): six archives, without the 9,431 duplicates that DomainBed lists.

DomainBed's list is downloaded with the archives. Its lines are paths such as ``clipart/<class>/<image>``. DomainBed
ignores lines that do not name an image. Here they are an error, because the list then belongs to other images.
"""

from pathlib import Path, PurePosixPath

from pogm._system.errors import DataError
from pogm.data.datasets.domain_net import DomainNet
from pogm.data.sources.catalogue import DUPLICATES
from pogm.data.sources.download import manual_steps
from pogm.data.sources.layout import find_parent, make_folder, missing_error, plan_files, unpack

DATASET = "DomainNet"
ENVIRONMENTS = DomainNet.folders


def prepare(raw: Path, out: Path) -> Path:
    """Make ``out/domain_net`` from the six zip files, or from their folders, and the list of duplicates in ``raw``."""
    duplicates = _read_duplicates(raw)
    roots = unpack(raw)
    environments = {}
    for name in ENVIRONMENTS:
        parent = find_parent(roots, (name,))
        if parent is None:
            raise missing_error(raw, (name,))
        environments[name] = parent / name
    plan = plan_files(environments, DomainNet.num_classes)
    unknown = sorted(duplicates - plan.keys())
    if unknown:
        raise DataError(
            f"Expected every line of {DUPLICATES.name} to name an image; found {len(unknown)} that do not, such as "
            f"{unknown[0]!r}. Use the cleaned archives, as they were published, and DomainBed's list."
        )
    return make_folder(out / "domain_net", {name: path for name, path in plan.items() if name not in duplicates})


def _read_duplicates(raw: Path) -> set[str]:
    try:
        text = (raw / DUPLICATES.name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"Expected the list of duplicates in {raw / DUPLICATES.name}; found: {error}. "
            f"{manual_steps(DUPLICATES, raw)}"
        ) from error
    return {str(PurePosixPath(line.strip())) for line in text.splitlines() if line.strip()}
