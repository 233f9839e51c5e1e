"""Networks from inputs to features. The files of this folder are the registry.

A file with a function ``build(input_shape)`` is a network with the name of the file. A file with a dictionary
``NETWORKS`` holds several networks: names and functions.
"""

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache, partial

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from pogm._system.errors import UsageError, unknown_name_error
from pogm.core.plugins import Plugins
from pogm.core.random_layers import set_dropout
from pogm.models.featurizer import Featurizer
from pogm.models.layers import freeze_batch_norm
from pogm.models.timm_models import PREFIX, build_timm
from pogm.models.weights import RANDOM, check_weights, load_weights
from pogm.models.weights import hash_weights as hash_weights

Build = Callable[[tuple[int, ...]], Featurizer]
AXES = {"mlp": range(1, 16), "cnn1d": (2,)}  # numbers of axes of an input that a network takes; others take images


def all_networks() -> list[str]:
    """Return the names of all networks in this folder; every model of timm can be used too, as timm/MODEL."""
    return list(_builders())


def _check_build(name: str, build: object) -> None:
    if not callable(build):
        raise UsageError(
            f"Expected the network {name} to be a function of the shape of the inputs that returns a "
            f"pogm.models.featurizer.Featurizer; found {type(build).__name__}. Write it like pogm/models/mlp.py."
        )


PLUGINS = Plugins("network", _check_build)


def find_network_builder(name: str) -> Build:
    """Return the function that builds a network: of this folder, of timm, or of another package.

    Raises:
        UsageError: If there is none, or its package cannot be imported.
    """
    if name.startswith(PREFIX):
        return partial(build_timm, name.removeprefix(PREFIX))
    if name in _builders():
        return _builders()[name]
    if not PLUGINS.has(name):
        raise unknown_name_error("a network", name, [*all_networks(), *PLUGINS.names(), f"{PREFIX}MODEL"])
    build: Build = PLUGINS.load(name)
    return build


def network_package(name: str) -> dict[str, str]:
    """Return the package of a network that another package has registered, by the name of the network."""
    is_own = name in _builders() or name.startswith(PREFIX)
    return {} if is_own or name not in PLUGINS.names() else {name: PLUGINS.package(name)}


def check_network(name: str, weights: str = RANDOM) -> None:
    """Raise a `UsageError` if the name of the network or of the weights is not valid; nothing is built."""
    find_network_builder(name)
    if weights != RANDOM:
        check_weights(weights)


def build_features(
    name: str,
    input_shape: tuple[int, ...],
    *,
    weights: str = RANDOM,
    freeze_bn: bool = True,
    dropout: float = 0.0,
) -> tuple[nn.Module, int]:
    """Build a featurizer.

    Args:
        name: A network of this folder, ``timm/MODEL``, or a plug-in.
        input_shape: Shape of one input; for images, channels, height and width.
        weights: "random", "pretrained" (published with the architecture), or "sha256:..." (a file with this hash, at or
            in $POGM_WEIGHTS).
        freeze_bn: Keep the running statistics of batch norm fixed.
        dropout: Rate of the dropout on the features, for networks that have it.

    Returns:
        The module, and the number of features.

    Raises:
        UsageError: The name is unknown, or the network does not take inputs of this shape.
    """
    check_network(name, weights)
    is_own = name in all_networks() or name.startswith(PREFIX)
    if is_own and len(input_shape) not in AXES.get(name, (3,)):
        fitting = [other for other in all_networks() if len(input_shape) in AXES.get(other, (3,))]
        raise UsageError(
            f"Expected a network for inputs of shape {list(input_shape)}; found {name}, which does not take them. "
            f"Choose {' or '.join(fitting)}: --set network={fitting[0]}"
        )
    featurizer = find_network_builder(name)(input_shape)
    if not isinstance(featurizer, Featurizer):  # a function of another package
        raise UsageError(
            f"Expected the network {name} to return a pogm.models.featurizer.Featurizer; found "
            f"{type(featurizer).__name__}. Return Featurizer(module, number_of_features)."
        )
    if weights != RANDOM:
        load_weights(featurizer, weights)
    if freeze_bn:
        freeze_batch_norm(featurizer.module)
    set_dropout(featurizer.module, dropout)
    return featurizer.module, featurizer.width


@cache
def has_batch_norm(name: str) -> bool:
    """Return True if a network has layers of batch norm. No memory is allocated for its weights."""
    with torch.device("meta"):
        module, _ = build_features(name, (3, 224, 224)[: AXES.get(name, (3,))[-1]])
    return any(isinstance(layer, _BatchNorm) for layer in module.modules())


@cache
def _builders() -> dict[str, Build]:
    """Return the build functions of all networks by name, sorted."""
    found: dict[str, Build] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        found |= getattr(module, "NETWORKS", {})
        if hasattr(module, "build"):
            found[info.name] = module.build
    return dict(sorted(found.items()))
