"""Domain generalization in PyTorch: Pareto optimal gradient matching, other methods, and a reproducible benchmark.

Names are imported when they are first used, so ``import pogm`` does not import torch. Every algorithm and every
modifier is available under its name: ``pogm.POGM``. Type checkers read the names from ``__init__.pyi``, which is
generated from the same registries (see tests/test_public_names.py).
"""

import importlib
import pkgutil
import sys
from typing import Any

from pogm._system.moved import MovedModules

__version__ = "0.1.0"

sys.meta_path.append(MovedModules())

ESTIMATORS = ("DomainGeneralizer", "DomainRegressor")  # imported alone, because scikit-learn takes a second


def _public_objects() -> dict[str, Any]:
    """Return all public objects by name: algorithms, modifiers, ``Learner``, ``backward`` and others."""
    from pogm import pareto
    from pogm.algorithms import all_algorithms
    from pogm.core.batch import Batch
    from pogm.deployment.model import load
    from pogm.learner import Learner, TorchJD, backward
    from pogm.modifiers import all_modifiers

    others = {"Batch": Batch, "Learner": Learner, "TorchJD": TorchJD, "backward": backward, "load": load}
    return {**all_algorithms(), **all_modifiers(), **others, "pareto": pareto}


def __getattr__(name: str) -> Any:
    """Import a public name, or a subpackage such as ``pogm.algorithms``, on first use (PEP 562)."""
    if name == "__all__":  # asked for by ``from pogm import *``
        return sorted((*_public_objects(), *ESTIMATORS))
    if name in ESTIMATORS:
        return getattr(importlib.import_module("pogm.estimators"), name)
    if not name.startswith("_"):
        if name in {module.name for module in pkgutil.iter_modules(__path__)}:
            return importlib.import_module(f"pogm.{name}")
        found = _public_objects()
        if name in found:
            globals().update(found)
            return found[name]
    raise AttributeError(f"module 'pogm' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names and the names that are defined in this file."""
    return sorted({*globals(), *_public_objects(), *ESTIMATORS})
