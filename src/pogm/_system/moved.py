"""Import errors that name the new module, for modules that were moved."""

from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec

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
    "pogm.core.hyper": "pogm.core.hyperparameters",
}


class MovedModules(MetaPathFinder):
    """Finder for the end of ``sys.meta_path``: it is asked only about modules that nothing else has found."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        """Raise an error that names the new module if the module was moved; otherwise find nothing."""
        if name in MOVED:
            raise ImportError(f"{name} was moved. Import {MOVED[name]} instead.", name=name)
        return None
