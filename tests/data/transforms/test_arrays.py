"""Test the transforms of tables, time series, audio and text."""

import numpy as np
import pytest
import torch
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.preprocessing import StandardScaler

from pogm.data.transforms.arrays import Columns, Counts, LogMel, Series, TokenCounts, mel_filters


def table(rows: int = 60, seed: int = 0) -> torch.Tensor:
    """Three columns of numbers, the second with missing values, and two one-hot columns."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(rows, 3, generator=generator) * torch.tensor([1.0, 10.0, 0.1]) + torch.tensor([0.0, 5.0, 100])
    numbers[::4, 1] = torch.nan
    one_hot = torch.eye(2)[torch.randint(2, (rows,), generator=generator)]
    return torch.cat([numbers, one_hot], 1)


def test_columns_equal_those_of_scikit_learn():
    transform, x = Columns.build(3, 2, indicators=True), table()
    statistics = transform.fit([x[:20], x[20:]])
    found = transform.prepare(table(seed=1), statistics)
    imputer, scaler, flags = SimpleImputer(strategy="median"), StandardScaler(), MissingIndicator(features="all")
    scaler.fit(imputer.fit_transform(x[:, :3]))
    flags.fit(x[:, :3])
    new = table(seed=1)
    expected = np.concatenate(
        [scaler.transform(imputer.transform(new[:, :3])), new[:, 3:], flags.transform(new[:, :3])], axis=1
    )
    assert found.shape[1:] == transform.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_network_sees_only_what_the_training_domains_have():
    """Constant columns, unseen categories and indicators of values that are never missing are 0 everywhere."""
    transform, x = Columns.build(3, 2, indicators=True), table()
    x[:, 0], x[:, 2] = 7.0, torch.nan
    x[:, 3:] = torch.tensor([1.0, 0.0])
    statistics = transform.fit([x])
    new = torch.full((4, 5), 1e6)
    new[0] = torch.nan
    found = transform.prepare(new, statistics)
    seen = [1, 3, 6]  # the second number, the first category, and the indicator of the second number
    unseen = [i for i in range(8) if i not in seen]
    assert not found[:, unseen].any()
    assert found[:, seen].any(0).all()
    assert found[0, 6] == 1
    assert found[1:, 6].eq(0).all()


def test_column_without_a_training_value_has_finite_inputs():
    transform, x = Columns.build(2), torch.tensor([[torch.nan, 1.0], [torch.nan, 2.0]])
    assert transform.prepare(x, transform.fit([x])).isfinite().all()


def test_series_have_mean_0_and_deviation_1_by_channel():
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([[1e-3], [1.0], [1e3]])
    x = torch.randn(700, 3, 16, generator=generator) * scale + 50 * scale
    transform = Series((3, 16))
    found = transform.prepare(x, transform.fit([x[:300], x[300:]])).double()
    torch.testing.assert_close(found.mean((0, 2)), torch.zeros(3).double(), atol=1e-4, rtol=0)
    torch.testing.assert_close(found.std((0, 2), correction=0), torch.ones(3).double(), atol=1e-3, rtol=0)


def test_constant_channel_is_zero():
    x = torch.ones(4, 2, 8)
    x[:, 1] = torch.arange(8.0)
    transform = Series((2, 8))
    found = transform.prepare(x + 1, transform.fit([x]))
    assert not found[:, 0].any()
    assert found[:, 1].any()


@pytest.mark.parametrize("dtype", [torch.int16, torch.float32])
def test_spectrogram_is_that_of_torch_stft(dtype):
    generator = torch.Generator().manual_seed(0)
    clips = (torch.randn(3, 2000, generator=generator) * 3000).to(dtype)
    transform = LogMel.build(2000, 8000, bands=20)
    signal = clips.float() / (2**15 if dtype == torch.int16 else 1)
    window = torch.hann_window(transform.window)
    spectrum = torch.stft(signal, transform.window, transform.hop, window=window, center=False, return_complex=True)
    filters = mel_filters(8000, transform.window, 20, torch.device("cpu"))
    expected = (torch.einsum("nft,fb->nbt", spectrum.abs().square(), filters) + 1e-6).log()
    found = transform.to_inputs(clips, torch.float32)
    assert found.shape[1:] == transform.shape
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_mel_filters_cover_all_frequencies_once():
    """Between the centres of the first and the last filter, the weights of a frequency have the sum 1."""
    filters = mel_filters(16000, 512, 24, torch.device("cpu"))
    inside = slice(int(filters[:, 0].argmax()) + 1, int(filters[:, -1].argmax()))
    torch.testing.assert_close(filters.sum(1)[inside], torch.ones(inside.stop - inside.start))
    assert filters.min() == 0


@pytest.mark.parametrize("frequency", [300, 1000, 3000])
def test_tone_is_in_the_band_of_its_frequency(frequency):
    transform = LogMel.build(4096, 8000)
    tone = torch.sin(2 * torch.pi * frequency * torch.arange(4096) / 8000)
    loudest = int(transform.to_inputs(tone, torch.float32).mean(-1).argmax())
    corners = 700 * (10 ** (torch.linspace(0, 2595 * np.log10(1 + 4000 / 700), 42) / 2595) - 1)
    assert corners[loudest] <= frequency <= corners[loudest + 2]


def test_token_ids_are_counted():
    ids = torch.tensor([[3, 1, 3, 0, 0], [2, 2, 2, 2, 4]])
    counts = torch.tensor([[1, 0, 2, 0], [0, 4, 0, 1]])
    found = TokenCounts((4,)).to_inputs(ids, torch.float32)
    torch.testing.assert_close(found, Counts((4,)).to_inputs(counts, torch.float32))
    torch.testing.assert_close(found.expm1(), counts.float())


def test_statistics_of_several_trials_can_be_batched():
    transform, x = Columns.build(3, 2, indicators=True), table()
    trials = [transform.fit([x[:30]]), transform.fit([x[30:]])]
    stacked = {name: torch.stack([trial[name] for trial in trials]) for name in trials[0]}
    found = torch.func.vmap(lambda statistics: transform.prepare(x, statistics))(stacked)
    for number, statistics in enumerate(trials):
        torch.testing.assert_close(found[number], transform.prepare(x, statistics))
