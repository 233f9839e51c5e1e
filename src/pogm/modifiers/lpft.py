"""LP-FT: linear probing, then fine-tuning."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from pogm._system.errors import UsageError
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.compilation import compiled
from pogm.core.flat_params import flat_vector, unflatten
from pogm.core.hyperparameters import hyper
from pogm.core.model import Network
from pogm.core.problem import Problem
from pogm.core.state import TRAINED, State
from pogm.core.trees import Tree
from pogm.modifiers.base import Modifier, add_part


@dataclass(frozen=True)
class LPFT(Modifier):
    r"""Linear probing, then fine-tuning (Kumar et al., 2022): train the classifier on fixed features, then all weights.

    .. math:: \phi_t = \phi_0 \quad (t \le T)

    The weights φ of the features keep their initial values for the first T steps. Then the optimizer is reset, so
    fine-tuning starts without moments of the probe, and all weights are trained. After every step of the first phase
    the features are restored: an algorithm that takes several inner steps (POGM with ``inner_steps`` above 1) moves
    them within a step. Other parts, such as a discriminator, are trained in both phases. Differences from the paper:
    both phases have the same learning rate; the probe is trained for a number of steps, on augmented images, and is not
    selected by validation; statistics of batch norm that is not frozen change in both phases.

    Args:
        linear_anneal_iters: T, the number of steps that train the classifier alone.
    """

    parallel_axes: ClassVar[tuple[str, ...]] = ("domains", "samples")

    linear_anneal_iters: int = hyper(500, least=0)  # T

    def network(self, network: Network) -> Network:
        """Add an empty part, which shows that the modifier is there: a second one would have no effect."""
        add_part(network, "linear_probe", nn.Identity())
        return network

    def start(self, state: State, problem: Problem) -> Tree:
        """Return the initial weights, and which of them are fixed in the first phase."""
        if not any(name.startswith("head.") for name in state.params):
            raise UsageError(
                "Expected a network with a head, because LPFT trains it first; found none. Name the last layer, for "
                "example Learner(module, ERM(), head='fc', modifiers=[LPFT()])."
            )
        if any(name.startswith(TRAINED) for name in state.memory):
            raise UsageError(
                "Expected an algorithm that trains the weights that it evaluates, for LPFT; found one that trains "
                "others, as ERMPlusPlus does. Leave LPFT out: ERMPlusPlus has linear_anneal_iters."
            )
        fixed = [torch.full_like(w, n.startswith("features."), dtype=torch.bool) for n, w in state.params.items()]
        return {"weights": flat_vector(state.params).clone(), "fixed": torch.cat([part.flatten() for part in fixed])}

    def after(self, memory: Tree, state: State, batches: list[Batch], problem: Problem) -> tuple[Tree, State]:
        """Restore the features in the first phase, and reset the optimizer at its end."""
        weights = _restore(memory, flat_vector(state.params), state.step <= self.linear_anneal_iters)
        kept = state.step != self.linear_anneal_iters

        def reset(leaf: Tensor) -> Tensor:  # moments on the host are reset when they are read (`apply_reset`)
            masked: Tensor = trees.mask(kept, leaf) if leaf.device == kept.device else leaf
            return masked

        optimizer = trees.map_numbers(reset, state.optimizer)
        return memory, state._replace(params=unflatten(weights, state.params), optimizer=optimizer)


@compiled
def _restore(memory: Tree, weights: Tensor, first_phase: Tensor) -> Tensor:
    return torch.where(memory["fixed"] & first_phase, memory["weights"], weights)
