"""Transforms of inputs that are not images: columns of a table, time series, audio, counts of words, token ids.

Statistics are fitted on the *in* splits of the training domains of a trial, pooled. A held-out domain is normalised by
them and does not change them. What a network cannot learn from the training domains is set to 0: columns that are
constant there, categories that do not occur there, and indicators of values that are never missing there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from pogm.data.transforms.base import Statistics, Transform

CHUNK = 512  # samples that are transformed at once to fit statistics
CONSTANT = 1e-6  # a standard deviation below this share of the mean is that of a constant
INT16 = 2**15  # largest amplitude of 16-bit audio


@dataclass(frozen=True)
class Columns(Transform):
    r"""Standardised columns of a table, with imputed values and indicators of missing ones.

    .. math:: \tilde x_j = (\hat x_j - \mu_j) / \sigma_j, \qquad \hat x_j = m_j \text{ if } x_j \text{ is missing}

    Median :math:`m_j`, mean :math:`\mu_j` and standard deviation :math:`\sigma_j` (of imputed values) are those of the
    training samples. One-hot columns stay 0 or 1. Indicators follow the columns: 1 where a value is missing.

    Args:
        shape: Number of columns after the transform.
        numbers: Number of stored columns that are numbers; NaN is a missing value.
        categories: Number of stored one-hot columns, which follow the numbers.
    """

    is_fitted: ClassVar[bool] = True

    numbers: int = 0
    categories: int = 0

    @classmethod
    def build(cls, numbers: int, categories: int = 0, *, indicators: bool = False) -> "Columns":
        """Return the transform of a table; with ``indicators``, one is added for each column of numbers."""
        return cls((numbers * (1 + indicators) + categories,), numbers, categories)

    def to_inputs(self, stored: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the columns; missing values are NaN."""
        return stored.to(dtype)

    def fit(self, stored: Sequence[Tensor]) -> Statistics:
        """Return medians, means, inverse standard deviations, and 1 for columns with some missing values."""
        x = torch.cat(list(stored)).double()
        is_missing = x.isnan()
        median = _column_medians(x)
        filled = torch.where(is_missing, median, x)
        mean, deviation = filled.mean(0), filled.std(0, correction=0)
        scale = _inverse(deviation, mean)
        mean[self.numbers :] = 0
        scale[self.numbers :] = filled[:, self.numbers :].any(0).double()
        sometimes_missing = is_missing.any(0) & ~is_missing.all(0)
        found = {"median": median, "mean": mean, "scale": scale, "missing": sometimes_missing[: self.numbers].double()}
        return {name: value.float() for name, value in found.items()}

    def normalise(self, x: Tensor, statistics: Statistics) -> Tensor:
        """Return imputed, standardised columns and indicators."""
        is_missing = x.isnan()
        filled = torch.where(is_missing, statistics["median"].to(x.dtype), x)
        scaled = (filled - statistics["mean"]) * statistics["scale"]
        if self.shape[0] == self.numbers + self.categories:
            return scaled
        return torch.cat([scaled, is_missing[..., : self.numbers] * statistics["missing"]], -1)


def _column_medians(x: Tensor) -> Tensor:
    """Return the median of each column without NaN (the mean of the two middle values); 0 if all values are NaN."""
    low, high = x.nanmedian(0).values, -(-x).nanmedian(0).values  # much faster than sorting the columns
    return ((low + high) / 2).nan_to_num(0)


def _inverse(deviation: Tensor, mean: Tensor) -> Tensor:
    """Return the inverse of standard deviations; 0 for constants."""
    return torch.where(deviation > CONSTANT * mean.abs(), 1 / deviation, 0)


