"""Weights from files: found by what they contain, read without running anything, compared name by name."""

import io
import os
import re
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from torch import Tensor

from pogm._system.errors import DataError, IntegrityError, UsageError
from pogm._system.files import digest
from pogm.core.trees import Params
from pogm.models.featurizer import Featurizer

RANDOM, PRETRAINED = "random", "pretrained"
CONTENT = "sha256:"
PLACE = "POGM_WEIGHTS"  # a file of weights, or a folder of them
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
WRAPPERS = ("state_dict", "model")  # of other people's checkpoints, around the tensors
LISTED = 8  # differences a message names
TRAINED_WITH = {  # files whose tensors fit several networks, or that name none, and the network they belong to
    CONTENT + "ba3cabf30e53816d8f01017f6280b844fdc8dc556a761a96d6065d3cda7978bf": "resnet50_v1",
    CONTENT + "73c0d2c683e077662b1de4dedd63eda6b9cb75932985656c36e000227f6f15a0": "mobilenet_v2",
}


def check_weights(weights: str) -> None:
    """Refuse a text that cannot name weights, before anything is read."""
    if weights not in (RANDOM, PRETRAINED) and not re.fullmatch(CONTENT + "[0-9a-f]{64}", weights):
        raise UsageError(
            f"Expected weights to be {RANDOM!r}, {PRETRAINED!r} or '{CONTENT}' and the 64 digits that sha256sum prints "
            f"for a file; found {weights!r}. Paths are no part of a trial: put the file's own into {PLACE}."
        )


def weights_of(path: Path) -> str:
    """What a file of weights is called in a trial: by its content, wherever it lies."""
    return CONTENT + digest(_content(path))


def network_of(weights: str) -> str | None:
    """Network that a known file of weights was trained with; None if the file is not known.

    The tensors of ``resnet50_v1`` also fit ``resnet50``, which loses accuracy with them, so shapes cannot tell.
    """
    return TRAINED_WITH.get(weights)


def known_file(place: Path) -> Path | None:
    """First file at or in ``place`` whose network is known; None if there is none."""
    return next((path for path in _files(place) if network_of(weights_of(path)) is not None), None)


def fill(featurizer: Featurizer, weights: str) -> None:
    """Fill a featurizer with the weights of that name; files are looked for in $POGM_WEIGHTS."""
    check_weights(weights)
    if weights == RANDOM:
        return
    if weights != PRETRAINED:
        path, content = _find(weights)
        fill_from(featurizer, read_tensors(path.name, content), str(path))
    elif featurizer.pretrained is not None:
        fill_from(featurizer, featurizer.pretrained(), "the published weights")
    else:
        raise UsageError(
            f"Expected a network with published weights for weights={PRETRAINED!r}; found one without. "
            f"Pass --weights FILE, name a file by its content (weights={CONTENT}...), or set weights={RANDOM}."
        )


def fill_from(featurizer: Featurizer, tensors: Params, source: str, *, strict: bool = True) -> list[str]:
    """Copy tensors into a featurizer, as its own type of number; the differences, which ``strict`` refuses.

    The classifier's are left out. Input channel i of the first convolution is channel i mod 3 of the file's.
    """
    own: Params = featurizer.module.get_submodule(featurizer.inside).state_dict()
    given = {name: tensor for name, tensor in tensors.items() if not name.startswith(_prefixes(featurizer.classifier))}
    first = f"{featurizer.first}.weight"
    if first in given and first in own and given[first].ndim == 4 and given[first].shape[1] == 3:
        given[first] = with_channels(given[first], own[first].shape[1])

    differences = _differences(own, given)
    if differences and strict:
        more = f" and {len(differences) - LISTED} more" if len(differences) > LISTED else ""
        raise DataError(
            f"Expected the weights of this network in {source}; found {'; '.join(differences[:LISTED])}{more}. "
            "Choose the network that the file was made with: --set network=NAME."
        )
    with torch.no_grad():
        for name, tensor in own.items():
            if name in given and given[name].shape == tensor.shape:
                tensor.copy_(given[name])
    return differences


