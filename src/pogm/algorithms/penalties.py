"""Penalties that several algorithms share."""

from torch import Tensor

from pogm._system.errors import UsageError
from pogm.core.losses import CROSS_ENTROPY, SampleLoss


def scale_derivatives(logits: Tensor, y: Tensor, loss: SampleLoss = CROSS_ENTROPY) -> Tensor:
    """Return dℓ(s f)/ds = ∇ℓ(f)·f at s = 1 for each sample, [K, B]. For cross-entropy, ∇ℓ(f) is softmax − y."""
    products = loss.output_gradient(logits, y) * logits
    return products.sum(-1) if logits.ndim == 3 else products.flatten(2).sum(-1)


def feature_variance(z: Tensor) -> Tensor:
    """Return the mean over domains and features of the variance over samples; z is [K, B, n]."""
    if z.shape[1] < 2:
        raise UsageError(
            "Expected minibatches of at least 2 samples for an information bottleneck, which computes variances; "
            "found 1. Raise batch_size."
        )
    return z.var(1).mean()
