"""Loss functions by name: one value per sample, with checks of the targets that fit them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from pogm._system.errors import UsageError, unknown_name_error

LossFunction = Callable[[Tensor, Tensor], Tensor]  # outputs [N, ...] and targets [N, ...] -> losses [N]
IGNORED = -100  # class index of samples and pixels that do not count, as in torch


@dataclass(frozen=True)
class SampleLoss:
    """Loss of a task: a function of outputs and targets that returns one value per sample.

    Args:
        name: Name for messages.
        function: Function of outputs [N, ...] and targets [N, ...] that returns the losses [N].
        targets: Kind of the targets: "classes" (indices or probabilities), "labels" (numbers in [0, 1], in the shape of
            the outputs), "numbers" (in the shape of the outputs), or "any".
    """

    name: str
    function: LossFunction
    targets: str = "any"

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the losses [K, B] of outputs [K, B, ...] and targets [K, B, ...]."""
        return self.function(outputs.flatten(0, 1), targets.flatten(0, 1)).view(outputs.shape[:2])

    def output_gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the gradient of the loss of each sample with respect to its outputs: [K, B, ...].

        It is differentiable. For cross-entropy it is computed in closed form: softmax − y, and 0 for class −100.
        """
        if self.targets == "classes" and outputs.ndim == 3:
            difference = outputs.softmax(-1) - probabilities(targets, outputs.shape[-1])
            return difference if targets.is_floating_point() else difference * (targets != IGNORED).unsqueeze(-1)
        gradient: Tensor = grad(lambda values: self(values, targets).sum())(outputs)
        return gradient

    def convert_targets(self, targets: Tensor) -> Tensor:
        """Return the targets in the dtype of the loss: int64 for class indices, floats for labels and numbers."""
        if self.targets == "any" or targets.is_floating_point():
            return targets
        return targets.long() if self.targets == "classes" else targets.to(torch.get_default_dtype())

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Check that targets [N, ...] fit outputs [N, ...] by their shapes and dtypes, without a synchronisation.

        Raises:
            UsageError: They do not fit.
        """
        if self.targets == "classes":
            self._check_classes(outputs, targets)
        elif self.targets in ("labels", "numbers"):
            self._check_same_shape(outputs, targets)
        else:
            self._check_result(outputs, targets)

    def check_values(self, outputs: Tensor, targets: Tensor) -> None:
        """Check the values of targets that have passed `check`. This synchronises with the device.

        Raises:
            UsageError: A target is not finite, or outside of the range of the loss.
        """
        if targets.is_floating_point() and not bool(targets.isfinite().all()):
            raise UsageError(
                f"Expected finite targets for the loss {self.name}; found NaN or infinity in targets of shape "
                f"{list(targets.shape)}. Remove these samples."
            )
        if self.targets == "classes" and not targets.is_floating_point():
            indices = targets[targets != IGNORED]
            low, high = (int(indices.min()), int(indices.max())) if indices.numel() else (0, 0)
            if low < 0 or high >= outputs.shape[1]:
                raise UsageError(
                    f"Expected class indices from 0 to {outputs.shape[1] - 1} for outputs of shape "
                    f"{list(outputs.shape)}; found indices from {low} to {high}. Number the classes from 0, or raise "
                    "the number of outputs."
                )
        elif self.targets == "classes":
            sums = targets.sum(1)
            if bool((targets < 0).any()) or not torch.allclose(sums, torch.ones_like(sums), atol=1e-3):
                raise UsageError(
                    f"Expected class probabilities that sum to 1 for the loss {self.name}; found targets from "
                    f"{float(targets.min()):g} to {float(targets.max()):g} with sums from {float(sums.min()):g} to "
                    f"{float(sums.max()):g}. For several labels per sample choose loss='bce'; for numbers 'mse'."
                )
        elif self.targets == "labels" and (float(targets.min()) < 0 or float(targets.max()) > 1):
            raise UsageError(
                f"Expected targets between 0 and 1 for the loss {self.name}; found values from "
                f"{float(targets.min()):g} to {float(targets.max()):g}. For numbers choose loss='mse'; for class "
                "indices 'cross_entropy'."
            )

    def check_method(self, methods: Iterable[Any]) -> None:
        """Check that an algorithm and its modifiers work with this loss.

        Raises:
            UsageError: One of them needs class labels, and this loss has other targets.
        """
        for method in methods:
            if method.needs_classes and self.targets != "classes":
                raise UsageError(
                    f"Expected the loss cross_entropy for {type(method).__name__}, which uses class labels; found the "
                    f"loss {self.name}. Choose another method, or another loss."
                )

    def _check_classes(self, outputs: Tensor, targets: Tensor) -> None:
        if outputs.ndim < 2 or outputs.shape[1] < 2:
            raise UsageError(
                f"Expected outputs [N, classes, ...] with two or more classes for the loss {self.name}; found outputs "
                f"of shape {list(outputs.shape)}. For one number per sample choose loss='mse', 'l1' or 'huber'; for "
                "one yes-or-no label 'bce'."
            )
        floats = targets.is_floating_point()
        expected = outputs.shape if floats else outputs[:, 0].shape
        if targets.shape == expected:
            return
        hint = (
            "For several labels per sample choose loss='bce'."
            if targets.shape == outputs.shape
            else "Convert class indices to integers, or choose a loss for numbers: loss='mse', 'l1' or 'huber'."
            if floats
            else "Pass one class index per sample."
        )
        raise UsageError(
            f"Expected class indices {list(outputs[:, 0].shape)} (integers) or class probabilities "
            f"{list(outputs.shape)} (floats) as targets of the loss {self.name}; found {_describe(targets)}. {hint}"
        )

    def _check_same_shape(self, outputs: Tensor, targets: Tensor) -> None:
        if targets.shape != outputs.shape and (*targets.shape, 1) != outputs.shape:
            raise UsageError(
                f"Expected targets of shape {list(outputs.shape)}, like the outputs, for the loss {self.name}; found "
                f"{_describe(targets)}. Change the number of outputs of the module, or reshape the targets; for class "
                "indices choose loss='cross_entropy'."
            )

    def _check_result(self, outputs: Tensor, targets: Tensor) -> None:
        losses = self.function(outputs, targets)
        if not isinstance(losses, Tensor) or losses.shape != outputs.shape[:1]:
            found = f"a tensor of shape {list(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
            raise UsageError(
                f"Expected one value per sample, a tensor of shape {list(outputs.shape[:1])}, from the loss "
                f"{self.name}; found {found}. Use reduction='none', and take the mean over all axes but the first."
            )


