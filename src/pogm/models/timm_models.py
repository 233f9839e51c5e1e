"""Models of timm (Wightman, 2019) by name."""

import difflib
from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from pogm._system.errors import DataError, UsageError
from pogm.core.random_layers import Dropout
from pogm.core.trees import Params
from pogm.models.featurizer import Featurizer

PREFIX = "timm/"


def build_timm(name: str, input_shape: tuple[int, ...]) -> Featurizer:
    """Build a model of timm without its classifier.

    Its own dropout and stochastic depth are switched off, because they use torch's global random generators. Our keyed
    dropout follows the features.

    Raises:
        UsageError: If timm does not have the model, or the model does not accept images of this shape.
    """
    timm = _import_timm()
    if not timm.is_model(name):
        near = difflib.get_close_matches(name.partition(".")[0], timm.list_models(), n=1)
        hint = f"Did you mean {PREFIX}{near[0]}?" if near else "timm.list_models() lists them."
        raise UsageError(f"Expected {PREFIX} and a model that timm {timm.__version__} has; found {name!r}. {hint}")
    try:
        config = timm.get_pretrained_cfg(name)
        size = {"img_size": input_shape[1:]} if config and config.fixed_input_size else {}
        options: dict[str, Any] = {"num_classes": 0, **size}
        model = timm.create_model(name, in_chans=input_shape[0], **options)
        with torch.no_grad():
            outputs = model.eval()(torch.zeros(1, *input_shape))
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:  # the 1,300 models raise different errors
        shape = "×".join(map(str, input_shape))
        raise UsageError(f"Expected a network for images of {shape}; found that {name} says: {error}.") from error
    if outputs.ndim != 2:
        raise UsageError(f"Expected one feature vector per image; found {list(outputs.shape)} from {name}.")
    _disable_randomness(model)

    module = nn.Sequential(OrderedDict(model=model.train(), dropout=Dropout()))
    return Featurizer(
        module,
        outputs.shape[1],
        inside="model",
        first=str(config and config.first_conv),
        classifier=_as_tuple(config and config.classifier),
        pretrained=lambda: _load_pretrained(name, options),
    )


def _load_pretrained(name: str, options: dict[str, Any]) -> Params:
    """Load the weights of a model and tag from the hub or its cache."""
    timm = _import_timm()
    if "." not in name:
        tag = timm.get_pretrained_cfg(name).tag
        raise UsageError(
            f"Expected a model with the tag of its weights, because timm may change the default; found {PREFIX}{name}. "
            f"Write {PREFIX}{name}.{tag or 'TAG'}; timm.list_pretrained('{name}*') lists them."
        )
    try:
        model = timm.create_model(name, pretrained=True, **options)
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(
            f"Expected the weights of {PREFIX}{name} in the hub or its cache; found: {error} "
            "Name a file by its SHA-256 (weights=sha256:...), or set weights=random."
        ) from error
    tensors: Params = model.state_dict()
    return tensors


def _disable_randomness(model: nn.Module) -> None:
    """Switch off dropout and stochastic depth, which draw from torch's global generators."""
    for layer in model.modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd):
            layer.p = 0.0
        for rate in ("drop_prob", "drop_rate"):
            if isinstance(getattr(layer, rate, None), float):
                setattr(layer, rate, 0.0)


def _as_tuple(names: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())


def _import_timm() -> Any:
    try:
        import timm
    except ImportError as error:
        raise UsageError(
            f"Expected the package timm for networks called {PREFIX}...; found that it is not installed. "
            "Install it: pip install timm"
        ) from error
    return timm
