"""Where each domain alone would go: copies of the model, each trained on the minibatches of one domain."""

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
from pogm.diagnostics.round import Round

PLAIN = Reptile()  # its copies take the steps of ERM


def start(algorithm: Algorithm, state: State, problem: Problem, held_out: int) -> Tree:
    """One optimizer for each copy that the algorithm does not train itself."""
    sources = 0 if isinstance(algorithm, DomainCopies) else problem.num_domains
    fresh = problem.optimizer.init(state.params)
    counts = {"sources": sources, "held_out": held_out}
    return {name: trees.repeat(fresh, count) for name, count in counts.items() if count}


def trained(optimizers: Tree, seen: Round) -> tuple[Tree, list[Copies]]:
    """The optimizers after the round; the copies of the training domains, and of the held-out ones if there are any.

    A method that trains copies (POGM) would train exactly these. For any other, as for held-out domains, they have
    optimizers of its kind that nobody else uses.
    """
    algorithm, problem, before = seen.algorithm, seen.problem, seen.before
    trainer = algorithm if isinstance(algorithm, DomainCopies) else PLAIN
    kept = dict(optimizers)

    def train(name: str, batches: list[Batch], keys: Tensor) -> Copies:
        live = trees.repeat(problem.live_buffers(before), len(keys))
        train_copy = partial(trainer.train_copy, before, problem)
        copies: Copies = problem.each_domain(train_copy, batches, optimizers[name], live, keys)
        if trainer.inner_state == "persist":
            kept[name] = copies.optimizers
        return copies

    count = problem.num_domains
    others = trees.leading(seen.held_out) if seen.held_out else 0
    keys = random.split(trainer.random_key(before), count + others)
    own = trainer is algorithm
    found = [trainer.copies(before, seen.batches, problem) if own else train("sources", seen.batches, keys[:count])]
    if others:
        found.append(train("held_out", seen.held_out, keys[count:]))
    return kept, found
