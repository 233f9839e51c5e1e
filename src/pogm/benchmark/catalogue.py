"""Lists of algorithms, datasets, modifiers, networks, trackers and metrics as text, for ``pogm list``."""

import json
from collections.abc import Callable, Container, Iterator
from functools import cache
from importlib import resources
from typing import Any

from pogm._system.errors import UsageError
from pogm.algorithms import Algorithm, all_algorithms
from pogm.benchmark.families import FAMILY
from pogm.benchmark.results.classification import ClassificationMetrics
from pogm.benchmark.runs.model_metrics import PLUGINS as METRIC_PLUGINS
from pogm.core.hyperparameters import Space, fields
from pogm.core.plugins import Plugins
from pogm.data.datasets import DomainDataset, all_datasets
from pogm.models import PLUGINS as NETWORK_PLUGINS
from pogm.models import all_networks
from pogm.modifiers import Modifier, all_modifiers
from pogm.trackers import PLUGINS as TRACKER_PLUGINS
from pogm.trackers import all_trackers

OVERRIDABLE_METHODS = ("loss", "gradient", "step")  # of an algorithm, from the simplest to the most general
HOOKS = ("network", "batch", "penalty", "risks", "after", "observe", "evaluated", "final", "predictor")
DOMAINBED = (  # the methods of its main branch, in its order
    *("ERM", "ERMPlusPlus", "Fish", "IRM", "GroupDRO", "Mixup", "MLDG", "CORAL", "MMD", "DANN", "CDANN", "MTL"),
    *("SagNet", "ARM", "VREx", "RSC", "SD", "ANDMask", "SANDMask", "IGA", "SelfReg", "Fishr", "TRM", "IB_ERM"),
    *("IB_IRM", "CAD", "CondCAD", "Transfer", "CausIRL_CORAL", "CausIRL_MMD", "EQRM", "RDM", "ADRMX", "URM"),
)


def algorithms() -> Iterator[str]:
    """Yield lines for every algorithm: description, requirements, costs, defaults, search spaces and presets."""
    for name, method in all_algorithms().items():
        yield from _algorithm_lines(name, method)
    yield from _plugin_lines(all_algorithms(), all_algorithms().plugins, _algorithm_lines)


def datasets() -> Iterator[str]:
    """Yield lines for every dataset: description, domains and training settings."""
    for name, dataset in all_datasets().items():
        yield from _dataset_lines(name, dataset)
    yield from _plugin_lines(all_datasets(), all_datasets().plugins, _dataset_lines)


def modifiers() -> Iterator[str]:
    """Yield lines for every modifier: description, costs, defaults and search spaces."""
    for name, modifier in all_modifiers().items():
        yield from _modifier_lines(name, modifier)
    yield from _plugin_lines(all_modifiers(), all_modifiers().plugins, _modifier_lines)


def networks() -> Iterator[str]:
    """Yield the name of every network."""
    yield from all_networks()
    yield "timm/NAME, any model of timm"
    yield from _plugin_lines(all_networks(), NETWORK_PLUGINS, lambda name, build: iter([name]))


def trackers() -> Iterator[str]:
    """Yield the name and the description of every tracker."""
    for name, tracker in all_trackers().items():
        yield from _name_lines(name, tracker)
    yield from _plugin_lines(all_trackers(), TRACKER_PLUGINS, _name_lines)


def metrics() -> Iterator[str]:
    """Yield the metrics in ``metrics.json`` of every run, and those of other packages."""
    yield "metrics.json of every run has all of these:"
    yield from (f"  {name}" for name in ClassificationMetrics.__dataclass_fields__)
    yield from _plugin_lines((), METRIC_PLUGINS, _name_lines)


def domainbed() -> Iterator[str]:
    """Yield a line for every method of DomainBed: its name there, and the class of pogm that implements it."""
    for name in DOMAINBED:
        yield f"{name:<15} {_domainbed_class(name)}"


def _domainbed_class(name: str) -> str:
    """Return the class that implements a method of DomainBed. Names of classes have no underscores."""
    own = name.replace("_", "")
    if own in all_algorithms():
        return own
    return f"ERM with the modifier {own}" if own in all_modifiers() else "not implemented"


CATALOGUES = {
    catalogue.__name__: catalogue for catalogue in (algorithms, datasets, modifiers, networks, trackers, metrics)
}


