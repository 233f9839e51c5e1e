"""The classifier of several layers that DomainBed offers in place of one."""

from torch import nn

from pogm._system.errors import UsageError


def nonlinear(linear: nn.Module) -> nn.Sequential:
    """Three layers with the inputs and outputs of one; each has half the inputs of the one before."""
    if not isinstance(linear, nn.Linear):
        raise UsageError(
            f"Expected an algorithm with a linear classifier for nonlinear_classifier; found {type(linear).__name__}. "
            "Leave nonlinear_classifier off."
        )
    width, classes = linear.in_features, linear.out_features
    return nn.Sequential(
        nn.Linear(width, width // 2),
        nn.ReLU(),
        nn.Linear(width // 2, width // 4),
        nn.ReLU(),
        nn.Linear(width // 4, classes),
    )
