"""Weights from files: found by their hash, read without running code, compared name by name."""

import io
import os
import re
import stat
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np
import torch
from torch import Tensor, nn

from pogm._system.errors import DataError, IntegrityError, UsageError, shorten
from pogm._system.files import digest, write_atomic
from pogm.core.trees import Params, is_finite
from pogm.models.featurizer import Featurizer

RANDOM, PRETRAINED = "random", "pretrained"
HASH_PREFIX = "sha256:"
WEIGHTS_VARIABLE = "POGM_WEIGHTS"  # environment variable: path of a weights file, or of a folder of them
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".pkl")
WRAPPERS = ("state_dict", "model", "model_dict")  # keys of checkpoints that contain the tensors
DOMAINBED = "featurizer.network."  # prefix of the tensors of the network in model.pkl of DomainBed
LISTED = 8  # differences that a message names
MOST_BYTES = 64 << 30  # of a weights file
MOST_RATIO = 100  # bytes of the tensors / bytes of the file
TRAINED_WITH = {  # network of known files, whose tensors also fit other networks or do not name one
    HASH_PREFIX + "ba3cabf30e53816d8f01017f6280b844fdc8dc556a761a96d6065d3cda7978bf": "resnet50_v1",
    HASH_PREFIX + "73c0d2c683e077662b1de4dedd63eda6b9cb75932985656c36e000227f6f15a0": "mobilenet_v2",
}


def check_weights(weights: str) -> None:
    """Raise a `UsageError` for a text that is not a valid name of weights; nothing is read."""
    if weights not in (RANDOM, PRETRAINED) and not re.fullmatch(HASH_PREFIX + "[0-9a-f]{64}", weights):
        raise UsageError(
            f"Expected weights to be {RANDOM!r}, {PRETRAINED!r} or '{HASH_PREFIX}' and the 64 digits of sha256sum for "
            f"a file; found {weights!r}. A trial does not contain paths: set {WEIGHTS_VARIABLE} to the file's path."
        )


def hash_weights(path: Path) -> str:
    """Return ``sha256:`` and the hash of a weights file, which is its name in a trial. The path does not matter."""
    return HASH_PREFIX + digest(_read_file(path))


def find_network(weights: str) -> str | None:
    """Return the network that a known weights file was trained with; None if the file is not known.

    Shapes do not identify a network: the tensors of ``resnet50_v1`` also fit ``resnet50``, but with lower accuracy.
    """
    return TRAINED_WITH.get(weights)


def find_known_file(path: Path) -> Path | None:
    """Return the first file at or in a path for which the network is known; None if there is none."""
    return next((file for file in _list_files(path) if find_network(hash_weights(file)) is not None), None)


def load_weights(featurizer: Featurizer, weights: str) -> None:
    """Load weights into a featurizer.

    Args:
        featurizer: The featurizer.
        weights: "pretrained", or "sha256:..." for a file at or in $POGM_WEIGHTS.
    """
    check_weights(weights)
    if weights != PRETRAINED:
        path, content = _find_file(weights)
        load_tensors(featurizer, read_tensors(path.name, content), str(path))
    elif featurizer.pretrained is not None:
        load_tensors(featurizer, featurizer.pretrained(), "the published weights")
    else:
        raise UsageError(
            f"Expected a network with published weights for weights={PRETRAINED!r}; found one without. "
            f"Pass --weights FILE, name a file by its hash (weights={HASH_PREFIX}...), or set weights={RANDOM}."
        )


