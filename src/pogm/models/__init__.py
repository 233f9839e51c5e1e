"""One architecture per file; the folder is the registry. A file with ``build(input_shape)`` is an architecture."""

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache, partial

from torch import nn

from pogm._system.errors import unknown
from pogm.core.random_layers import set_dropout
from pogm.models.batch_norm import freeze_batch_norm
from pogm.models.featurizer import Featurizer
from pogm.models.timm_models import PREFIX, build_timm
from pogm.models.weights import RANDOM, check_weights, fill
from pogm.models.weights import weights_of as weights_of

Build = Callable[[tuple[int, int, int]], Featurizer]


def all_networks() -> list[str]:
    """Every architecture of ours by name; those of timm come on top."""
    return list(_builders())


def check_network(name: str, weights: str = RANDOM) -> None:
    """Refuse what cannot be the name of a network or of weights, without building anything."""
    if name not in all_networks() and not name.startswith(PREFIX):
        raise unknown("a network", name, [*all_networks(), f"{PREFIX}MODEL"])
    check_weights(weights)


def build_features(
    name: str,
    input_shape: tuple[int, int, int],
    *,
    weights: str = RANDOM,
    freeze_bn: bool = True,
    dropout: float = 0.0,
) -> tuple[nn.Module, int]:
    """A featurizer and the number of its outputs.

    ``name`` is one of ours or ``timm/MODEL``. ``weights`` is "random", "pretrained" (published with the architecture)
    or "sha256:..." (a file with that content, at or in $POGM_WEIGHTS). ``dropout`` is the rate after the last
    features, of networks that have it.
    """
    check_network(name, weights)
    build: Build = partial(build_timm, name.removeprefix(PREFIX)) if name.startswith(PREFIX) else _builders()[name]
    featurizer = build(input_shape)
    fill(featurizer, weights)
    if freeze_bn:
        freeze_batch_norm(featurizer.module)
    set_dropout(featurizer.module, dropout)
    return featurizer.module, featurizer.width


@cache
def _builders() -> dict[str, Build]:
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    return {name: module.build for name, module in modules.items() if hasattr(module, "build")}