def find_loss(loss: str | LossFunction | SampleLoss) -> SampleLoss:
    """Return the loss of a name, or of a function of outputs and targets that returns one value per sample.

    Raises:
        UsageError: The name is unknown, or the argument is neither a name nor a function.
    """
    if isinstance(loss, SampleLoss):
        return loss
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise unknown_name_error("a loss", loss, LOSSES)
        return LOSSES[loss]
    if not callable(loss):
        raise UsageError(
            f"Expected the name of a loss ({', '.join(LOSSES)}) or a function of outputs and targets; found {loss!r}."
        )
    return SampleLoss(getattr(loss, "__name__", type(loss).__name__), loss)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy [N] of logits [N, C] and classes: indices [N] or probabilities [N, C].

    A sample of class −100 has the loss 0. For logits [N, C, ...], as in segmentation, the loss is the mean over pixels,
    without those of class −100.
    """
    losses = F.cross_entropy(outputs, targets, reduction="none")
    if losses.ndim == 1:
        return losses
    if targets.is_floating_point():
        return _mean_per_sample(losses)
    count = (targets != IGNORED).flatten(1).sum(1).clamp(min=1)
    return losses.flatten(1).sum(1) / count


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean binary cross-entropy [N] of logits [N, ...] and labels in [0, 1] of the same shape."""
    labels = targets.to(outputs.dtype).view_as(outputs)
    return _mean_per_sample(F.binary_cross_entropy_with_logits(outputs, labels, reduction="none"))


def _of_difference(function: Callable[..., Tensor]) -> LossFunction:
    """Return a loss of numbers: the mean over the outputs of a sample of a torch function."""

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        return _mean_per_sample(function(outputs, targets.to(outputs.dtype).view_as(outputs), reduction="none"))

    return losses


def _mean_per_sample(values: Tensor) -> Tensor:
    return values if values.ndim == 1 else values.flatten(1).mean(1)


def probabilities(y: Tensor, num_classes: int) -> Tensor:
    """Return labels as class probabilities [..., C]. Class indices become one-hot vectors."""
    if y.is_floating_point():
        return y
    return (y.unsqueeze(-1) == torch.arange(num_classes, device=y.device)).float()


def _describe(targets: Tensor) -> str:
    return f"{str(targets.dtype).removeprefix('torch.')} targets of shape {list(targets.shape)}"


CROSS_ENTROPY = SampleLoss("cross_entropy", cross_entropy, "classes")
LOSSES = {
    "cross_entropy": CROSS_ENTROPY,
    "bce": SampleLoss("bce", binary_cross_entropy, "labels"),
    "mse": SampleLoss("mse", _of_difference(F.mse_loss), "numbers"),
    "l1": SampleLoss("l1", _of_difference(F.l1_loss), "numbers"),
    "huber": SampleLoss("huber", _of_difference(F.huber_loss), "numbers"),
}
