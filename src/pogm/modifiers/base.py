"""A change that composes with any algorithm."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from pogm._system.errors import UsageError
from pogm.core.batch import Batch
from pogm.core.hyperparameters import validate
from pogm.core.model import Model, Network, Penalty, Risks
from pogm.core.problem import Problem
from pogm.core.state import State
from pogm.core.trees import Params, Tree

Predictor = Callable[[Tensor], Tensor]  # images of one domain, or a part of them, to logits


@dataclass(frozen=True)
class Modifier:
    """Override only what the change touches."""

    predicts_by: ClassVar[int] = 0  # as of an algorithm: images of one domain that are predicted together
    spreads: ClassVar[tuple[str, ...]] = ()  # as of an algorithm: what processes may divide among them

    @property
    def mixes_samples(self) -> bool:
        """True if a pass depends on which samples are in it, so that processes could not divide them."""
        return "samples" not in self.spreads

    def __post_init__(self) -> None:
        validate(self)

    def network(self, network: Network) -> Network:
        """The network, once, when it is built."""
        return network

    def batch(self, batch: Batch, key: Tensor, num_classes: int) -> Batch:
        """Every minibatch, before the algorithm sees it."""
        return batch

    @property
    def changes_batches(self) -> bool:
        """Whether it overrides that."""
        return type(self).batch is not Modifier.batch

    def penalty(self, model: Model, batch: Batch) -> Tensor | float:
        """What joins the risk of every domain: [K], or 0."""
        return 0.0

    def risks(self, model: Model, batch: Batch) -> Tensor:
        """What replaces the risk of every domain: [K]."""
        raise NotImplementedError

    def start(self, state: State, problem: Problem) -> Tree:
        """What it keeps from round to round."""
        return {}

    def after(self, memory: Tree, state: State, batches: list[Batch], problem: Problem) -> tuple[Tree, State]:
        """After every round of the algorithm: what it keeps, and the state, perhaps changed once more."""
        return memory, state

    def observe(self, memory: Tree, loss: Tensor, step: int) -> Tree:
        """At every evaluation, what it keeps; ``loss`` is that of the validation images, of the current weights."""
        return memory

    def final(self, memory: Tree, params: Params) -> tuple[Params, Tensor]:
        """At the end of a run: the weights that stand for it instead of the last ones, and the step they are of."""
        raise NotImplementedError

    def predictor(self, predict: Predictor, model: Model) -> Predictor:
        """How images of one domain are predicted: made anew for each domain and split, so it may learn from them."""
        return predict

    @classmethod
    def penalties(cls, modifiers: "Sequence[Modifier]") -> tuple[Penalty, ...]:
        """Those of the modifiers that have one."""
        return tuple(modifier.penalty for modifier in modifiers if type(modifier).penalty is not cls.penalty)

    @classmethod
    def replacement(cls, modifiers: "Sequence[Modifier]") -> Risks | None:
        """What replaces the risks, if a modifier does."""
        found = [modifier for modifier in modifiers if type(modifier).risks is not cls.risks]
        _check_one(found, "replaces the risk")
        return found[0].risks if found else None

    @classmethod
    def observing(cls, modifiers: "Sequence[Modifier]") -> bool:
        """Whether a modifier wants to know the validation loss."""
        return any(type(modifier).observe is not cls.observe for modifier in modifiers)

    @classmethod
    def ending(cls, modifiers: "Sequence[Modifier]") -> int | None:
        """The place of the modifier that has the last word about the weights, if one has."""
        places = [place for place, modifier in enumerate(modifiers) if type(modifier).final is not cls.final]
        _check_one([modifiers[place] for place in places], "has the last word about the weights")
        return places[0] if places else None


def add_part(network: Network, name: str, part: nn.Module) -> None:
    """Give the network one more part."""
    if name in dict(network.named_children()):
        raise UsageError(
            f"Expected a network without a part called {name}; found one, as where a modifier is named twice. "
            "Leave one of the two out."
        )
    network.add_module(name, part)


def check_head_takes(z: Tensor, inputs: int, name: str) -> None:
    """Refuse a head that takes more than features, for a modifier that calls it with these alone."""
    if z.shape[-1] != inputs:
        raise UsageError(
            f"Expected a head that takes the {z.shape[-1]} features alone, for {name}; found one with {inputs} inputs. "
            f"Choose another algorithm, or leave {name} out."
        )


def _check_one(found: Sequence[Modifier], does: str) -> None:
    if len(found) > 1:
        names = " and ".join(type(modifier).__name__ for modifier in found)
        raise UsageError(f"Expected one modifier that {does}; found {names}. Leave one out.")
