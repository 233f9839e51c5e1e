"""A trial out of names and texts, as a command line has them; checked before anything is read or written."""

from collections.abc import Sequence
from typing import Any

from pogm.algorithms import algorithm_class
from pogm.benchmark.trial import Trial
from pogm.core.errors import UsageError, unknown
from pogm.core.hyper import changed, fields
from pogm.datasets import dataset_class
from pogm.modifiers import modifier_class


def trial_of(
    dataset: str,
    algorithm: str,
    test_domains: Sequence[str],
    *,
    preset: str | None = None,
    modifiers: Sequence[str] = (),
    settings: Sequence[str] = (),
    steps: int | None = None,
    evaluate_every: int | None = None,
    seed: int = 0,
    data_seed: int | None = None,
    trial_seed: int | None = None,
    precision: str = "fp32",
    probe_every: int = 0,
) -> Trial:
    """The trial they describe. What is None is the dataset's, or the seed; ``settings`` are texts like "kappa=0.1"."""
    data = dataset_class(dataset)
    method = algorithm_class(algorithm)
    parts: dict[str, Any] = {
        "algorithm": method() if preset is None else method.preset(preset),
        "training": data.training,
        **{name: modifier_class(name)() for name in modifiers},
    }
    if len(parts) < 2 + len(modifiers):
        raise UsageError(f"Expected each modifier once; found {', '.join(modifiers)}. Leave out the repeated one.")
    for setting in settings:
        _set(parts, setting, f"a hyperparameter of {algorithm} on {dataset}")
    return Trial(
        dataset=dataset,
        algorithm=parts.pop("algorithm"),
        training=parts.pop("training"),
        modifiers=tuple(parts.values()),
        test_domains=tuple(_domain(name, data.domains, dataset) for name in test_domains),
        steps=data.steps if steps is None else steps,
        evaluate_every=data.evaluate_every if evaluate_every is None else evaluate_every,
        seed=seed,
        data_seed=seed if data_seed is None else data_seed,
        trial_seed=seed if trial_seed is None else trial_seed,
        precision=precision,
        probe_every=probe_every,
    )


def _set(parts: dict[str, Any], setting: str, kind: str) -> None:
    """Change the one part that has a field of that name."""
    name, equals, value = setting.partition("=")
    if not equals:
        raise UsageError(f"Expected --set NAME=VALUE; found {setting!r}. For example: --set lr=0.001")
    known = [(owner, field.name) for owner, part in parts.items() for field in fields(part)]
    owners = [owner for owner, field in known if name in (field, f"{owner}.{field}")]
    if not owners:
        raise unknown(kind, name, {field for _, field in known})
    if len(owners) > 1:
        choices = ", ".join(f"{owner}.{name}" for owner in owners)
        raise UsageError(f"Expected the name of one hyperparameter; found {name!r}, which is {choices}. Choose one.")
    field = name.rpartition(".")[2]
    parts[owners[0]] = changed(parts[owners[0]], {field: value})


def _domain(name: str, domains: Sequence[str], dataset: str) -> int:
    """A domain by its name, or else by its number."""
    if name in domains:
        return domains.index(name)
    if name.isdecimal() and int(name) < len(domains):
        return int(name)
    raise unknown(f"a domain of {dataset}, by name or by number from 0 to {len(domains) - 1},", name, domains)
