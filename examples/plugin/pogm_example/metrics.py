"""A metric of another package."""

import numpy as np
import numpy.typing as npt


def brier_score(outputs: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> float | None:
    """Brier score (Brier, 1950): mean squared difference of the probabilities and the true class; 0 is perfect."""
    if outputs.ndim == 1:  # predictions of a regression: the metric does not apply
        return None
    truth = np.eye(outputs.shape[1])[labels]
    return float(((outputs - truth) ** 2).sum(1).mean())
