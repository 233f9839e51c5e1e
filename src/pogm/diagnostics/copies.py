"""Copies of the model that are each trained on the minibatches of one domain, as a reference for the probe."""

from functools import partial

from torch import Tensor

from pogm.algorithms.base import Algorithm
from pogm.algorithms.copies import Copies, DomainCopies
from pogm.algorithms.reptile import Reptile
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.problem import Problem
from pogm.core.state import State
from pogm.core.trees import Tree
from pogm.diagnostics.measurements import Round

ERM_COPIES = Reptile()  # its copies take steps of ERM


def start_optimizers(algorithm: Algorithm, state: State, problem: Problem, held_out: int) -> Tree:
    """Return one optimizer state for each copy that the algorithm does not train itself."""
    sources = 0 if isinstance(algorithm, DomainCopies) else problem.num_domains
    fresh = problem.optimizer.init(state.params)
    counts = {"sources": sources, "held_out": held_out}
    return {name: trees.repeat(fresh, count) for name, count in counts.items() if count}


def train_copies(optimizers: Tree, measured: Round) -> tuple[Tree, list[Copies]]:
    """Train one copy per domain on the minibatches of the round.

    An algorithm that trains copies itself (POGM) trains exactly these copies. For other algorithms and for held-out
    domains, the copies have their own optimizers, of the same kind as the algorithm's.

    Returns:
        The optimizer states after the round; and the copies of the training domains, followed by those of the held-out
        domains if there are any.
    """
    algorithm, problem, before = measured.algorithm, measured.problem, measured.before
    trainer = algorithm if isinstance(algorithm, DomainCopies) else ERM_COPIES
    updated = dict(optimizers)

    def train(name: str, batches: list[Batch], keys: Tensor) -> Copies:
        live = trees.repeat(problem.live_buffers(before), len(keys))
        train_copy = partial(trainer.train_copy, before, problem)
        copies: Copies = problem.each_domain(train_copy, batches, optimizers[name], live, keys)
        if trainer.inner_state == "persist":
            updated[name] = copies.optimizers
        return copies

    count = problem.num_domains
    others = trees.leading_size(measured.held_out) if measured.held_out else 0
    keys = random.split(trainer.random_key(before), count + others)
    if trainer is algorithm:
        copies = [trainer.copies(before, measured.batches, problem)]
    else:
        copies = [train("sources", measured.batches, keys[:count])]
    if others:
        copies.append(train("held_out", measured.held_out, keys[count:]))
    return updated, copies