def load_tensors(featurizer: Featurizer, tensors: Params, source: str, *, strict: bool = True) -> list[str]:
    """Copy tensors into a featurizer. Floating-point tensors are converted to its precision, others must be equal.

    The tensors of the classifier are left out. Input channel i of the first convolution is channel i mod 3 of the file.

    Args:
        featurizer: The featurizer.
        tensors: Tensors by name.
        source: Description of where they are from, for the error.
        strict: Raise a `DataError` if names, shapes or kinds of numbers differ.

    Returns:
        Differences between the tensors and the featurizer.

    Raises:
        DataError: A tensor contains NaN or infinity.
    """
    expected: Params = featurizer.module.get_submodule(featurizer.inside).state_dict()
    given = {name: tensor for name, tensor in tensors.items() if not name.startswith(_prefixes(featurizer.classifier))}
    first = f"{featurizer.first}.weight"
    if first in given and first in expected and given[first].ndim == 4 and given[first].shape[1] == 3:
        given[first] = repeat_channels(given[first], expected[first].shape[1])

    differences = _compare(expected, given)
    if differences and strict:
        more = f" and {len(differences) - LISTED} more" if len(differences) > LISTED else ""
        raise DataError(
            f"Expected the weights of this network in {source}; found {'; '.join(differences[:LISTED])}{more}. "
            "Choose the network that the file was made with: --set network=NAME."
        )
    with torch.no_grad():
        for name, tensor in expected.items():
            if name in given and _fits(given[name], tensor):
                tensor.copy_(given[name])
                if tensor.numel() and not is_finite(tensor):
                    raise DataError(
                        f"Expected finite weights in {source}; found NaN or infinity in {name} ({given[name].dtype}). "
                        "Get the file again, or save it in higher precision."
                    )
    return differences


def set_input_channels(layer: nn.Conv2d, channels: int) -> None:
    """Change the number of input channels of a convolution."""
    layer.in_channels = channels
    layer.weight = nn.Parameter(repeat_channels(layer.weight.detach(), channels))


def repeat_channels(weight: Tensor, channels: int) -> Tensor:
    """Return convolution weights for another number of input channels: new channel i is old channel i mod C."""
    return weight[:, torch.arange(channels) % weight.shape[1]]


def read_tensors(name: str, content: bytes) -> Params:
    """Read tensors from the content of a file: safetensors, or a file of ``torch.save`` that contains only tensors.

    In a ``model.pkl`` of DomainBed, those of the featurizer are read.

    Raises:
        IntegrityError: If the file is damaged or would run code.
        DataError: If it does not contain tensors by name.
    """
    from safetensors.torch import load

    tensors: Any
    try:
        if name.endswith(".safetensors"):
            tensors = load(content)
        else:
            with warnings.catch_warnings(), torch.serialization.safe_globals(_numpy_numbers()):
                warnings.simplefilter("ignore")  # about pickles of other versions, which load or fail below
                tensors = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # damaged or manipulated files raise any exception
        text = str(error).strip() or type(error).__name__
        refused = re.search(r"GLOBAL [\w.]+|Unsupported operand \d+", text)  # torch also explains how to run the code
        reason = refused[0] if refused else text.splitlines()[0]
        raise IntegrityError(
            f"Expected only tensors in {name}; found a file that is damaged or would run code; it was not run "
            f"({reason}). Get it from its authors again, if possible as safetensors."
        ) from error
    for wrapper in WRAPPERS:
        if isinstance(tensors, dict) and isinstance(tensors.get(wrapper), dict):
            tensors = tensors[wrapper]
    is_named = isinstance(tensors, dict) and all(isinstance(name, str) for name in tensors)
    if not is_named or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise DataError(f"Expected tensors by name in {name}; found something else. Save the state_dict alone.")
    if any(key.startswith(DOMAINBED) for key in tensors):
        return {key.removeprefix(DOMAINBED): tensors[key] for key in tensors if key.startswith(DOMAINBED)}
    return dict(tensors)


def convert(path: Path, out: Path) -> dict[str, Tensor]:
    """Write the tensors of a weights file as safetensors, which cannot contain code, and return them.

    Raises:
        UsageError: The output exists.
        IntegrityError: The file is damaged or would run code.
        DataError: The file does not contain tensors by name, or safetensors cannot store them.
    """
    from safetensors.torch import save

    if out.exists():
        raise UsageError(f"Expected to write a new file; found {out}. Choose another name with --out.")
    content = _read_file(path)
    tensors = read_tensors(path.name, content)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if size > MOST_RATIO * len(content):
        raise IntegrityError(
            f"Expected tensors of at most {MOST_RATIO} times the size of {path}; found {size} bytes in "
            f"{len(content)}. Get it from its authors again."
        )
    try:
        # Weights that several names share become several tensors.
        written = save({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()})
    except (KeyError, NotImplementedError, RuntimeError, ValueError) as error:  # such as a sparse tensor
        raise DataError(
            f"Expected dense tensors in {path}; found some that safetensors cannot store ({shorten(str(error))}). "
            "Convert them to dense floating-point tensors, then save the file again."
        ) from error
    write_atomic(out, written)
    return tensors


