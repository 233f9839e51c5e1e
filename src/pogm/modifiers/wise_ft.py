"""WiSE-FT: interpolation between the initial and the current weights."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pogm.core.batch import Batch
from pogm.core.hyperparameters import Choice, hyper
from pogm.core.problem import Problem
from pogm.core.state import State
from pogm.core.trees import Tree
from pogm.modifiers.averaging import WeightAverage, interpolate


@dataclass(frozen=True)
class WiSEFT(WeightAverage):
    r"""Weight-space ensemble (Wortsman et al., 2022): evaluate a mixture of the first and the current weights.

    .. math:: \bar\theta_t = (1 - \alpha) \theta_{t_0} + \alpha \theta_t \quad (t > t_0), \qquad
        \bar\theta_t = \theta_t \quad (t \le t_0)

    Training continues from the current weights :math:`\theta_t`. Every evaluation uses the interpolation, so model
    selection chooses among interpolated weights, and the model of the run has them. Statistics of batch norm that is
    not frozen are interpolated, too. The paper starts from a zero-shot classifier, so its initial weights can classify.
    Here the first classifier is random: combine WiSEFT with LPFT, and set t₀ to its number of steps. Then
    :math:`\theta_{t_0}` are the pretrained features with a linear probe. With α = 1 the current weights are evaluated.

    Args:
        alpha: Share α of the current weights (the paper recommends 0.5 if it cannot be tuned).
        start_step: t₀, the step whose weights are interpolated with the current ones; 0 for the initial weights.
    """

    changes_training: ClassVar[bool] = False

    alpha: float = hyper(0.5, Choice(0.3, 0.5, 0.7, 0.9), least=0, most=1)
    start_step: int = hyper(0, least=0)  # t₀

    def rate(self, step: Tensor) -> Tensor:
        """Return 1 up to t₀, then 0: the memory keeps the weights of step t₀."""
        return (step <= self.start_step).double()

    def after(self, memory: Tree, state: State, batches: list[Batch], problem: Problem) -> tuple[Tree, State]:
        """Keep the weights of step t₀."""
        return super().after(memory, state, batches, problem) if self.start_step else (memory, state)

    def evaluated(self, memory: Tree, state: State) -> State:
        """Return the state with the interpolated weights."""
        alpha = torch.zeros((), dtype=torch.float64, device=state.step.device) + self.alpha
        return super().evaluated(interpolate(memory, state, alpha), state)
