"""Lists of algorithms, datasets, modifiers, networks, trackers and metrics as text, for ``pogm list``."""

import json
from collections.abc import Callable, Container, Iterator
from functools import cache
from importlib import resources
from typing import Any

from pogm._system.errors import UsageError
from pogm.algorithms import Algorithm, all_algorithms
from pogm.benchmark.families import FAMILIES, FAMILY
from pogm.benchmark.results.classification import ClassificationMetrics
from pogm.benchmark.runs.model_metrics import PLUGINS as METRIC_PLUGINS
from pogm.core.plugins import Plugins
from pogm.core.registry import Registry
from pogm.data.datasets import all_datasets
from pogm.models import PLUGINS as NETWORK_PLUGINS
from pogm.models import all_networks
from pogm.modifiers import Modifier, all_modifiers
from pogm.trackers import PLUGINS as TRACKER_PLUGINS
from pogm.trackers import all_trackers

WIDTH = 17  # of the column of names
OVERRIDABLE_METHODS = ("loss", "gradient", "step")  # of an algorithm, from the simplest to the most general
HOOKS = ("network", "batch", "penalty", "risks", "after", "observe", "evaluated", "final", "predictor")
DOMAINBED = (  # the methods of its main branch, in its order
    *("ERM", "ERMPlusPlus", "Fish", "IRM", "GroupDRO", "Mixup", "MLDG", "CORAL", "MMD", "DANN", "CDANN", "MTL"),
    *("SagNet", "ARM", "VREx", "RSC", "SD", "ANDMask", "SANDMask", "IGA", "SelfReg", "Fishr", "TRM", "IB_ERM"),
    *("IB_IRM", "CAD", "CondCAD", "Transfer", "CausIRL_CORAL", "CausIRL_MMD", "EQRM", "RDM", "ADRMX", "URM"),
)


def algorithms() -> Iterator[str]:
    """Yield a line for every algorithm: name and summary, by family."""
    yield from _by_family(all_algorithms(), "algorithms")


def datasets() -> Iterator[str]:
    """Yield a line for every dataset: name, domains and summary."""
    width = max(WIDTH, *map(len, all_datasets()))
    for name, kind in all_datasets().items():
        source = "comes with the package" if kind().embedded else "needs --data"
        yield f"{name:<{width}} {first_line(kind)} ({source})"
    yield from _plugin_lines(all_datasets(), all_datasets().plugins, _name_lines)
    yield "\nDomains, training settings and search spaces of one: pogm list datasets NAME"


def modifiers() -> Iterator[str]:
    """Yield a line for every modifier: name and summary, by family."""
    yield from _by_family(all_modifiers(), "modifiers")


def _by_family(methods: Registry[Any], what: str) -> Iterator[str]:
    for family in (*FAMILIES, "other"):
        own = [name for name in methods if FAMILY.get(name, "other") == family]
        if own:
            yield f"{family}:"
        yield from (f"  {name:<{WIDTH}} {first_line(methods[name]).replace('``', '')}" for name in own)
    yield from _plugin_lines(methods, methods.plugins, _name_lines)
    yield f"\nHyperparameters, search spaces and costs of one: pogm list {what} NAME"


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
    from pogm.benchmark.descriptions import describe_fields

    yield "metrics.json of every run of a classification has all of these:"
    yield from (f"  {name:<18} {text}" for name, text in describe_fields(ClassificationMetrics).items())
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


def domainbed_name(name: str) -> str | None:
    """Return the name of a method in DomainBed, if it is another one there."""
    return next((other for other in DOMAINBED if other != name and other.replace("_", "") == name), None)


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
def costs() -> dict[str, dict[str, dict[str, float]]]:
    """Return the measured costs of methods relative to ERM: "time" and "memory", by method and device and network.

    benchmarks/methods.py measures them and writes costs.json.
    """
    path = resources.files("pogm.benchmark") / "costs.json"
    found: dict[str, dict[str, dict[str, float]]] = json.loads(path.read_text(encoding="utf-8"))
    return found


@cache
def cost_ratios(label: str, column: str) -> tuple[float, float] | None:
    """Return the time and memory of a minibatch relative to ERM; None if a part of the method was not measured.

    Args:
        label: Algorithm and modifiers, such as "ERM + SWAD".
        column: Device and network, such as "H200, resnet50".
    """
    time, memory = 1.0, 1.0
    for part in label.split(" + "):
        cost = costs().get(part, {}).get(column)
        if cost is None:
            return None
        time, memory = time * cost["time"], memory * cost["memory"]
    return time, memory


def first_line(owner: Any) -> str:
    """Return the first line of the docstring of a class or a function."""
    return (owner.__doc__ or "").strip().partition("\n")[0]