def with_channels(weight: Tensor, channels: int) -> Tensor:
    """The weights of a convolution for another number of channels: channel i is the old one i modulo their number."""
    return weight[:, torch.arange(channels) % weight.shape[1]]


def read_tensors(name: str, content: bytes) -> Params:
    """The tensors of a file: safetensors, or what ``torch.save`` wrote, of which nothing but tensors is accepted."""
    from safetensors.torch import load

    tensors: Any
    try:
        if name.endswith(".safetensors"):
            tensors = load(content)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about pickles of other versions: they load, or are refused below
                tensors = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # a file that was tampered with fails in any way it likes
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise IntegrityError(
            f"Expected nothing but tensors in {name}; found a file that is damaged or wants to run code, which was "
            f"not done ({reason}). Get it from its authors again, as safetensors if they have it."
        ) from error
    for wrapper in WRAPPERS:
        if isinstance(tensors, dict) and isinstance(tensors.get(wrapper), dict):
            tensors = tensors[wrapper]
    named = isinstance(tensors, dict) and all(isinstance(name, str) for name in tensors)
    if not named or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise DataError(f"Expected tensors by name in {name}; found something else. Save the state_dict alone.")
    return dict(tensors)


def published(url: str) -> Params:
    """The tensors at an address whose file name ends with the first digits of its SHA-256, as torch's hub has it.

    The file is taken from $POGM_WEIGHTS or the hub's cache, and downloaded into the latter if it is in neither.
    """
    name = Path(urlparse(url).path).name
    wanted = name.rpartition(".")[0].rpartition("-")[2]
    cached = Path(torch.hub.get_dir()) / "checkpoints" / name
    place = Path(os.environ.get(PLACE) or cached.parent)
    path = place / name if (place / name).exists() else cached
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(path), hash_prefix=wanted, progress=False)
        except (OSError, RuntimeError) as error:
            raise DataError(
                f"Expected to download {url}; found: {error}. Put the file into {cached.parent} yourself; "
                "or pass --weights FILE and the network that it was trained with (--set network=resnet50_v1, for "
                f"example); or set weights={RANDOM}."
            ) from error
    content = _content(path)
    if not digest(content).startswith(wanted):
        raise IntegrityError(
            f"Expected a SHA-256 that begins with {wanted} in {path}; found {digest(content)[:8]}. "
            "Delete the file, and it will be downloaded again."
        )
    return read_tensors(name, content)


def _find(weights: str) -> tuple[Path, bytes]:
    """The file with that content, and the content."""
    if not os.environ.get(PLACE):
        raise DataError(
            f"Expected {PLACE} to say where a file with {weights} is; found it not set. "
            "Set it to the file or to its folder."
        )
    place = Path(os.environ[PLACE])
    paths = _files(place)
    for path in paths:
        content = _content(path)
        if CONTENT + digest(content) == weights:
            return path, content
    others = ", ".join(path.name for path in paths) or "no file of weights"
    raise DataError(
        f"Expected a file with {weights} at {place}; found {others}. Put it there, or set {PLACE} to where it is."
    )


def _files(place: Path) -> list[Path]:
    """A file of weights, or all of a folder."""
    return sorted(path for path in place.iterdir() if path.suffix in SUFFIXES) if place.is_dir() else [place]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"Expected to read {path}; found: {error.strerror}. Name a file of weights.") from error


def _prefixes(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name}." for name in names)


def _differences(own: Params, given: Params) -> list[str]:
    """What the file lacks, has in excess or has in another shape. How many batches a norm has seen does not count."""
    found = []
    for name in own | given:
        if name.endswith(".num_batches_tracked"):
            continue
        if name not in given:
            found.append(f"no {name}")
        elif name not in own:
            found.append(f"{name}, which the network does not have")
        elif own[name].shape != given[name].shape:
            found.append(f"{name} of shape {list(given[name].shape)}, not {list(own[name].shape)}")
    return found
