"""Hugging Face: a Trainer whose gradient is the combination of the gradients of the domains."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from pogm._system.errors import UsageError
from pogm.algorithms.base import Algorithm
from pogm.learner import backward

try:
    from transformers import Trainer
    from transformers.training_args import ParallelMode
except ImportError as error:
    raise ImportError(
        "Expected the package transformers for pogm.integrations.huggingface; found none. Install it: pip install "
        "'pogm[huggingface]'"
    ) from error


class DomainTrainer(Trainer):  # type: ignore[misc]
    """Trainer of Hugging Face that combines the gradients of the domains by `backward`.

    Every minibatch has a column of integers with the domain of each sample. The loss of each domain is computed by
    ``compute_loss`` (of the model, of ``compute_loss_func`` or of a subclass). Only the gradient differs from that of
    ``Trainer``: optimizer, learning rate schedule, gradient clipping, checkpoints, evaluation and callbacks are the
    same. The training loss in the log is the mean over the domains in a minibatch.

    Supported are one process with one device and ``bf16``. Several GPUs, DeepSpeed, FSDP, ``fp16``, ``torch_compile``,
    LOMO and gradient accumulation are refused with a `UsageError`.

    Args:
        *args: Arguments of ``Trainer``.
        method: Method that combines the gradients, such as ``POGM()``; see `backward`.
        domain_column: Column of the training dataset with the domains. Evaluation datasets may have it, too.
        **options: Arguments of ``Trainer``.

    ``examples/huggingface_trainer.py`` is a complete example.
    """

    def __init__(self, *args: Any, method: Algorithm, domain_column: str = "domain", **options: Any):
        self.method, self.domain_column = method, domain_column
        super().__init__(*args, **options)
        self._check_arguments()

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Add the combined gradient to ``.grad``.

        Returns:
            The mean loss of the domains.
        """
        model.train()
        if hasattr(self.optimizer, "train"):  # schedule-free optimizers have modes
            self.optimizer.train()
        batches = self._split_domains(self._prepare_inputs(inputs))
        with self.compute_loss_context_manager():
            losses = [self.compute_loss(model, batch) for batch in batches]
        loss: Tensor = backward(losses, model.parameters(), self.method)["loss"]
        return loss

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **options: Any) -> Any:
        """Evaluate a minibatch as ``Trainer`` does, without its domains."""
        inputs = {name: value for name, value in inputs.items() if name != self.domain_column}
        return super().prediction_step(model, inputs, *args, **options)

    def _set_signature_columns_if_needed(self) -> None:
        """Keep the domains when ``Trainer`` removes columns that the model does not take."""
        super()._set_signature_columns_if_needed()
        if self.domain_column not in self._signature_columns:
            self._signature_columns.append(self.domain_column)

    def _check_arguments(self) -> None:
        """Raise a `UsageError` for arguments with which the gradient would be wrong or unused."""
        wrong = {
            "several GPUs or processes": (self.args.parallel_mode != ParallelMode.NOT_PARALLEL, "Use one GPU"),
            "DeepSpeed": (self.is_deepspeed_enabled, "Leave it out"),
            "FSDP": (self.is_fsdp_enabled, "Leave it out"),
            "fp16": (self.args.fp16, "Use bf16"),
            "torch_compile": (self.args.torch_compile, "Leave it out"),
            f"the optimizer {self.args.optim.value}": ("lomo" in self.args.optim, "Choose another one"),
            f"gradient_accumulation_steps={self.args.gradient_accumulation_steps}": (
                self.args.gradient_accumulation_steps > 1,
                "The direction of several minibatches is not the mean of their directions: increase the batch size",
            ),
        }
        for name, (found, action) in wrong.items():
            if found:
                raise UsageError(f"Expected arguments that DomainTrainer supports; found {name}. {action}.")

    def _split_domains(self, inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the inputs of each domain, in the order of the domains' numbers."""
        domains = inputs.get(self.domain_column)
        if not isinstance(domains, Tensor) or domains.ndim != 1 or domains.is_floating_point():
            found = f"the columns {', '.join(inputs)}" if domains is None else _describe(domains)
            raise UsageError(
                f"Expected one integer per sample in the column {self.domain_column!r} of a minibatch; found {found}. "
                "Add the column to the dataset and to what the data collator returns, or pass domain_column=."
            )
        for name, value in inputs.items():
            has_rows = isinstance(value, Tensor) and value.ndim > 0 and len(value) == len(domains)
            if not has_rows and not isinstance(value, bool | int | float | str | None):
                raise UsageError(
                    f"Expected tensors with {len(domains)} rows, one per sample, to divide them into domains; found "
                    f"{_describe(value)} in the column {name!r}. Change the data collator."
                )
        rows = [(domains == domain).nonzero().flatten() for domain in sorted(set(domains.tolist()))]
        return [
            {
                name: value[index] if isinstance(value, Tensor) else value
                for name, value in inputs.items()
                if name != self.domain_column
            }
            for index in rows
        ]


def _describe(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
