"""Table 1: eighteen methods on every dataset, with ranks.

Each method is searched as in DomainBed: every domain is held out once, the first configuration is the defaults, the
others are drawn at random, and each trial has other seeds and splits. The paper selects models by test-domain
validation, which uses the test domain; the table shows training-domain validation, which does not, beside it. CIRL,
MixStyle and ITTA are applied to ERM.

Below the rows of the paper are the code of the authors (OfficialPOGM) and controls that separate the parts of POGM: no
matching (κ = 0), Reptile (no matching, mean centre), a direction that is rescaled to the length of h_0, and the mean
centre. They are not ranked.
"""

from collections.abc import Sequence

from pogm.benchmark.results.records import Run
from pogm.experiments.base import Exhibit, Plan, Row, Scale
from pogm.experiments.ranks import with_ranks
from pogm.experiments.results import averages, compare_with_paper, details
from pogm.experiments.trials import plan_search

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
    """Return the search of every row."""
    return {row: plan_search(scale, row) for row in (*PAPER, *CONTROLS)}


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """Return averages with ranks, the comparison with the paper, and the results of every domain."""
    ranked = [with_ranks(table, [row.name for row in PAPER]) for table in averages(runs)]
    return [*ranked, *compare_with_paper(runs), *details(runs)]
