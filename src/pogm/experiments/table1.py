"""Table 1: eighteen methods on every dataset, with ranks.

Each method is searched as in DomainBed: every domain held out once, configurations drawn at random after the first,
which is the defaults, and trials with other seeds and splits. The paper selects by test-domain validation, which looks
at the test domain; training-domain validation, which does not, is beside it. CIRL, MixStyle and ITTA are what they add
to ERM.
"""

from collections.abc import Sequence

from pogm.benchmark.records import Run
from pogm.benchmark.trial import Trial
from pogm.experiments.base import Exhibit, Scale, searched
from pogm.experiments.ranks import with_ranks
from pogm.experiments.results import averages, beside_paper, details, relabelled

ROWS = {  # the paper's, in its order: its name, our algorithm and modifiers
    "ERM": ("ERM",),
    "RSC": ("RSC",),
    "MTL": ("MTL",),
    "SagNet": ("SagNet",),
    "ARM": ("ARM",),
    "VREx": ("VREx",),
    "AND-mask": ("ANDMask",),
    "SAND-mask": ("SANDMask",),
    "EQRM": ("EQRM",),
    "CIRL": ("ERM", "CIRL"),
    "MixStyle": ("ERM", "MixStyle"),
    "Fish": ("Fish",),
    "Fishr": ("Fishr",),
    "MADG": ("MADG",),
    "ITTA": ("ERM", "ITTA"),
    "SAGM": ("SAGM",),
    "RDM": ("RDM",),
    "POGM": ("POGM",),
}


def plan(scale: Scale) -> list[Trial]:
    """The search of every row."""
    return [trial for algorithm, *modifiers in ROWS.values() for trial in searched(scale, algorithm, *modifiers)]


def exhibits(runs: Sequence[Run], scale: Scale) -> list[Exhibit]:
    """Averages with ranks, what the paper has for the same, and every domain."""
    rows = relabelled(runs, {" + ".join(parts): name for name, parts in ROWS.items()})
    return [*map(with_ranks, averages(rows)), *beside_paper(rows), *details(rows)]
