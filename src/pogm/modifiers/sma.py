"""SMA: simple moving average of the weights."""

from dataclasses import dataclass

from torch import Tensor

from pogm.core.hyperparameters import hyper
from pogm.modifiers.averaging import WeightAverage


@dataclass(frozen=True)
class SMA(WeightAverage):
    r"""Simple moving average (Arpit et al., 2022): evaluate the mean of all weights since step t₀.

    .. math:: \bar\theta_t = \theta_t \quad (t \le t_0), \qquad
        \bar\theta_t = \frac{1}{t - t_0 + 1} \sum_{s = t_0}^t \theta_s \quad (t > t_0)

    Training continues from the current weights :math:`\theta_t`. Every evaluation uses the averages, so model selection
    chooses among them, and the model of the run has averaged weights. Statistics of batch norm that is not frozen are
    averaged, too, as in the code of the authors. A step is a step of the algorithm, which may use several minibatches
    (POGM with ``inner_steps``). Difference from the code of the authors: the first weights of the mean are those after
    step t₀, as in the paper; in the code, those after step t₀ − 1.

    Args:
        start_step: t₀, the step with the first weights of the mean.
    """

    start_step: int = hyper(100, least=0)  # t₀

    def rate(self, step: Tensor) -> Tensor:
        """Return 1 / (t − t₀ + 1); 1 before t₀."""
        return 1 / ((step - self.start_step).clamp(min=0).double() + 1)
