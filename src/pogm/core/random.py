"""Random numbers as a function of a key, without a generator or hidden state.

A key is an int64 tensor. Number i of its stream is the SplitMix64 hash (Steele et al., 2014) of the key and i.
The same key gives the same numbers on every device, in a loop, under ``vmap``, in a CUDA graph and after a
resume. Torch generators do not guarantee this.
"""

import math

import numpy as np
import torch
from torch import Tensor

from pogm.core.compilation import compiled, inside_transform

GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # constants of SplitMix64, as int64
FIRST = 0xBF58476D1CE4E5B9 - 2**64
SECOND = 0x94D049BB133111EB - 2**64
MANY = 2**12  # numbers up to which NumPy is faster than torch on a CPU, because its operations start faster
ATTEMPTS = 12  # of a rejection sampler that accepts more than 95 % of its candidates


def key(seed: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the key of a seed."""
    return fold(torch.tensor(seed, dtype=torch.int64, device=device), 0)


@compiled
def fold(key: Tensor, *items: Tensor | int) -> Tensor:
    """Derive a new key from ``key`` for an item: a step, a domain or a purpose; for several items, one by one."""
    if _known(key) and all(isinstance(item, int) or _known(item) for item in items):
        value = int(key)  # Python integers: same result, five times faster
        for item in items:
            value = _mix_integer(value + (int(item) + 1) * GOLDEN)
        return torch.tensor(value, device=key.device)
    for item in items:
        if isinstance(item, int):
            key = _mix(key + _as_int64((item + 1) * GOLDEN))
            continue
        if torch.compiler.is_compiling():
            item = item ^ 0  # otherwise the compiler treats the product of an index as int32
        key = _mix(key + (item + 1) * GOLDEN)
    return key


@compiled
def split(key: Tensor, count: int) -> Tensor:
    """Derive ``count`` new keys from a key."""
    if _known(key) and count <= MANY:
        return torch.from_numpy(_split_by_numpy(int(key), count).view(np.int64))
    return fold(key, torch.arange(count, device=key.device))


def skip(key: Tensor, count: Tensor) -> Tensor:
    """Return the key whose stream is that of ``key`` without its first ``count`` numbers."""
    return key + count * GOLDEN


@compiled
def uniform(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Draw float64 numbers from U[0, 1)."""
    count = math.prod(shape)
    if _known(key) and count <= MANY:
        return torch.from_numpy((_split_by_numpy(int(key), count) >> np.uint64(11)) * 2.0**-53).view(shape)
    bits = split(key, count).reshape(shape)
    return _shift(bits, 11).to(torch.float64) * 2.0**-53


def normal(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Draw standard normal numbers (Box and Muller, 1958)."""
    radius = (-2 * torch.log1p(-uniform(fold(key, 0), shape))).sqrt()
    return radius * torch.cos(2 * math.pi * uniform(fold(key, 1), shape))


def permutation(key: Tensor, count: int) -> Tensor:
    """Draw a uniformly random permutation of 0 … count−1."""
    return uniform(key, (count,)).argsort()


def beta(key: Tensor, alpha: Tensor | float, shape: tuple[int, ...]) -> Tensor:
    """Draw Beta(alpha, alpha) numbers: X / (X + Y) with X, Y from Gamma(alpha, 1)."""
    first = _log_gamma(fold(key, 0), alpha, shape)
    second = _log_gamma(fold(key, 1), alpha, shape)
    return torch.sigmoid(first - second)


def _log_gamma(key: Tensor, alpha: Tensor | float, shape: tuple[int, ...]) -> Tensor:
    """Draw logarithms of Gamma(alpha, 1) numbers (Marsaglia and Tsang, 2000), which are finite for small alpha, too."""
    d = alpha + 1 - 1 / 3
    tries = (ATTEMPTS, *shape)
    z = normal(fold(key, 0), tries)
    v = (1 + z / (9 * d) ** 0.5).clamp(min=1e-9) ** 3
    accepted = torch.log1p(-uniform(fold(key, 1), tries)) < z**2 / 2 + d - d * v + d * v.log()
    first = accepted.to(torch.int64).argmax(0, keepdim=True)
    boost = torch.log1p(-uniform(fold(key, 2), shape)) / alpha  # Gamma(a) is Gamma(a + 1) · U^(1/a)
    return (d * v.gather(0, first)[0]).log() + boost


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * FIRST
    z = (z ^ _shift(z, 27)) * SECOND
    return z ^ _shift(z, 31)


def _mix_integer(z: int) -> int:
    z %= 2**64
    z = (z ^ z >> 30) * FIRST % 2**64
    z = (z ^ z >> 27) * SECOND % 2**64
    return _as_int64(z ^ z >> 31)


def _split_by_numpy(key: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Return what ``fold(key, i)`` gives for i = 0 … count−1, as unsigned integers."""
    unsigned = np.uint64  # with Python integers, NumPy 1 would compute in float64
    z = np.arange(1, count + 1, dtype=unsigned) * unsigned(GOLDEN % 2**64) + unsigned(key % 2**64)
    z = (z ^ z >> unsigned(30)) * unsigned(FIRST % 2**64)
    z = (z ^ z >> unsigned(27)) * unsigned(SECOND % 2**64)
    return z ^ z >> unsigned(31)


def _known(number: Tensor) -> bool:
    """Return True if a scalar can be read without a synchronisation."""
    return not number.ndim and number.device.type == "cpu" and not inside_transform()


def _as_int64(value: int) -> int:
    """Wrap a Python integer to the range of int64."""
    return (value + 2**63) % 2**64 - 2**63


def _shift(z: Tensor, bits: int) -> Tensor:
    """Shift logically to the right. Torch's operator copies the sign bit."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
