"""Several optimizers, each for its own leaves: for methods in which parts of the network play against one another."""

from dataclasses import dataclass

from pogm.core.errors import UsageError
from pogm.core.optim import Optimizer
from pogm.core.trees import Params, Tree


@dataclass(frozen=True)
class Player:
    """Who moves the leaves whose names begin with one of the prefixes."""

    prefixes: tuple[str, ...]  # such as "head." or "features."
    optimizer: Optimizer

    def owns(self, name: str) -> bool:
        """Whether a leaf is this player's."""
        return name.startswith(self.prefixes)


class Players:
    """One optimizer made of several. A gradient of some players' leaves moves these players and no others.

    ``problem.gradient`` takes the leaves to differentiate by, so a move of one player reads::

        own = players.leaves("style", state.params)
        gradient, loss = problem.gradient(lambda own: self.style_loss(problem.model(state.params | own, state)))(own)
        state = state.descend(gradient, problem.optimizer, loss)
    """

    def __init__(self, **players: Player):
        self.players = players

    def init(self, params: Params) -> Tree:
        """Every player's state; each leaf must have one player."""
        for name in params:
            owners = [who for who, player in self.players.items() if player.owns(name)]
            if len(owners) != 1:
                raise UsageError(
                    f"Expected one player for the weights {name}; found {', '.join(owners) or 'none'}. "
                    f"The players are {', '.join(self.players)}."
                )
        return {who: player.optimizer.init(self.leaves(who, params)) for who, player in self.players.items()}

    def update(self, params: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """Move those whose leaves the gradient has."""
        params, state = dict(params), dict(state)
        for who, player in self.players.items():
            own = self.leaves(who, params)
            if own and own.keys() <= gradient.keys():
                slopes = {name: gradient[name] for name in own}
                moved, state[who] = player.optimizer.update(own, slopes, state[who])
                params |= moved
        return params, state

    def leaves(self, who: str, params: Params) -> Params:
        """The weights of one player."""
        return {name: leaf for name, leaf in params.items() if self.players[who].owns(name)}
