"""Evaluation of combined models: validation and test images, loaded once and kept on the device."""

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from pogm._system.errors import UsageError
from pogm.benchmark.combining.checks import find_live_norms
from pogm.benchmark.combining.members import Group
from pogm.core import random
from pogm.core.compilation import compiling
from pogm.core.model import Model, evaluation_mode
from pogm.data.datasets.base import Domain, split_domain
from pogm.diagnostics import Probe
from pogm.engine.engine import Engine
from pogm.engine.evaluator import SCORES, predict_logits
from pogm.engine.sampling import SPLITS, draw_indices
from pogm.engine.session import Session
from pogm.models.weights import RANDOM

NORM_BATCHES = 50  # minibatches from which the statistics of batch norm are computed again

Part = tuple[int, str]  # number of a domain, and one of `SPLITS`
Predictions = dict[Part, tuple[Tensor, Tensor]]  # outputs [N, C] and labels [N], on the host


class Scores(NamedTuple):
    """Scores of one model by part; NaN for a part without images. `name` is "accuracy" or "r2"."""

    name: str
    values: Mapping[Part, float]
    undefined: Collection[Part] = ()  # parts of a regression without R², because all targets are equal

    def mean(self, parts: Sequence[Part]) -> float:
        """Return the mean over parts whose score is not undefined; NaN if one of them has no images."""
        scores = [self.values.get(part, math.nan) for part in parts if part not in self.undefined]
        return fmean(scores) if scores else math.nan


class Evaluator:
    """Images of one dataset and held-out domain on a device, to evaluate models that were combined from a group.

    The validation images of a domain are those that no member has trained on: the intersection of the *out* splits of
    all members. Members of one trial have the same splits. The *in* part is the union of the *in* splits.

    Args:
        group: The members.
        data: Data folder.
        engine: Device.

    Raises:
        UsageError: A training domain has no images that no member has trained on, or the statistics of batch norm
            cannot be computed again, because the model adapts to its batch.
    """

    def __init__(self, group: Group, data: Path | None, engine: Engine):
        first = group.trial
        training = replace(first.training, weights=RANDOM)  # the weights of the members replace the initial ones
        self.trial = replace(first, training=training, probe=Probe())
        task = self.trial.task(data)
        self.session = Session([task], replace(engine, capture=False, compile="off"))
        self.indices = _split_indices(group, task.load(), self.session.device)
        held_out = () if self.trial.evaluation == "validation" else self.trial.test_domains
        self.validation: list[Part] = [(number, "out") for number in self.trial.train_domains]
        self.test: list[Part] = [(number, split) for number in held_out for split in SPLITS]
        for number, split in self.validation:
            if not len(self.indices[number, split]):
                name = first.dataset.domains[number]
                raise UsageError(
                    f"Expected images of {name} that no run has trained on, for {group.title}; found none, "
                    "because the splits of the trials differ. Combine the runs of one trial."
                )
        self.norms = find_live_norms(self.trial, self.session.network, "Choose the other labels with --algorithms.")

    @property
    def images(self) -> dict[str, list[int]]:
        """Number of images of each domain, by split."""
        domains = range(len(self.trial.dataset.domains))
        return {split: [len(self.indices[number, split]) for number in domains] for split in SPLITS}

    def predict(self, tensors: Mapping[str, Tensor], parts: Sequence[Part]) -> Predictions:
        """Return the outputs of a model and the labels on some parts; parts without images are left out."""
        session, config = self.session, self.session.config
        params, buffers = self.session.divide(tensors)
        model = Model(session.network, params, buffers, autocast=config.problem.autocast)
        statistics = session.sample_indices.statistics
        with evaluation_mode(session.network), compiling(False):
            chosen = {part: self.indices[part] for part in parts if len(self.indices[part])}
            return {
                part: (predict_logits(config, model, indices, statistics), config.table.labels[indices].cpu())
                for part, indices in chosen.items()
            }

    def score(self, predictions: Predictions) -> Scores:
        """Return the accuracy, or the R² of a regression, on every part."""
        name = SCORES[self.trial.dataset.task][0]
        measure = _r2 if name == "r2" else _accuracy
        equal = [part for part, (_, y) in predictions.items() if name == "r2" and bool((y == y[0]).all())]
        return Scores(name, {part: measure(*found) for part, found in predictions.items()}, frozenset(equal))

    def validate(self, tensors: Mapping[str, Tensor]) -> float:
        """Return the mean score of a model on the validation images of the training domains."""
        return self.score(self.predict(tensors, self.validation)).mean(self.validation)

    def with_batch_norm(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return averaged weights with statistics of batch norm that belong to them.

        Statistics that training does not change (``freeze_bn``) stay. Otherwise the mean of the members' statistics is
        not that of the averaged network, so they are computed again (Izmailov et al., 2018): the mean over minibatches
        of training images, without augmentation. Layers that a prediction does not reach keep the mean.
        """
        if not self.norms:
            return tensors
        session, config = self.session, self.session.config
        params, buffers = self.session.divide(tensors)
        fresh = {name: torch.zeros_like(buffers[name]) for name in config.problem.live}  # passes write to them
        model = Model(session.network, params, {**buffers, **fresh}, autocast=config.problem.autocast)
        key, pool = random.key(self.trial.seed, session.device), session.sample_indices.train
        drawn = [draw_indices(pool, random.fold(key, n), config.batch_size).flatten() for n in range(NORM_BATCHES)]
        momenta = [norm.momentum for norm in self.norms]
        try:
            with evaluation_mode(session.network), compiling(False):
                for norm in self.norms:
                    norm.train()
                    norm.momentum = None  # the mean over all passes
                for stored in config.table.inputs.iterate(drawn):
                    model(config.transform.prepare(stored, session.sample_indices.statistics, config.dtype))
        finally:
            for norm, momentum in zip(self.norms, momenta, strict=True):
                norm.momentum = momentum
        reached = {name.rpartition(".")[0] for name, leaf in fresh.items() if not leaf.is_floating_point() and leaf > 0}
        return {**tensors, **{n: leaf for n, leaf in fresh.items() if n.rpartition(".")[0] in reached}}


def _split_indices(group: Group, domains: Sequence[Domain], device: torch.device) -> dict[Part, Tensor]:
    """Return the sample indices of every part: *out* of all members, and *in* of at least one."""
    choices = sorted({(member.trial.trial_seed, member.trial.samples or sys.maxsize) for member in group.members})
    starts = accumulate((len(domain.labels) for domain in domains), initial=0)
    found: dict[Part, Tensor] = {}
    for number, (start, domain) in enumerate(zip(starts, domains, strict=False)):
        name = group.trial.dataset.domains[number]
        is_trained = number in group.trial.train_domains
        (inside, outside), *others = (
            split_domain(domain, number, seed, name, is_trained, samples) for seed, samples in choices
        )
        for other_inside, other_outside in others:
            inside = torch.unique(torch.cat([inside, other_inside]))
            outside = outside[torch.isin(outside, other_outside)]
        found[number, "in"], found[number, "out"] = (start + inside).to(device), (start + outside).to(device)
    return found


def _accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the accuracy; NaN if a logit is not finite."""
    return float((logits.argmax(-1) == labels).double().mean()) if logits.isfinite().all() else math.nan


def _r2(outputs: Tensor, targets: Tensor) -> float:
    """Return R²; NaN if all targets are equal, or if an output is not finite."""
    error, spread = (outputs.squeeze(-1) - targets).double(), (targets - targets.double().mean()).double()
    r2 = 1 - error.square().sum() / spread.square().sum()
    return float(r2) if r2.isfinite() else math.nan
