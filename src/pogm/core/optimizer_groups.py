"""Optimizer groups: several optimizers, each for its own part of the weights, for adversarial methods."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from pogm._system.errors import UsageError
from pogm.core.model import Model
from pogm.core.optimizers import Optimizer
from pogm.core.problem import Problem
from pogm.core.state import Loss, State
from pogm.core.trees import Params, Tree


@dataclass(frozen=True)
class OptimizerGroup:
    """Weights that are selected by the prefixes of their names, and the optimizer that updates them."""

    prefixes: tuple[str, ...]  # such as "head." or "features."
    optimizer: Optimizer

    def contains(self, name: str) -> bool:
        """Return True if the weights with this name belong to the group."""
        return name.startswith(self.prefixes)


class OptimizerGroups:
    """An optimizer that consists of named groups. A gradient of some groups updates only these groups."""

    def __init__(self, **groups: OptimizerGroup):
        self.groups = groups

    def init(self, params: Params) -> Tree:
        """Return the state of every group.

        Raises:
            UsageError: Some weights are not in exactly one group, or a group has no weights.
        """
        for name in params:
            owners = [key for key, group in self.groups.items() if group.contains(name)]
            if len(owners) != 1:
                raise UsageError(
                    f"Expected one optimizer group for the weights {name}; found {', '.join(owners) or 'none'}. "
                    f"The groups are {', '.join(self.groups)}: leave out the modifier that added these weights, such "
                    "as CIRL or MIRO, or choose another algorithm."
                )
        for key, group in self.groups.items():
            if not self.leaves(params, key):
                raise UsageError(
                    f"Expected a network with weights {' or '.join(f'{p}*' for p in group.prefixes)} for the {key} "
                    "of this method; found none. It needs networks of its own, which build() adds and your module does "
                    "not have. Train it as a trial, for example with pogm run."
                )
        return {key: group.optimizer.init(self.leaves(params, key)) for key, group in self.groups.items()}

    def update(self, params: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """Update the groups whose weights are in the gradient."""
        params, state = dict(params), dict(state)
        for key, group in self.groups.items():
            weights = self.leaves(params, key)
            if weights.keys() & gradient.keys():
                group_gradient = {name: gradient[name] for name in weights}
                updated, state[key] = group.optimizer.update(weights, group_gradient, state[key])
                params |= updated
        return params, state

    def leaves(self, params: Params, *keys: str) -> Params:
        """Return the weights of some groups."""
        return {name: leaf for name, leaf in params.items() if any(self.groups[key].contains(name) for key in keys)}


Objective = Callable[[Model], Loss]


def group_gradient(
    keys: tuple[str, ...], objective: Objective, state: State, problem: Problem, key: Tensor
) -> tuple[Params, Loss]:
    """Return the gradient of an objective with respect to the weights of some groups, and the loss.

    Args:
        keys: Names of the groups.
        objective: Function of the model.
        state: State before the step.
        problem: Problem whose optimizer has these groups.
        key: Random key of the random layers in this pass.
    """
    assert isinstance(problem.optimizer, OptimizerGroups)

    def objective_of_groups(weights: Params) -> Loss:
        model = problem.model(state.params | weights, state._replace(key=key))
        return objective(model)._replace(buffers=problem.live_buffers(model))

    return problem.gradient(objective_of_groups)(problem.optimizer.leaves(state.params, *keys))


def group_step(
    keys: tuple[str, ...], objective: Objective, state: State, problem: Problem, key: Tensor
) -> tuple[State, Loss]:
    """Return the state after an update of some groups, and the loss. The step counter does not change."""
    gradient, loss = group_gradient(keys, objective, state, problem, key)
    return state.descend(gradient, problem.optimizer, loss)._replace(step=state.step), loss
