"""EMA: exponential moving average of the weights."""

from dataclasses import dataclass

from torch import Tensor

from pogm.core.hyperparameters import Choice, hyper
from pogm.modifiers.averaging import WeightAverage


@dataclass(frozen=True)
class EMA(WeightAverage):
    r"""Exponential moving average (Tarvainen and Valpola, 2017): evaluate an average of the recent weights.

    .. math:: \bar\theta_t = \frac{1 - \beta}{1 - \beta^t} \sum_{s = 1}^t \beta^{t - s} \theta_s

    Training continues from the current weights :math:`\theta_t`. Every evaluation uses the averages, so model selection
    chooses among them, and the model of the run has averaged weights. The factor :math:`1 / (1 - \beta^t)` is the bias
    correction of Adam: the coefficients add up to 1, and the initial weights are not in the sum. Other implementations
    start the average at the initial weights, or use a smaller β in the first steps. Statistics of batch norm that is
    not frozen are averaged, too. With β = 0 the averages are the current weights.

    Args:
        decay: β; the average extends over about 1 / (1 − β) steps.
    """

    decay: float = hyper(0.999, Choice(0.99, 0.995, 0.999), least=0, most=0.999999)  # β

    def rate(self, step: Tensor) -> Tensor:
        """Return (1 − β) / (1 − β^t)."""
        return (1 - self.decay) / (1 - self.decay ** step.clamp(min=1).double())
