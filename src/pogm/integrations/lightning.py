"""Lightning: train a LightningModule with any algorithm of this package."""

from collections.abc import Callable
from typing import Any

import torch

from pogm._system.errors import UsageError
from pogm.learner import Learner


class DomainTraining:
    """Mixin for a LightningModule that is trained by a `Learner`.

    It replaces ``training_step`` and ``configure_optimizers``; data, validation, callbacks and loggers stay as they
    are. It works with the packages ``lightning`` and ``pytorch_lightning``. Checkpoints of the Trainer contain the
    state of the Learner: ``trainer.fit(module, ckpt_path=...)`` continues with the same bits after a checkpoint at the
    end of an epoch. ``trainer.global_step`` counts steps of the algorithm. Scalar metrics are logged as ``train_loss``
    and so on.

    The training dataloader returns one minibatch per domain if it is a dictionary of DataLoaders:
    ``{"Basel": DataLoader(...), "Bern": DataLoader(...)}``. For one DataLoader with domain labels, override
    `split_batch`.

    One device and ``precision="32-true"`` are supported. Others are refused with a `UsageError`.

    Example:
        >>> from lightning.pytorch import LightningModule
        >>> from pogm import POGM, Learner
        >>> from pogm.integrations.lightning import DomainTraining
        >>> class Classifier(LightningModule):  # an existing module
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.network = torch.nn.Linear(4, 2)
        >>> class DomainClassifier(DomainTraining, Classifier):
        ...     def configure_learner(self):
        ...         return Learner(self.network, POGM(), optimizer="adamw", lr=1e-3)
    """

    trainer: Any  # this and the next two: of LightningModule
    optimizers: Any
    log_dict: Any

    automatic_optimization = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Check that no other method replaces those of this class: the Learner would not train without an error."""
        super().__init_subclass__(**options)
        for name in ("training_step", "configure_optimizers", "automatic_optimization"):
            if getattr(cls, name) is not getattr(DomainTraining, name):
                raise UsageError(
                    f"Expected {name} of DomainTraining in the class {cls.__name__}, because a Learner trains it; "
                    "found another one. Delete it, or name DomainTraining first: class "
                    f"{cls.__name__}(DomainTraining, ...)."
                )

    def configure_learner(self) -> Learner:
        """Return the Learner of a training: its module, algorithm, loss and optimizer. To be defined by the user."""
        raise UsageError(
            f"Expected the method configure_learner in the class {type(self).__name__}; found none. Define it: "
            "return Learner(self.network, POGM(), lr=1e-3)."
        )

    def split_batch(self, batch: Any) -> tuple[Any, Any]:
        """Return the arguments of `Learner.step`: minibatches, and the domain of every sample or None.

        The default is for dataloaders that return one minibatch per domain. For a DataLoader that returns
        ``(x, y, domain)``, override it: ``x, y, domain = batch``, then ``return (x, y), domain``.
        """
        return batch, None

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the Learner in the form of an optimizer."""
        strategy = type(self.trainer.strategy)
        if "SingleDeviceStrategy" not in {base.__name__ for base in strategy.__mro__}:
            raise UsageError(
                "Expected one device, because a Learner does not exchange gradients between processes; found "
                f"{strategy.__name__} with {self.trainer.world_size} processes. Pass Trainer(devices=1), or call "
                "pogm.backward(..., group=torch.distributed.group.WORLD) in a training_step of your own."
            )
        if self.trainer.precision != "32-true":
            raise UsageError(
                f"Expected Trainer(precision='32-true'); found {self.trainer.precision!r}. For mixed precision pass "
                "Learner(..., precision='bf16')."
            )
        return LearnerOptimizer(self.configure_learner())

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any] | None:
        """Train on one minibatch of each domain, and log the scalar metrics.

        Returns:
            The metrics of the algorithm; None if it waits for more minibatches.
        """
        optimizer = self.optimizers()
        metrics: dict[str, Any] | None = optimizer.learner.step(*self.split_batch(batch))
        if metrics is None:
            return None
        optimizer.step()  # Lightning counts the steps of its optimizers
        self.log_dict({f"train_{name}": value for name, value in metrics.items() if value.numel() == 1})
        return metrics


class LearnerOptimizer(torch.optim.Optimizer):
    """A Learner in the form of an optimizer: Lightning counts its steps and saves its state.

    Args:
        learner: Learner whose state is saved. It changes the weights itself; ``step`` does not.
    """

    def __init__(self, learner: Learner):
        super().__init__(learner.module.parameters(), {})
        self.learner = learner

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Do nothing: ``Learner.step`` has changed the weights."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the Learner without the weights, which Lightning saves with the module."""
        return {name: value for name, value in self.learner.state_dict().items() if name != "module"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state. Lightning has loaded the weights before."""
        self.learner.load_state_dict({**state_dict, "module": self.learner.module.state_dict()})
