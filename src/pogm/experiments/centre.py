"""The centre of POGM's ball: ERM's trajectory, or the mean of the domains' trajectories.

The paper defines the ERM trajectory twice: as the displacement of ERM itself (Eq. 5), and as the mean of the domains'
displacements (Algorithm 1). With Adam as the inner optimizer they differ. Rows with κ = 0 do no matching: with the ERM
centre that is ERM, with the mean centre it is Reptile. One row rescales the direction to the length of the centre,
because the length of the direction varies between 0.5 and 1.5 times that. All rows have the same data, first weights
and minibatches.
"""

from pogm.experiments import paired
from pogm.experiments.base import ERM, Plan, Row, Scale
from pogm.experiments.results import paired_tables

ERM_CENTRE_KAPPA_0 = Row("POGM", settings=("kappa=0",), name="POGM, ERM centre, κ = 0")
ERM_CENTRE = Row("POGM", settings=("kappa=0.5",), name="POGM, ERM centre, κ = 0.5")
ERM_CENTRE_RESCALED = Row("POGM", settings=("kappa=0.5", "rescale=norm"), name="POGM, ERM centre, κ = 0.5, rescaled")
MEAN = ("kappa=0.5", "centre=mean")
MEAN_CENTRE = Row("POGM", settings=(*MEAN, "meta_lr=0.5"), name="POGM, mean centre, κ = 0.5, α = 0.5")
ROWS = (
    ERM,
    Row("Fish"),
    ERM_CENTRE_KAPPA_0,
    ERM_CENTRE,
    ERM_CENTRE_RESCALED,
    MEAN_CENTRE,
    Row("POGM", settings=MEAN, name="POGM, mean centre, κ = 0.5, α = 1"),
    Row("Reptile", name="Reptile (mean centre, κ = 0), α = 0.5"),
    Row("OfficialPOGM"),
)
ON_PHOTOGRAPHS = (ERM, ERM_CENTRE_KAPPA_0, ERM_CENTRE, MEAN_CENTRE)  # fewer rows, because runs on photographs are slow


def plan(scale: Scale) -> Plan:
    """Return the trials of every row, with the same seeds."""
    return paired.plan_rows(scale, ON_PHOTOGRAPHS if scale.name == "pacs" else ROWS)


exhibits = paired_tables