def _plugin_lines(
    own: Container[str], plugins: Plugins, describe: Callable[[str, Any], Iterator[str]]
) -> Iterator[str]:
    """Yield the lines of objects of other packages, each with its package; an object that cannot be used is broken."""
    for name in plugins.names():
        package = plugins.package(name)
        try:
            if name in own:
                raise UsageError("Expected another name than one of pogm. Give the path instead of the name.")
            first, *rest = describe(name, plugins.load(name))
        except Exception as error:  # an error of another package must not hide the rest of the list
            yield f"{name}  (plug-in of {package}: broken)\n  {error}"
            continue
        name_line, newline, description = first.partition("\n")
        yield f"{name_line}  (plug-in of {package}){newline}{description}"
        yield from rest


def _name_lines(name: str, owner: Any) -> Iterator[str]:
    yield f"{name}\n  {first_line(owner)}"


def _algorithm_lines(name: str, method: type[Algorithm]) -> Iterator[str]:
    yield from _method_lines(name, method)
    yield from _hyperparameter_lines(method())
    for preset, values in method.presets.items():
        yield f"  preset {preset}: {', '.join(f'{n}={v}' for n, v in values.items())}"


def _modifier_lines(name: str, modifier: type[Modifier]) -> Iterator[str]:
    yield from _method_lines(name, modifier)
    yield from _hyperparameter_lines(modifier())


def _dataset_lines(name: str, kind: type[DomainDataset]) -> Iterator[str]:
    dataset = kind()
    source = "comes with the package" if dataset.embedded else "needs --data"
    shape = "×".join(map(str, dataset.input_shape))
    yield f"{name}  ({source})\n  {first_line(kind)}"
    if dataset.domains:
        listed = ", ".join(dataset.domains)
        yield f"  domains {listed}; {dataset.num_classes} classes; {shape}; {dataset.steps} steps"
    yield from _hyperparameter_lines(dataset.training)


def _method_lines(name: str, method: type[Algorithm] | type[Modifier]) -> Iterator[str]:
    yield f"{name}\n  {first_line(method)}"
    for other in DOMAINBED:
        if other != name and other.replace("_", "") == name:
            yield f"  name in DomainBed: {other}"
    if name in FAMILY:
        yield f"  family: {FAMILY[name]}"
    yield f"  overrides {describe_overrides(method)}; needs {describe_needs(method)}"
    relative = "; ".join(f"{setup} {cost}" for setup, cost in costs().get(name, {}).items())
    yield f"  time · memory relative to ERM: {relative or 'not measured'}"


def describe_overrides(method: type[Algorithm] | type[Modifier]) -> str:
    """Return the name of the highest method that an algorithm overrides, or of the hooks that a modifier overrides."""
    if issubclass(method, Algorithm):
        found = [name for name in OVERRIDABLE_METHODS if getattr(method, name) is not getattr(Algorithm, name)]
        return found[-1] if found else "nothing"
    return ", ".join(hook for hook in HOOKS if getattr(method, hook) is not getattr(Modifier, hook))


def describe_needs(method: type[Algorithm] | type[Modifier]) -> str:
    """Return the requirements of a method beyond minibatches and a network."""
    found = []
    if issubclass(method, Algorithm):
        if method.min_domains > 1:
            found.append(f"{method.min_domains} domains")
        if method.build is not Algorithm.build:
            found.append("networks of its own")
        if method().minibatches > 1:
            found.append(f"{method().minibatches} minibatches per step")
    elif method.needs_network:
        found.append(method.needs_network)
    if method.needs_classes:
        found.append("class labels")
    if method.prediction_batch_size:
        found.append("test images in batches of one domain")
    return ", ".join(found) or "nothing"


@cache
def costs() -> dict[str, dict[str, str]]:
    """Return the measured costs of methods relative to ERM, "time · memory", by method and by device and network.

    benchmarks/methods.py measures them and writes costs.json.
    """
    path = resources.files("pogm.benchmark") / "costs.json"
    costs: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return costs


def _hyperparameter_lines(owner: Any) -> Iterator[str]:
    for field in fields(owner):
        space, options = field.metadata.get("space"), field.metadata.get("options")
        yield f"    {field.name:<22} {getattr(owner, field.name)!s:<12} {_search_text(space, options)}".rstrip()
        if large := field.metadata.get("large"):
            yield f"      for large images     {large.default!s:<12} {_search_text(large.space)}".rstrip()


def _search_text(space: Space | None, options: tuple[str, ...] | None = None) -> str:
    return f"search {space}" if space else " | ".join(options or ())


def first_line(owner: Any) -> str:
    """Return the first line of the docstring of a class or a function."""
    return (owner.__doc__ or "").strip().partition("\n")[0]
