"""The base class of all modifiers, with the hooks that a modifier can override."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from pogm._system.errors import UsageError
from pogm._system.moved import check_attributes
from pogm.core.batch import Batch
from pogm.core.hyperparameters import validate
from pogm.core.model import Model, Network, Penalty, Risks
from pogm.core.problem import Problem
from pogm.core.state import State
from pogm.core.trees import Params, Tree

ONLINE = "unlabelled images of the test domain (batches of 64, this one and earlier ones)"  # for `sees_at_test`
Predictor = Callable[[Tensor], Tensor]  # images of one domain, or a part of them -> logits


@dataclass(frozen=True)
class Modifier:
    """A change of training or prediction that combines with any algorithm. Override only the hooks that it needs.

    An instance never changes; its fields are the hyperparameters. What a modifier keeps between steps is in the memory
    that `start` creates and that `after` and `observe` return.
    """

    needs_classes: ClassVar[bool] = False  # True if the modifier uses class labels, so that only cross-entropy fits
    needs_network: ClassVar[str] = ""  # what it needs of the network, in words, for lists
    prediction_batch_size: ClassVar[int] = 0  # images of one domain to predict together; 0: each one alone
    sees_at_test: ClassVar[str] = ""  # what it uses at test time besides the image itself, in words; tables show it
    parallel_axes: ClassVar[tuple[str, ...]] = ()  # axes that processes may divide without changing the result
    # False if training has the same weights and metrics without the modifier, because it changes only the evaluation.
    # Runs that differ in such modifiers alone are trained once (benchmark/plan/shared_training.py). The state that
    # `after` returns is not used, and `network` may check the network, but must not change it.
    changes_training: ClassVar[bool] = True

    @property
    def mixes_samples(self) -> bool:
        """Return whether the result for a sample depends on the other samples of the minibatch."""
        return "samples" not in self.parallel_axes

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_attributes(cls)
        if "changes_training" not in vars(cls) and vars(cls).keys() & {"network", "after"}:
            cls.changes_training = True  # a subclass of SMA, for example, that changes the weights
        changed = [hook for hook in ("batch", "penalty", "risks") if getattr(cls, hook) is not getattr(Modifier, hook)]
        if changed and not cls.changes_training:
            raise TypeError(
                f"Expected changes_training = True, because {cls.__name__} overrides {', '.join(changed)}; found False."
            )

    def __post_init__(self) -> None:
        validate(self)

    def network(self, network: Network) -> Network:
        """Change the network once, after it is built."""
        return network

    def batch(self, batch: Batch, key: Tensor, num_classes: int) -> Batch:
        """Change a minibatch before the algorithm uses it. Inputs are [K, B, ...] of K domains."""
        return batch

    @property
    def changes_batches(self) -> bool:
        """Return whether the modifier overrides `batch`."""
        return type(self).batch is not Modifier.batch

    @property
    def changes_evaluation(self) -> bool:
        """Return whether the modifier changes the weights to evaluate, or their predictions."""
        kind, hooks = type(self), ("evaluated", "predictor", "prediction_batch_size")
        return any(getattr(kind, hook) is not getattr(Modifier, hook) for hook in hooks)

    @property
    def changes_only_prediction(self) -> bool:
        """Return whether the modifier overrides `predictor`, and no hook that changes training or its result."""
        kind, hooks = type(self), ("batch", "penalty", "risks", "after", "observe", "final")
        training = [hook for hook in hooks if getattr(kind, hook) is not getattr(Modifier, hook)]
        return kind.predictor is not Modifier.predictor and not training

    def penalty(self, model: Model, batch: Batch) -> Tensor | float:
        """Return a term to add to the risk of each domain: [K], or 0."""
        return 0.0

    def risks(self, model: Model, batch: Batch) -> Tensor:
        """Return risks that replace those of the algorithm: [K]."""
        raise NotImplementedError

    def start(self, state: State, problem: Problem) -> Tree:
        """Return the memory of the modifier before the first step."""
        return {}

    def after(self, memory: Tree, state: State, batches: list[Batch], problem: Problem) -> tuple[Tree, State]:
        """Return the new memory and the state, after every step of the algorithm."""
        return memory, state

    def observe(self, memory: Tree, loss: Tensor, step: int) -> Tree:
        """Return the new memory after an evaluation; ``loss`` is the validation loss of the evaluated weights."""
        return memory

    def evaluated(self, memory: Tree, state: State) -> State:
        """Return the state with the weights and buffers to evaluate, select and store instead of the current ones.

        Training continues from the current weights.
        """
        return state

    def final(self, memory: Tree, params: Params) -> tuple[Params, Tensor]:
        """Return the weights that the run reports instead of the last ones, and the step that they belong to."""
        raise NotImplementedError

    def predictor(self, predict: Predictor, model: Model) -> Predictor:
        """Return the function that predicts the images of one domain and split; it may keep state between batches."""
        return predict

    @classmethod
    def penalties(cls, modifiers: "Sequence[Modifier]") -> tuple[Penalty, ...]:
        """Return the penalties of all modifiers that override `penalty`."""
        return tuple(modifier.penalty for modifier in modifiers if type(modifier).penalty is not cls.penalty)

    @classmethod
    def find_risks(cls, modifiers: "Sequence[Modifier]") -> Risks | None:
        """Return the `risks` of the modifier that overrides it, or None; raise a `UsageError` if there are two."""
        found = [modifier for modifier in modifiers if type(modifier).risks is not cls.risks]
        _check_one(found, "replaces the risk")
        return found[0].risks if found else None

    @classmethod
    def run_after(
        cls,
        modifiers: "Sequence[Modifier]",
        memory: dict[str, Tree],
        state: State,
        batches: list[Batch],
        problem: Problem,
    ) -> tuple[dict[str, Tree], State]:
        """Run `after` of all modifiers, in their order; those that choose weights are last, so they see all changes.

        Args:
            modifiers: All modifiers of the run.
            memory: Memory of each modifier, by its index.
            state: State after the step of the algorithm.
            batches: Minibatches of the step.
            problem: The training problem.

        Returns:
            The new memories and the state.
        """
        memory = dict(memory)
        for index in sorted(range(len(modifiers)), key=lambda index: modifiers[index].chooses_weights):
            memory[str(index)], changed = modifiers[index].after(memory[str(index)], state, batches, problem)
            state = changed if modifiers[index].changes_training else state
        return memory, state

    @property
    def chooses_weights(self) -> bool:
        """Return whether the modifier overrides `evaluated` or `final`."""
        return type(self).evaluated is not Modifier.evaluated or type(self).final is not Modifier.final

    @classmethod
    def needs_validation_loss(cls, modifiers: "Sequence[Modifier]") -> bool:
        """Return True if a modifier overrides `observe`, which gets the validation loss."""
        return any(type(modifier).observe is not cls.observe for modifier in modifiers)

    @classmethod
    def check_test_time(cls, modifiers: "Sequence[Modifier]") -> None:
        """Raise a `UsageError` if two modifiers adapt at test time: each would see what the other has changed."""
        _check_one([modifier for modifier in modifiers if modifier.sees_at_test], "adapts at test time")

    @classmethod
    def find_final(cls, modifiers: "Sequence[Modifier]") -> int | None:
        """Return the index of the modifier that overrides `final`, or None; raise a `UsageError` if there are two."""
        indices = [index for index, modifier in enumerate(modifiers) if type(modifier).final is not cls.final]
        _check_one([modifiers[index] for index in indices], "chooses the final weights")
        return indices[0] if indices else None

    @classmethod
    def find_evaluated(cls, modifiers: "Sequence[Modifier]") -> int | None:
        """Return the index of the modifier that overrides `evaluated`, or None.

        Raises:
            UsageError: Two modifiers override `evaluated`, or one `evaluated` and one `final`.
        """
        indices = [index for index, modifier in enumerate(modifiers) if type(modifier).evaluated is not cls.evaluated]
        if indices:
            _check_one([m for m in modifiers if m.chooses_weights], "chooses the weights to evaluate")
        return indices[0] if indices else None


def add_part(network: Network, name: str, part: nn.Module) -> None:
    """Add a part to the network; raise a `UsageError` if the name is taken."""
    if name in dict(network.named_children()):
        raise UsageError(
            f"Expected a network without a part called {name}; found one, as if a modifier were given twice. "
            "Leave one of the two out."
        )
    network.add_module(name, part)


def check_head_takes(z: Tensor, inputs: int, name: str) -> None:
    """Raise a `UsageError` if the head takes other inputs than the features z; ``name`` is the modifier."""
    if z.shape[-1] != inputs:
        raise UsageError(
            f"Expected a head that takes the {z.shape[-1]} features alone, for {name}; found one with {inputs} inputs. "
            f"Choose another algorithm, or leave {name} out."
        )


def _check_one(found: Sequence[Modifier], does: str) -> None:
    if len(found) > 1:
        names = " and ".join(type(modifier).__name__ for modifier in found)
        raise UsageError(f"Expected one modifier that {does}; found {names}. Leave one out.")