@dataclass(frozen=True)
class Series(Transform):
    r"""Standardised channels of time series [channels, length]: means and deviations over training samples and time."""

    is_fitted: ClassVar[bool] = True

    def to_inputs(self, stored: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the series as they are."""
        return stored.to(dtype)

    def fit(self, stored: Sequence[Tensor]) -> Statistics:
        """Return the mean and the inverse standard deviation of each channel, [channels, 1]."""
        count, total, squares = 0, torch.zeros(()).double(), torch.zeros(()).double()
        chunks = [chunk for domain in stored for chunk in torch.split(domain, CHUNK)]
        shift = self.to_inputs(chunks[0], torch.float32).double().mean((0, 2))  # squares lose fewer digits around it
        for chunk in chunks:
            x = self.to_inputs(chunk, torch.float32).double() - shift[:, None]
            count += x.shape[0] * x.shape[2]
            total, squares = total + x.sum((0, 2)), squares + x.square().sum((0, 2))
        mean = total / count
        deviation = (squares / count - mean.square()).clamp(min=0).sqrt()
        found = {"mean": mean + shift, "scale": _inverse(deviation, mean + shift)}
        return {name: value.float()[:, None] for name, value in found.items()}

    def normalise(self, x: Tensor, statistics: Statistics) -> Tensor:
        """Return channels with mean 0 and standard deviation 1 on the training samples."""
        return (x - statistics["mean"]) * statistics["scale"]


@dataclass(frozen=True)
class LogMel(Series):
    r"""Standardised log-mel spectrogram of audio, computed on the device: [mel bands, frames].

    .. math:: \log\bigl(\varepsilon + M \,|\mathrm{STFT}(x)|^2\bigr)

    with a Hann window, and M triangular filters whose corners are equidistant on the mel scale (O'Shaughnessy, 1987).

    Args:
        shape: Mel bands and frames.
        rate: Samples per second.
        window: Samples of a window of the STFT.
        hop: Samples between two windows.
    """

    rate: int = 8000
    window: int = 256
    hop: int = 128

    @classmethod
    def build(cls, samples: int, rate: int, bands: int = 40) -> "LogMel":
        """Return the transform of clips of this many samples, with windows of about 32 ms that overlap by half."""
        window = min(2 ** max(round(0.032 * rate).bit_length() - 1, 5), samples)
        hop = window // 2
        return cls((bands, (samples - window) // hop + 1), rate, window, hop)

    def to_inputs(self, stored: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the spectrogram of clips [..., samples]; 16-bit audio is scaled to [-1, 1)."""
        x = stored.to(dtype) / INT16 if stored.dtype == torch.int16 else stored.to(dtype)
        frames = x.unfold(-1, self.window, self.hop)  # [..., frames, window]
        hann = torch.hann_window(self.window, dtype=dtype, device=x.device)
        spectrum = torch.fft.rfft(frames * hann)
        power = spectrum.real.square() + spectrum.imag.square()
        bands: Tensor = power @ mel_filters(self.rate, self.window, self.shape[0], x.device).to(dtype)
        return (bands + 1e-6).log().transpose(-1, -2)


@lru_cache(maxsize=8)
def mel_filters(rate: int, window: int, bands: int, device: torch.device) -> Tensor:
    """Return triangular filters [frequencies, bands]; the corners are equidistant on the mel scale."""
    frequencies = torch.linspace(0, rate / 2, window // 2 + 1, device=device)
    highest = 2595 * math.log10(1 + rate / 2 / 700)
    mels = torch.linspace(0, highest, bands + 2, device=device)
    corners = 700 * (10 ** (mels / 2595) - 1)
    low, middle, high = corners[:-2], corners[1:-1], corners[2:]
    rising = (frequencies[:, None] - low) / (middle - low)
    falling = (high - frequencies[:, None]) / (high - middle)
    return torch.minimum(rising, falling).clamp(min=0)


@dataclass(frozen=True)
class Counts(Transform):
    """Counts of words: log(1 + count)."""

    def to_inputs(self, stored: Tensor, dtype: torch.dtype) -> Tensor:
        """Return log(1 + count)."""
        return stored.to(dtype).log1p()


@dataclass(frozen=True)
class TokenCounts(Counts):
    """Token ids of a text [length], counted on the device: log(1 + count) of every token. The id 0 is padding."""

    def to_inputs(self, stored: Tensor, dtype: torch.dtype) -> Tensor:
        """Return log(1 + count) of the ids 1, 2, ...; the order of the tokens is lost."""
        ids = stored.long()
        counts = torch.zeros((*ids.shape[:-1], self.shape[0] + 1), dtype=dtype, device=ids.device)
        return counts.scatter_add(-1, ids, torch.ones_like(ids, dtype=dtype))[..., 1:].log1p()
