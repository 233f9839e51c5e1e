"""Minibatches of all domains, from those that a user passes to a Learner."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pogm._system.errors import UsageError
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.losses import SampleLoss
from pogm.core.state import Purpose
from pogm.learner.inputs import Samples, move_samples, split_domains, stack_domains
from pogm.learner.saved_state import load_samples, save_samples


class MinibatchReader:
    """Reads one minibatch of each domain, and keeps the last one of each for calls in which the domain is missing.

    Args:
        loss: Loss that converts the targets.
        target: Key of the targets in minibatches that are dictionaries.
        domains: Names of all domains; None for the domains of the first minibatch.
    """

    def __init__(self, loss: SampleLoss, target: str, domains: Sequence[Hashable] | None):
        self.loss, self.target = loss, target
        self.domains = None if domains is None else tuple(domains)
        self.latest: dict[Hashable, Samples] = {}

    def read(self, batches: Any, labels: Any, like: Tensor, key: Tensor, number: int) -> Batch | None:
        """Return a minibatch [K, B, ...] of all domains, or None if a domain has never occurred.

        Args:
            batches: What `Learner.step` takes.
            labels: Domain of every sample, or None.
            like: A weight, with the device and the dtype of the inputs.
            key: Random key, to fill up domains with fewer samples.
            number: Number of this minibatch.
        """
        if isinstance(batches, Batch) and labels is None:
            return self._check_batch(batches)
        found = move_samples(split_domains(batches, labels, self.target), like)
        if not found:
            raise UsageError("Expected a minibatch of at least one domain; found none.")
        if self.domains is None:
            self.domains = tuple(sorted(found, key=_sort_key)) if labels is not None else tuple(found)
        unknown = [name for name in found if name not in self.domains]
        if unknown:
            raise UsageError(
                f"Expected minibatches of the domains {', '.join(map(repr, self.domains))}; found "
                f"{', '.join(map(repr, unknown))}. Name all domains at the start: Learner(..., domains=[...])."
            )
        self.latest = self.latest | found
        if len(self.latest) < len(self.domains):
            return None
        key = random.fold(random.fold(key, int(Purpose.DATA)), number)
        batch = stack_domains({name: self.latest[name] for name in self.domains}, key)
        return batch._replace(y=self.loss.convert_targets(batch.y))

    def _check_batch(self, batch: Batch) -> Batch:
        if self.domains is None:
            self.domains = tuple(range(len(batch.y)))
        shapes = {leaf.shape[:2] for leaf in trees.leaves(batch)}
        if len(shapes) != 1 or len(batch.y) != len(self.domains):
            found = " and ".join(str(list(leaf.shape)) for leaf in trees.leaves(batch))
            raise UsageError(
                f"Expected a Batch with inputs and targets [K, B, ...] of {len(self.domains)} domains; found {found}."
            )
        return batch._replace(y=self.loss.convert_targets(batch.y))

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the names of the domains and of their last minibatches."""
        return {
            "domains": None if self.domains is None else list(self.domains),
            "latest": {name: save_samples(samples) for name, samples in self.latest.items()},
        }

    def load_state_dict(self, saved: Mapping[str, Any], device: torch.device) -> None:
        """Continue with saved names and minibatches."""
        self.domains = None if saved["domains"] is None else tuple(saved["domains"])
        self.latest = {name: load_samples(one, device) for name, one in saved["latest"].items()}


def _sort_key(name: Hashable) -> tuple[str, Any]:
    """Sort names of one type as usual, and names of different types by their type."""
    return type(name).__name__, name