def _numpy_numbers() -> list[Any]:
    """Return the types of numbers of numpy, which hyperparameters in a checkpoint may have. They cannot run code."""
    return [np.dtype, type(np.dtype(np.float64)), type(np.dtype(np.int64)), np.float64(0).__reduce__()[0]]


def load_published(url: str) -> Params:
    """Load tensors from an address of torch's hub, where the file name ends with the first digits of the SHA-256.

    The file is read from $POGM_WEIGHTS or the cache of the hub, and downloaded into the cache if it is in neither.
    """
    name = Path(urlparse(url).path).name
    wanted = name.rpartition(".")[0].rpartition("-")[2]
    cached = Path(torch.hub.get_dir()) / "checkpoints" / name
    directory = Path(os.environ.get(WEIGHTS_VARIABLE) or cached.parent)
    path = directory / name if (directory / name).exists() else cached
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(path), hash_prefix=wanted, progress=False)
        except (OSError, RuntimeError) as error:
            raise DataError(
                f"Expected to download pretrained weights from {url}; found: {error}. Download the file on another "
                f"machine and put it into {cached.parent}; or pass --weights FILE with weights that you have "
                "(and their network, if it is another one: --set network=resnet50_v1, for example); or train "
                f"without pretrained weights, which needs far more images: --set weights={RANDOM}"
            ) from error
    content = _read_file(path)
    if not digest(content).startswith(wanted):
        raise IntegrityError(
            f"Expected a SHA-256 that begins with {wanted} in {path}; found {digest(content)[:8]}. "
            "Delete the file; it will be downloaded again."
        )
    return read_tensors(name, content)


def _find_file(weights: str) -> tuple[Path, bytes]:
    """Return the file with this hash, and its content."""
    if not os.environ.get(WEIGHTS_VARIABLE):
        raise DataError(
            f"Expected {WEIGHTS_VARIABLE} to be the path of a file with {weights}; found it not set. "
            "Pass the file with --weights, or set the variable to it or to its folder."
        )
    location = Path(os.environ[WEIGHTS_VARIABLE])
    paths = _list_files(location)
    for path in paths:
        content = _read_file(path)
        if HASH_PREFIX + digest(content) == weights:
            return path, content
    others = ", ".join(path.name for path in paths) or "no weights file"
    raise DataError(
        f"Expected a file with {weights} at {location}; found {others}. "
        f"Put it there, or set {WEIGHTS_VARIABLE} to its path."
    )


def _list_files(path: Path) -> list[Path]:
    """Return the path of a file, or of all weights files in a folder."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())


def _read_file(path: Path) -> bytes:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise DataError(f"Expected a weights file; found that {path} is not a regular file. Name a file.")
        if found.st_size > MOST_BYTES:
            raise DataError(
                f"Expected at most {MOST_BYTES >> 30} GiB in {path}; found {found.st_size} bytes. Name a weights file."
            )
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"Expected to read {path}; found: {error.strerror}. Name a weights file.") from error


def _prefixes(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name}." for name in names)


def _compare(expected: Params, given: Params) -> list[str]:
    """Return the names that are missing, unknown or of another shape; batch counters of batch norm are ignored."""
    found = []
    for name in expected | given:
        if name.endswith(".num_batches_tracked"):
            continue
        if name not in given:
            found.append(f"no {name}")
        elif name not in expected:
            found.append(f"{name}, which the network does not have")
        elif expected[name].shape != given[name].shape:
            found.append(f"{name} of shape {list(given[name].shape)}, not {list(expected[name].shape)}")
        elif not _fits(given[name], expected[name]):
            found.append(f"{name} of dtype {given[name].dtype}, not {expected[name].dtype}")
    return found


def _fits(given: Tensor, expected: Tensor) -> bool:
    """Return True if a tensor has the shape and the kind of numbers: floating point, or the same dtype."""
    same_kind = given.dtype == expected.dtype or (given.is_floating_point() and expected.is_floating_point())
    return given.shape == expected.shape and same_kind
