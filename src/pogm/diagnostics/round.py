"""What a probe is shown."""

from typing import NamedTuple

from pogm.algorithms.base import Algorithm
from pogm.core.batch import Batch
from pogm.core.problem import Problem
from pogm.core.state import State


class Round(NamedTuple):
    """One round of a run: what went in, and what came of it."""

    algorithm: Algorithm
    problem: Problem
    before: State
    after: State
    batches: list[Batch]  # [K, B, ...] each
    held_out: list[Batch]  # [T, B, ...] each; none unless the probe asks for them
