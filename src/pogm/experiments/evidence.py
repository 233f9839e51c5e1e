"""All methods against ERM, paired: which method helps on which data.

Default hyperparameters, every domain held out. All rows have the same data, first weights and minibatches, so that
differences to ERM are paired by held-out domain and seed. Modifiers are applied to ERM. Some rows are controls: POGM
with κ = 0 is ERM computed by POGM's code, Reptile is POGM around the mean of the trajectories with κ = 0, and one row
rescales the direction of POGM to the length of the centre. The protocol is in results/PROTOCOL.md. Rows are in the
order of their priority for computing time, and run one after the other; methods that the order does not name come last.
"""

from collections.abc import Sequence

from pogm.algorithms import all_algorithms
from pogm.benchmark.plan.trial import Trial
from pogm.data.datasets import dataset_class
from pogm.data.datasets.array_dataset import ArrayDataset
from pogm.experiments import paired
from pogm.experiments.base import ERM, Plan, Row, Scale
from pogm.experiments.centre import ERM_CENTRE_KAPPA_0, ERM_CENTRE_RESCALED, MEAN_CENTRE
from pogm.experiments.results import paired_tables
from pogm.modifiers import all_modifiers

BY_ROW = True
SWAD = Row("ERM", ("SWAD",))
CONTROLS = (MEAN_CENTRE, ERM_CENTRE_RESCALED)  # added after the first sweep, so they come after its rows
FIRST = (  # on all data
    ERM,
    *map(Row, ("POGM", "Fish", "Reptile", "OfficialPOGM")),
    ERM_CENTRE_KAPPA_0,
    *map(Row, ("Fishr", "SAGM", "CORAL", "GroupDRO", "SagNet")),
)
ON_PHOTOGRAPHS = (  # fewer rows, because runs on photographs are slow
    *FIRST,
    SWAD,
    Row("POGM", ("SWAD",)),
    *CONTROLS,
    *(Row(algorithm, ("SMA",)) for algorithm in ("ERM", "POGM")),
    Row("ERM", ("MIRO",)),
    Row("ERMPlusPlus"),
    Row("ERM", ("MIRO", "SWAD")),
)
ON_OTHER_DATA = (
    *FIRST,
    *map(Row, ("VREx", "IRM")),
    Row("ERM", ("Mixup",)),
    *map(Row, ("MMD", "RSC", "MLDG", "DANN", "CDANN", "MTL")),
    SWAD,
    *map(Row, ("ANDMask", "SANDMask", "PCGrad", "MGDA", "CAGrad", "UPGrad", "ARM", "RDM")),
    *map(Row, ("MeasurementPOGM", "PaperTextPOGM", "MADG")),
    *(Row("ERM", (name,)) for name in ("MixStyle", "Augment", "CIRL", "ITTA")),
    *map(Row, ("EQRM", "IDGM")),
    *CONTROLS,
)
COMMON = {  # rows with five seeds on MNIST; the others have three
    *FIRST,
    *map(Row, ("VREx", "IRM", "MMD", "RSC", "MLDG", "DANN")),
    *(Row("ERM", (name,)) for name in ("Mixup", "SWAD", "SMA")),
    *CONTROLS,
}
SEEDS = {"mnist": 5, "pacs": 3, "office_caltech": 3}  # of a complete row, by scale; else as in all paired comparisons
FEWER_SEEDS = 3  # of a row on MNIST that is not common
FOR_IMAGES = ("Augment", "CIRL", "ITTA", "MixStyle")  # modifiers that refuse other inputs
FOR_NORMALIZATION = ("TENT",)  # modifiers that refuse networks without normalization layers, such as mlp


def rows(scale: Scale) -> list[Row]:
    """Return the rows for the datasets of a scale, in the order of their priority.

    Photographs have a fixed selection of rows. Other data have all registered algorithms, and ERM with every registered
    modifier that works on all datasets of the scale. Algorithms of other packages are included if --algorithms names
    them.
    """
    datasets = [dataset_class(name) for name in scale.datasets]
    if all(dataset.large for dataset in datasets):
        return [*ON_PHOTOGRAPHS, *map(Row, scale.others)]
    refused = set(FOR_IMAGES if any(issubclass(dataset, ArrayDataset) for dataset in datasets) else ())
    if "mlp" in (scale.network or dataset.training.network for dataset in datasets):
        refused.update(FOR_NORMALIZATION)
    registered = [*map(Row, all_algorithms()), *(Row("ERM", (name,)) for name in all_modifiers())]
    registered += map(Row, scale.others)
    return [row for row in dict.fromkeys([*ON_OTHER_DATA, *registered]) if not set(row.modifiers) & refused]


def needed_seeds(scale: Scale, row: Row) -> int:
    """Return the number of seeds of a complete row: that of the protocol, or of --trials."""
    if scale.name == "mnist" and not scale.was_given("--trials") and row not in COMMON:
        return FEWER_SEEDS
    more = {"seeds": SEEDS[scale.name]} if scale.name in SEEDS else {}
    return paired.paired_scale(scale, **more).seeds


def plan(scale: Scale) -> Plan:
    """Return the trials of every row. All rows have the same seeds, but some have more of them than others."""
    found: dict[Row, Sequence[Trial]] = {}
    for row in rows(scale):
        found |= paired.plan_rows(scale, [row], seeds=needed_seeds(scale, row))
    return found


exhibits = paired_tables
