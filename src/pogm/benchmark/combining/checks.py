"""Checks of the members of a combination, before anything is computed."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pogm._system.errors import IntegrityError, UsageError
from pogm.benchmark.combining.initial_weights import digest_initial_weights
from pogm.benchmark.combining.members import Group, Member
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.record_file import RecordWarning
from pogm.engine.session import STATISTICS


class Check(NamedTuple):
    """A property that all members of a group must share."""

    what: str  # text of the difference, for the error
    advice: str
    read: Callable[[Member], Any]
    show: Callable[[Member], str] = lambda member: ""  # text of the property, for the error


CHECKS = (
    Check("different datasets", "Combine runs on one dataset.", lambda m: m.trial.dataset.to_json() | {"title": ""}),
    Check("different classes", "Combine runs with the same classes.", lambda m: m.description["classes"]),
    Check(
        "different networks",
        "Combine runs of one network.",
        lambda m: (m.trial.training.network, m.trial.training.nonlinear_classifier),
        lambda m: m.trial.training.network,
    ),
    Check(
        "different inputs",
        "Combine runs with one image size.",
        lambda m: (m.trial.dataset.transform(m.trial.training).shape, m.description["stored_size"]),
        lambda m: str(m.trial.dataset.transform(m.trial.training).shape),
    ),
)
SAME_DATA = Check(
    "data drawn with different seeds, so that a test image of one run is a training image of another",
    "Run the sweep again with --shared-init, in a new folder.",
    lambda m: m.trial.data_seed,
    lambda m: str(m.trial.data_seed),
)
SAME_INITIAL_WEIGHTS = Check(
    "different initial weights",
    "Run the sweep again with --shared-init, in a new folder, or average predictions instead of weights: pogm ensemble",
    lambda m: digest_initial_weights(m.trial),
    lambda m: f"{m.trial.training.weights}, seed {m.trial.weights_seed}",
)


def check_compatible(group: Group, *, mean: str | None = None) -> None:
    """Raise a `UsageError` if the models of a group must not be combined.

    Args:
        group: The group.
        mean: Predictions that are averaged, "logits" or "probabilities", so no model may adapt to its batch. None if
            weights are averaged, so all members need the same initial weights.
    """
    share_weights = mean is None
    if mean == "probabilities" and group.trial.dataset.task == "regression":
        raise UsageError(f"Expected --mean logits for a regression, {group.title}; found probabilities. Leave it out.")
    checks = list(CHECKS)
    if group.trial.dataset.uses_seed:
        checks.append(SAME_DATA)
    if share_weights:
        checks.append(SAME_INITIAL_WEIGHTS)
    first = group.members[0]
    for check in checks:
        expected = check.read(first)
        for member in group.members[1:]:
            if check.read(member) != expected:
                shown = f" ({check.show(first)} and {check.show(member)})" if check.show(first) else ""
                advice = "Combine the runs of one trial." if check is SAME_DATA and group.pooled else check.advice
                raise _refusal(group, member, check.what + shown, advice)
    adapting = next((member for member in group.members if member.trial.adapts), None)
    if adapting is not None and (not share_weights or len({m.run.label for m in group.members}) > 1):
        raise UsageError(
            f"Expected models that predict each sample on its own, for {group.title}; found {adapting.run.label}, "
            "whose predictions depend on the other samples of a batch. Choose the other labels with --algorithms."
        )


def find_live_norms(trial: Trial, network: nn.Module, advice: str) -> list[_BatchNorm]:
    """Return the layers of batch norm whose statistics are computed again for averaged weights.

    Raises:
        UsageError: There are such layers, and the model adapts to its batch.
    """
    norms = [module for module in network.modules() if _is_live(module)]
    if norms and trial.adapts:
        raise UsageError(
            f"Expected batch norm with frozen statistics, to average the weights of {trial.label}, whose predictions "
            f"depend on the other samples of a batch; found statistics that training changes. {advice}"
        )
    return norms


def _is_live(module: nn.Module) -> TypeGuard[_BatchNorm]:
    """Return True for a layer of batch norm whose statistics training changes."""
    return isinstance(module, _BatchNorm) and module.training and module.track_running_stats


def check_weights(group: Group) -> Group:
    """Read the weights of all members once; return the group without the members whose weights are damaged.

    Raises:
        IntegrityError: Fewer than two members are intact.
        UsageError: The members have different networks, or different statistics of their inputs.
    """
    intact: list[Member] = []
    shapes: dict[str, Any] | None = None
    statistics: dict[str, Tensor] = {}
    for member in group.members:
        try:
            tensors = member.read_weights()
        except IntegrityError as error:
            warnings.warn(f"{member.run.folder} is left out: {error}", RecordWarning, stacklevel=3)
            continue
        found = {name: (tuple(leaf.shape), leaf.dtype) for name, leaf in tensors.items()}
        fitted = {name: leaf for name, leaf in tensors.items() if name.startswith(STATISTICS)}
        if shapes is None:
            shapes, statistics = found, fitted
        elif found != shapes:
            name = next(n for n in sorted(found.keys() | shapes.keys()) if found.get(n) != shapes.get(n))
            raise _refusal(group, member, f"different networks, which differ in {name}", "Choose runs of one network.")
        elif any(not leaf.equal(statistics[name]) for name, leaf in fitted.items()):
            reason = "inputs that are normalised with different statistics, because the training splits differ"
            raise _refusal(group, member, reason, "Combine the runs of one trial.")
        intact.append(member)
    if len(intact) < 2:
        raise IntegrityError(
            f"Expected two or more intact models for {group.title}; found {len(intact)}. Restore the files from a copy."
        )
    return Group(group.label, tuple(intact), group.pooled)


def _refusal(group: Group, member: Member, what: str, advice: str) -> UsageError:
    return UsageError(
        f"Expected runs that can be combined for {group.title}; found {what}: {group.members[0].run.folder} and "
        f"{member.run.folder}. {advice}"
    )
