"""Optimizers, schedules and parameter groups of a Learner, from its arguments."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pogm._system.errors import UsageError, unknown_name_error
from pogm.algorithms.base import Algorithm
from pogm.core.optimizers import OPTIMIZERS, SGD, Adam, Optimizer
from pogm.core.trees import Params

Schedule = Callable[[int], float]  # number of finished steps -> factor of the learning rate
Group = Mapping[str, Any]  # "params", and optionally "lr" and "weight_decay"


def make_optimizer(
    algorithm: Algorithm,
    optimizer: str | Optimizer | None,
    lr: float | None,
    weight_decay: float | None,
    momentum: float | None,
    clip_norm: float | None,
) -> Optimizer:
    """Return the optimizer, or raise a `UsageError` for options that do not fit it."""
    if isinstance(optimizer, str) and optimizer not in OPTIMIZERS:
        raise unknown_name_error("an optimizer", optimizer, OPTIMIZERS)
    if not isinstance(optimizer, str | None):
        if not hasattr(optimizer, "update") or {lr, weight_decay, momentum, clip_norm} != {None}:
            raise UsageError(
                f"Expected the name of an optimizer ({', '.join(OPTIMIZERS)}) with lr, weight_decay, momentum and "
                f"clip_norm, or an object of pogm.core.optimizers without them; found {type(optimizer).__name__}. For "
                "torch.optim use pogm.backward."
            )
        return optimizer
    _check_numbers({"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "clip_norm": clip_norm})
    if momentum is not None and optimizer != "sgd":
        raise UsageError(f"Expected optimizer='sgd' for momentum; found {optimizer!r}. Leave momentum out.")
    lr = 1e-3 if lr is None else lr
    made: Any = algorithm.optimizer(lr, weight_decay or 0.0)
    if optimizer is None and clip_norm is None:
        unchanged: Optimizer = made
        return unchanged
    if not isinstance(made, Adam | SGD):
        raise UsageError(
            f"Expected an algorithm with one optimizer, to change it; found {type(algorithm).__name__}, which has "
            "several. Leave optimizer and clip_norm out."
        )
    if optimizer is not None:
        decay = {} if weight_decay is None else {"weight_decay": weight_decay}
        made = OPTIMIZERS[optimizer](lr, **decay, **({} if momentum is None else {"momentum": momentum}))
    changed: Optimizer = replace(made, clip_norm=clip_norm)
    return changed


def _check_numbers(values: Mapping[str, float | None]) -> None:
    for name, value in values.items():
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise UsageError(f"Expected {name} to be a number of at least 0; found {value}.")


def make_schedule(schedule: str | Schedule | None, steps: int | None) -> Schedule | None:
    """Return the function of the schedule, or raise a `UsageError` for an unknown name or a wrong number of steps."""
    if schedule == "cosine":
        if steps is None or steps < 1:
            raise UsageError(f"Expected the number of steps for schedule='cosine'; found {steps}. Pass steps=1000.")
        total = steps
        return lambda step: (1 + math.cos(math.pi * min(step / total, 1))) / 2
    if isinstance(schedule, str):
        raise unknown_name_error("a schedule", schedule, ["cosine"])
    if steps is not None:
        raise UsageError(f"Expected steps only with schedule='cosine'; found steps={steps}. Leave it out.")
    return schedule


def read_groups(groups: Sequence[Group]) -> list[Group]:
    """Return the groups with their parameters as lists, or raise a `UsageError` for wrong keys or numbers."""
    found: list[Group] = []
    for group in groups:
        unknown = set(group) - {"params", "lr", "weight_decay"}
        if unknown or "params" not in group:
            raise UsageError(
                "Expected groups with the keys params, lr and weight_decay; found "
                f"{', '.join(map(repr, group))}. Leave the others out."
            )
        _check_numbers({name: group.get(name) for name in ("lr", "weight_decay")})
        members = group["params"]
        found.append({**group, "params": [members] if isinstance(members, Tensor) else list(members)})
    return found


def group_rates(
    groups: Sequence[Group], params: Params, optimizer: Any, originals: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the learning rate and the weight decay of every weight, as vectors."""
    rates: dict[int, tuple[float, float]] = {}
    for group in groups:
        for leaf in group["params"]:
            rates[id(leaf)] = group.get("lr", optimizer.lr), group.get("weight_decay", optimizer.weight_decay)
    unknown_count = len(rates.keys() - {id(leaf) for leaf in originals.values()})
    if unknown_count:
        raise UsageError(
            f"Expected parameters of the module in groups; found {unknown_count} that it does not have. Pass lists "
            "such as module.fc.parameters(), each only once."
        )
    default = optimizer.lr, optimizer.weight_decay
    chosen = [rates.get(id(originals[name]), default) for name in params]
    vectors = [
        torch.cat([leaf.new_full((leaf.numel(),), pair[i]) for leaf, pair in zip(params.values(), chosen, strict=True)])
        for i in range(2)
    ]
    return {"lr": vectors[0], "weight_decay": vectors[1]}
