"""Table 1: eighteen methods on every dataset, with ranks.

Each method is searched as in DomainBed: every domain held out once, configurations drawn at random after the first,
which is the defaults, and trials with other seeds and splits. The paper selects by test-domain validation, which looks
at the test domain; training-domain validation, which does not, is beside it. CIRL, MixStyle and ITTA are what they add
to ERM.

Below the paper's rows are the authors' own code (OfficialPOGM) and controls that separate the parts of POGM: no
matching (κ = 0), Reptile (no matching, mean centre), a direction that is rescaled to the length of h_0, and the mean
centre. They take no part in the ranks.
"""

from collections.abc import Sequence

from pogm.benchmark.results.records import Run
from pogm.experiments.base import Exhibit, Plan, Row, Scale, searched
from pogm.experiments.ranks import with_ranks
from pogm.experiments.results import averages, beside_paper, details

PAPER = (  # in the order of the paper
    Row("ERM"),
    Row("RSC"),
    Row("MTL"),
    Row("SagNet"),
    Row("ARM"),
    Row("VREx"),
    Row("ANDMask", name="AND-mask"),
    Row("SANDMask", name="SAND-mask"),
    Row("EQRM"),
    Row("ERM", ("CIRL",), name="CIRL"),
    Row("ERM", ("MixStyle",), name="MixStyle"),
    Row("Fish"),
    Row("Fishr"),
    Row("MADG"),
    Row("ERM", ("ITTA",), name="ITTA"),
    Row("SAGM"),
    Row("RDM"),
    Row("POGM"),
)
CONTROLS = (
    Row("OfficialPOGM"),
    Row("POGM", settings=("kappa=0",)),
    Row("Reptile"),
    Row("POGM", settings=("rescale=norm",)),
    Row("POGM", settings=("centre=mean",)),
)


def plan(scale: Scale) -> Plan:
    """The search of every row."""
    return {row: searched(scale, row) for row in (*PAPER, *CONTROLS)}


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """Averages with ranks, what the paper has for the same, and every domain."""
    ranked = [with_ranks(table, [row.name for row in PAPER]) for table in averages(runs)]
    return [*ranked, *beside_paper(runs), *details(runs)]
