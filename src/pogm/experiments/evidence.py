"""All methods against ERM, paired: which method helps on which data.

Default hyperparameters, every domain held out. All rows have the same data, first weights and minibatches, so that
differences to ERM are paired by held-out domain and seed. Modifiers are applied to ERM. Two rows are controls: POGM
with κ = 0 is ERM computed by POGM's code, and Reptile is POGM around the mean of the trajectories with κ = 0. The
protocol is in results/PROTOCOL.md. Rows are in the order of their priority for GPU time.
"""

from collections.abc import Sequence

from pogm.benchmark.results.paired import differences
from pogm.benchmark.results.records import Run
from pogm.experiments import paired
from pogm.experiments.base import Exhibit, Plan, Row, Scale
from pogm.experiments.centre import ERM, ERM_CENTRE_KAPPA_0
from pogm.experiments.results import BOTH, averages, details

MIXUP, SWAD = Row("ERM", ("Mixup",)), Row("ERM", ("SWAD",))
ON_PHOTOGRAPHS = (  # fewer rows, because runs on photographs are slow
    ERM,
    Row("POGM"),
    Row("Fish"),
    Row("Reptile"),
    Row("OfficialPOGM"),
    ERM_CENTRE_KAPPA_0,
    Row("Fishr"),
    Row("SAGM"),
    Row("CORAL"),
    Row("GroupDRO"),
    Row("SagNet"),
    SWAD,
    Row("POGM", ("SWAD",)),
)
ROWS = (
    *ON_PHOTOGRAPHS[:-2],
    Row("VREx"),
    Row("IRM"),
    MIXUP,
    *map(Row, ("MMD", "RSC", "MLDG", "DANN", "CDANN", "MTL")),
    SWAD,
    *map(Row, ("ANDMask", "SANDMask", "PCGrad", "MGDA", "CAGrad", "UPGrad", "ARM", "RDM")),
    *map(Row, ("MeasurementPOGM", "PaperTextPOGM", "MADG")),
    *(Row("ERM", (name,)) for name in ("MixStyle", "Augment", "CIRL", "ITTA")),
    *map(Row, ("EQRM", "IDGM")),
)


def plan(scale: Scale) -> Plan:
    """Return the trials of every row, with the same seeds."""
    return paired.plan_rows(scale, ON_PHOTOGRAPHS if scale.name == "pacs" else ROWS)


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """Return accuracies, paired differences to ERM, and the results of every domain."""
    gains = [differences(runs, ERM.name, selection) for selection in BOTH if runs]
    return [*averages(runs), *gains, *details(runs)]
