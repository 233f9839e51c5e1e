"""DomainNet (Peng et al., 2019): six archives, without the 9,431 duplicates that DomainBed lists.

The list is DomainBed's and is fetched, not shipped. Its lines are paths such as ``clipart/<class>/<image>``. DomainBed
passes over lines that name nothing; here they are an error, since they mean that the list and the images do not belong
together.
"""

from pathlib import Path, PurePosixPath

from pogm._system.errors import DataError
from pogm.data.datasets.domain_net import DomainNet
from pogm.data.sources.catalogue import DUPLICATES
from pogm.data.sources.download import by_hand
from pogm.data.sources.layout import build, class_folders, find, missing, unpack

DATASET = "DomainNet"
ENVIRONMENTS = DomainNet.folders


def prepare(raw: Path, out: Path) -> Path:
    """Make ``out/domain_net`` from the six zip files, or from their folders, and the list of duplicates in ``raw``."""
    duplicates = _duplicates(raw)
    roots = unpack(raw)
    environments = {}
    for name in ENVIRONMENTS:
        parent = find(roots, (name,))
        if parent is None:
            raise missing(raw, (name,))
        environments[name] = parent / name
    plan = class_folders(environments, DomainNet.num_classes)
    strange = sorted(duplicates - plan.keys())
    if strange:
        raise DataError(
            f"Expected every line of {DUPLICATES.name} to name an image; found {len(strange)} that do not, such as "
            f"{strange[0]!r}. Use the cleaned archives, as they were published, and DomainBed's list."
        )
    return build(out / "domain_net", {name: path for name, path in plan.items() if name not in duplicates})


def _duplicates(raw: Path) -> set[str]:
    try:
        text = (raw / DUPLICATES.name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"Expected the list of duplicates in {raw / DUPLICATES.name}; found: {error}. {by_hand(DUPLICATES, raw)}"
        ) from error
    return {str(PurePosixPath(line.strip())) for line in text.splitlines() if line.strip()}
