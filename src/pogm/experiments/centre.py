"""The centre of POGM's ball: ERM's trajectory, or the mean of the domains' trajectories.

The paper defines the ERM trajectory twice: as the displacement of ERM itself (Eq. 5), and as the mean of the domains'
displacements (Algorithm 1). With Adam inside they differ. Rows with κ = 0 do not match at all; around ERM's trajectory
that is ERM, around the mean it is Reptile. One row rescales the direction to the length of the centre, because the
direction's length varies between 0.5 and 1.5 times that. All methods see the same data, first weights and minibatches.
"""

from collections.abc import Sequence

from pogm.algorithms.base import Algorithm
from pogm.algorithms.erm import ERM
from pogm.algorithms.fish import Fish
from pogm.algorithms.pogm import POGM
from pogm.algorithms.pogm_published import OfficialPOGM
from pogm.algorithms.reptile import Reptile
from pogm.benchmark.records import Run
from pogm.benchmark.trial import Trial
from pogm.experiments import paired
from pogm.experiments.base import Exhibit, Scale
from pogm.experiments.results import BOTH, averages, details

ROWS: dict[str, Algorithm] = {
    "ERM": ERM(),
    "Fish": Fish(),
    "POGM, ERM centre, κ = 0": POGM(kappa=0.0),
    "POGM, ERM centre, κ = 0.5": POGM(kappa=0.5),
    "POGM, ERM centre, κ = 0.5, rescaled": POGM(kappa=0.5, rescale="norm"),
    "POGM, mean centre, κ = 0.5, α = 0.5": POGM(kappa=0.5, centre="mean", meta_lr=0.5),
    "POGM, mean centre, κ = 0.5, α = 1": POGM(kappa=0.5, centre="mean"),
    "Reptile (mean centre, κ = 0), α = 0.5": Reptile(),
    "OfficialPOGM": OfficialPOGM(),
}
ON_PHOTOGRAPHS = ("ERM", "POGM, ERM centre, κ = 0", "POGM, ERM centre, κ = 0.5", "POGM, mean centre, κ = 0.5, α = 0.5")


def rows(scale: Scale) -> dict[str, Algorithm]:
    """The rows of a scale: fewer on photographs, where a run takes half a minute of a GPU."""
    return {name: ROWS[name] for name in ON_PHOTOGRAPHS} if scale.name == "pacs" else ROWS


def plan(scale: Scale) -> list[Trial]:
    """Every row with the same seeds."""
    return [trial for _, trial in paired.planned(scale, rows(scale))]


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """Accuracies, paired differences to ERM, and every domain."""
    found = paired.labelled(runs, scale, rows(scale))
    between = [paired.differences(found, "ERM", selection) for selection in BOTH]
    return [*averages(found), *between, *details(found)]
