"""Weight soups and ensembles of the members of a group. Members are read one at a time."""

import math
from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from pogm.benchmark.combining.evaluation import Evaluator, Predictions
from pogm.benchmark.combining.members import Group, Member

T = TypeVar("T")
Progress = Generator[None, None, T]  # yields after every model that was evaluated, and returns T


@dataclass(frozen=True)
class Combined:
    """A combined model: its members, its predictions and, of a soup, its weights."""

    kept: tuple[Member, ...]  # members that the model consists of, in the order in which they were added
    validation: float  # mean score on the validation images of the training domains; NaN without such images
    predictions: Predictions  # on the validation and test images
    tensors: Mapping[str, Tensor] | None = None  # averaged weights; None for an ensemble
    members: Mapping[str, float] | None = None  # validation score of every member, by id; None if it was not measured


class RunningMean:
    """Mean of tensors that are added one after the other, in float64.

    The mean of equal tensors is that tensor, bit for bit. Tensors that are not floating-point, such as counters, are
    those of the first model.
    """

    def __init__(self) -> None:
        self.count = 0
        self._first: dict[str, Tensor] = {}
        self._mean: dict[str, Tensor] = {}

    def add(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        """Add the tensors of a model."""
        self._mean, self.count = self._next(tensors, device), self.count + 1
        self._first = self._first or dict(tensors)

    def with_next(self, tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        """Return the mean that adding a model would give, without adding it."""
        return self._finish(self._next(tensors, device))

    def value(self) -> dict[str, Tensor]:
        """Return the mean, in the dtypes of the tensors."""
        return self._finish(self._mean)

    def _next(self, tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        added = {n: leaf.to(device).double() for n, leaf in tensors.items() if leaf.is_floating_point()}
        if not self.count:
            return added
        return {n: mean + (added[n] - mean) / (self.count + 1) for n, mean in self._mean.items()}

    def _finish(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {n: means[n].to(leaf.dtype) if n in means else leaf for n, leaf in self._first.items()}


def make_soups(group: Group, evaluator: Evaluator, rules: Collection[str]) -> Progress[dict[str, Combined]]:
    r"""Average the weights of finished runs.

    The uniform soup is :math:`\bar\theta = \tfrac1M \sum_m \theta_m` over all members (DiWA: Rame et al., 2022). The
    greedy soup (Wortsman et al., 2022; "restricted" in DiWA) starts with the member of the best validation score, goes
    through the others by descending score, and adds each one unless the validation score of the average falls. The
    score is the mean over training domains of the accuracy on images that no member has trained on. DiWA pools these
    images instead.
    """
    device = evaluator.session.device
    uniform, scores = RunningMean(), dict[str, float]()
    for member in group.members:
        tensors = member.read_weights()
        if "uniform" in rules:
            uniform.add(tensors, device)
        if "greedy" in rules:
            scores[member.run.id] = evaluator.validate(tensors)
            yield
    found: dict[str, Combined] = {}
    if "uniform" in rules:
        found["uniform"] = _evaluate(evaluator, group.members, evaluator.with_batch_norm(uniform.value()))
        yield
    if "greedy" in rules:
        kept, weights = yield from _choose_greedily(group, evaluator, scores)
        found["greedy"] = _evaluate(evaluator, kept, weights, scores)
        yield
    return found


def _choose_greedily(
    group: Group, evaluator: Evaluator, scores: Mapping[str, float]
) -> Progress[tuple[tuple[Member, ...], Mapping[str, Tensor]]]:
    """Return the members of the greedy soup and its weights, given the validation scores of all members."""
    device = evaluator.session.device
    known = [member for member in group.members if not math.isnan(scores[member.run.id])]
    first, *others = sorted(known or group.members, key=lambda member: -scores[member.run.id])
    mean, kept, best = RunningMean(), [first], scores[first.run.id]
    tensors: Mapping[str, Tensor] = first.read_weights()
    mean.add(tensors, device)
    for member in others:
        weights = member.read_weights()
        candidate = evaluator.with_batch_norm(mean.with_next(weights, device))
        score = evaluator.validate(candidate)
        if score >= best:
            mean.add(weights, device)
            kept.append(member)
            tensors, best = candidate, score
        yield
    return tuple(kept), tensors


def _evaluate(
    evaluator: Evaluator,
    kept: tuple[Member, ...],
    tensors: Mapping[str, Tensor],
    members: Mapping[str, float] | None = None,
) -> Combined:
    predictions = evaluator.predict(tensors, [*evaluator.validation, *evaluator.test])
    validation = evaluator.score(predictions).mean(evaluator.validation)
    on_host = {name: leaf.cpu() for name, leaf in tensors.items()}
    return Combined(kept, validation, predictions, on_host, members)


def make_ensemble(group: Group, evaluator: Evaluator, mean: str) -> Progress[Combined]:
    r"""Average the predictions of finished runs.

    The mean of the logits, :math:`\tfrac1M \sum_m f_m(x)`, is the ensemble of averages (EoA: Arpit et al., 2022) if the
    runs selected averaged models, such as those of SMA; its code and ours average logits. The mean of the probabilities
    is that of deep ensembles (Lakshminarayanan et al., 2017). A regression has the mean of the predicted numbers.
    """
    parts = [*evaluator.validation, *evaluator.test]
    uses_probabilities = mean == "probabilities"
    change = partial(torch.softmax, dim=-1) if uses_probabilities else torch.clone
    outputs, labels, scores = RunningMean(), {}, dict[str, float]()
    for member in group.members:
        found = evaluator.predict(member.read_weights(), parts)
        scores[member.run.id] = evaluator.score(found).mean(evaluator.validation)
        labels = {part: y for part, (_, y) in found.items()}
        outputs.add({str(part): change(z.double()) for part, (z, _) in found.items()}, torch.device("cpu"))
        yield
    averaged = outputs.value()
    if uses_probabilities:
        tiny = torch.finfo(torch.float64).tiny  # a probability of 0 has no logit
        averaged = {part: found.clamp(min=tiny).log() for part, found in averaged.items()}
    predictions = {part: (averaged[str(part)].float(), y) for part, y in labels.items()}
    validation = evaluator.score(predictions).mean(evaluator.validation)
    return Combined(group.members, validation, predictions, None, scores)


def count_passes(group: Group, rules: Iterable[str]) -> int:
    """Return the number of models that are evaluated: for soups of these rules, or for an ensemble."""
    count = len(group.members)
    return sum({"uniform": 1, "greedy": 2 * count}.get(rule, count) for rule in rules)
