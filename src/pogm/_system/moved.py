"""Former names: import errors for modules that were moved, and present names of metrics and class attributes."""

from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TypeVar

MOVED = {  # packages, and modules that the documentation told users to import; a package includes its modules
    "pogm.networks": "pogm.models",
    "pogm.probes": "pogm.diagnostics",
    "pogm.datasets": "pogm.data.datasets",
    "pogm.images": "pogm.data.images",
    "pogm.sources": "pogm.data.sources",
    "pogm.transforms": "pogm.data.transforms",
    "pogm.benchmark.records": "pogm.benchmark.results.records",
    "pogm.benchmark.measures": "pogm.benchmark.results.measurements",
    "pogm.benchmark.conclusion": "pogm.benchmark.results.conclusion",
    "pogm.benchmark.results.tables": "pogm.benchmark.results.accuracy_tables",
    "pogm.core.hyper": "pogm.core.hyperparameters",
}
METRICS = {"angle": "cosine"}  # records and checkpoints of earlier versions have the former name
ATTRIBUTES = {"predicts_by": "prediction_batch_size", "spreads": "parallel_axes"}  # of algorithms and modifiers

Value = TypeVar("Value")


class MovedModules(MetaPathFinder):
    """Finder for the end of ``sys.meta_path``: it is asked only about modules that nothing else has found."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        """Raise an error that names the new module if the module was moved; otherwise find nothing."""
        if name in MOVED:
            raise ImportError(f"{name} was moved. Import {MOVED[name]} instead.", name=name)
        return None


def rename_metrics(metrics: Mapping[str, Value]) -> dict[str, Value]:
    """Return metrics that any version wrote, under their present names."""
    return {METRICS.get(name, name): value for name, value in metrics.items()}


def check_attributes(cls: type) -> None:
    """Raise an error if a class defines an attribute under its former name, which would have no effect."""
    for name in ATTRIBUTES.keys() & vars(cls).keys():
        raise TypeError(f"Expected {cls.__name__}.{ATTRIBUTES[name]}; found its former name, {name}. Rename it.")
