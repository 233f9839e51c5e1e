"""Several optimizers, each for its own leaves: for methods in which parts of the network play against one another."""

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
    """Who moves the leaves whose names begin with one of the prefixes."""

    prefixes: tuple[str, ...]  # such as "head." or "features."
    optimizer: Optimizer

    def owns(self, name: str) -> bool:
        """Whether a leaf is this player's."""
        return name.startswith(self.prefixes)


class OptimizerGroups:
    """One optimizer made of several. A gradient of some players' leaves moves these players and no others."""

    def __init__(self, **players: OptimizerGroup):
        self.players = players

    def init(self, params: Params) -> Tree:
        """Every player's state; each leaf must have one player, and each player leaves."""
        for name in params:
            owners = [who for who, player in self.players.items() if player.owns(name)]
            if len(owners) != 1:
                raise UsageError(
                    f"Expected one player for the weights {name}; found {', '.join(owners) or 'none'}. "
                    f"The players are {', '.join(self.players)}: leave out what brought these weights, such as CIRL, "
                    "or choose another algorithm."
                )
        for who, player in self.players.items():
            if not self.leaves(params, who):
                raise UsageError(
                    f"Expected a network with weights {' or '.join(f'{p}*' for p in player.prefixes)} for the {who} "
                    "of this method; found none. It needs networks of its own, which its build() makes and a module "
                    "of yours has not: train it as a trial, for example with pogm run."
                )
        return {who: player.optimizer.init(self.leaves(params, who)) for who, player in self.players.items()}

    def update(self, params: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """Move those whose leaves the gradient has."""
        params, state = dict(params), dict(state)
        for who, player in self.players.items():
            own = self.leaves(params, who)
            if own.keys() & gradient.keys():
                group_gradient = {name: gradient[name] for name in own}
                moved, state[who] = player.optimizer.update(own, group_gradient, state[who])
                params |= moved
        return params, state

    def leaves(self, params: Params, *who: str) -> Params:
        """The weights of some players."""
        return {name: leaf for name, leaf in params.items() if any(self.players[one].owns(name) for one in who)}


Objective = Callable[[Model], Loss]


def group_gradient(
    who: tuple[str, ...], objective: Objective, state: State, problem: Problem, key: Tensor
) -> tuple[Params, Loss]:
    """The gradient of an objective by some players' weights; ``key`` is the one of this pass's random layers."""
    assert isinstance(problem.optimizer, OptimizerGroups)

    def of_own(own: Params) -> Loss:
        model = problem.model(state.params | own, state._replace(key=key))
        return objective(model)._replace(buffers=problem.live_buffers(model))

    return problem.gradient(of_own)(problem.optimizer.leaves(state.params, *who))


def group_step(
    who: tuple[str, ...], objective: Objective, state: State, problem: Problem, key: Tensor
) -> tuple[State, Loss]:
    """The state after some players moved to lower an objective and the others stood still; no step is counted."""
    gradient, loss = group_gradient(who, objective, state, problem, key)
    return state.descend(gradient, problem.optimizer, loss)._replace(step=state.step), loss
