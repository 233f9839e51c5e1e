"""One architecture per file; the folder is the registry. A file has ``build(input_shape)``."""

import importlib
import pkgutil

from torch import nn

from pogm.core.errors import unknown


def all_networks() -> list[str]:
    """Every architecture by name."""
    return sorted(info.name for info in pkgutil.iter_modules(__path__))


def build_features(name: str, input_shape: tuple[int, int, int]) -> tuple[nn.Module, int]:
    """A featurizer and the number of its outputs."""
    if name not in all_networks():
        raise unknown("a network", name, all_networks())
    features, width = importlib.import_module(f"{__name__}.{name}").build(input_shape)
    return features, width
