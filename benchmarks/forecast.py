"""Measure the coverage of the forecast interval: how often does it contain the accuracy at the next site?

python benchmarks/forecast.py --data DATA [--repeats 200] [--out benchmarks/results/forecast_cpu.json]

For a set of sites, each one is held out once, which gives the forecast as in ``pogm verdict``. Then a classifier of all
sites is tested at one further site. The interval should contain this accuracy in 95 % of cases.

- *MNIST with made-up sites*: a pool of sites with 150 digits each and random acquisition: rotation, contrast, blur,
  noise, background. Sites are drawn at random from the pool, so the assumption of the interval holds.
- *Real sites*: speakers, hospitals, products and rotated digits. Each site is once the further one. There are few of
  them, and they are not a random sample.

The classifier is a ridge classifier on simple features, because several thousand fits are needed.
"""

import argparse
import csv
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pogm.benchmark.results.statistics import student_quantile
from pogm.data.datasets.digits import read_mnist
from pogm.data.datasets.rotated_mnist import RotatedMNIST
from pogm.deployment.forecast import Forecast, forecast

Array = npt.NDArray[np.float64]
Site = tuple[Array, npt.NDArray[np.int64]]  # features [N, F] and labels [N]

POOL, IMAGES = 120, 150  # made-up sites, and digits of each
COUNTS = (3, 4, 6, 10, 20)  # sites that a forecast rests on
MOST = 600  # samples of a real site


def made_up_sites(root: Path, draw: np.random.Generator) -> list[Site]:
    """Return sites that take digits of MNIST with their own acquisition settings."""
    images, labels = (part.numpy() for part in read_mnist(root))
    sites = []
    for _ in range(POOL):
        chosen = draw.choice(len(labels), IMAGES, replace=False)
        x = images[chosen].reshape(IMAGES, 28, 28) / 255
        x = ndimage.rotate(x, draw.normal(0, 20), axes=(1, 2), reshape=False, order=1)
        x = ndimage.gaussian_filter(x, (0, *[draw.uniform(0, 1.5)] * 2))
        x = draw.uniform(0.3, 1) * x + draw.uniform(0, 0.4) + draw.normal(0, draw.uniform(0, 0.3), x.shape)
        sites.append((x[:, ::2, ::2].reshape(IMAGES, -1), labels[chosen].astype(np.int64)))
    return sites


def rotated_digits(root: Path, draw: np.random.Generator) -> list[Site]:
    """Return the six angles of RotatedMNIST."""
    domains = RotatedMNIST().load(root, 0)
    return [_sample(domain.inputs.numpy()[:, 0, ::2, ::2] / 255, domain.labels.numpy(), draw) for domain in domains]


def speakers(root: Path, draw: np.random.Generator) -> list[Site]:
    """Return the speakers of the spoken digits; features are log spectra in eight windows."""
    stored = np.load(root / "spoken_digits" / "spoken_digits.npz", allow_pickle=False)
    audio, length = stored["audio"], stored["length"]  # each access reads the file again
    ends = np.cumsum(length)
    spectra = []
    for start, end in zip(ends - length, ends, strict=True):
        windows = np.array_split(audio[start:end] / 2**15, 8)
        power = [np.abs(np.fft.rfft(window, 512))[:256].reshape(16, 16).mean(1) for window in windows]
        spectra.append(np.log(np.concatenate(power) + 1e-3))
    return _by_site(np.array(spectra), stored["digit"], stored["speaker"], draw)


def products(root: Path, draw: np.random.Generator) -> list[Site]:
    """Return the products of the Amazon reviews; features are logarithms of the 500 most frequent word counts."""
    from scipy.sparse import csr_matrix

    stored = np.load(root / "amazon_reviews" / "amazon_reviews.npz", allow_pickle=False)
    counts = csr_matrix((stored["data"], stored["indices"], stored["indptr"]), stored["shape"])
    frequent = np.argsort(-np.asarray(counts.sum(0)).ravel())[:500]
    return _by_site(np.log1p(counts[:, frequent].toarray()), stored["label"], stored["product"], draw)


def hospitals(root: Path, draw: np.random.Generator) -> list[Site]:
    """Return the hospitals of the heart disease data; missing values are the median of all hospitals."""
    tables = []
    for path in sorted((root / "heart").glob("*.csv")):
        with open(path, newline="") as file:
            rows = [row for row in csv.reader(file) if row and row[0].replace(".", "").replace("-", "").isdigit()]
        tables.append(np.array([[np.nan if cell == "?" else float(cell) for cell in row] for row in rows]))
    median = np.nanmedian(np.concatenate(tables), 0)
    filled = [np.where(np.isnan(table), median, table) for table in tables]
    return [_sample(table[:, :-1], (table[:, -1] > 0).astype(np.int64), draw) for table in filled]


def _by_site(x: Array, y: npt.NDArray[Any], site: npt.NDArray[Any], draw: np.random.Generator) -> list[Site]:
    return [_sample(x[site == name], y[site == name], draw) for name in np.unique(site)]


def _sample(x: npt.NDArray[Any], y: npt.NDArray[Any], draw: np.random.Generator) -> Site:
    chosen = draw.permutation(len(y))[:MOST]
    return x[chosen].reshape(len(chosen), -1).astype(np.float64), y[chosen].astype(np.int64)


def accuracy(train: Sequence[Site], test: Site) -> float:
    """Return the accuracy at a site of a classifier of other sites."""
    model = make_pipeline(StandardScaler(), RidgeClassifier(alpha=10.0))
    model.fit(np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train]))
    return float(model.score(*test))


def forecast_sites(sites: Sequence[Site]) -> Forecast:
    """Return the forecast from leaving out one site at a time."""
    accuracies = [accuracy([*sites[:i], *sites[i + 1 :]], site) for i, site in enumerate(sites)]
    return forecast(accuracies, counts=[len(labels) for _, labels in sites])


def summarise(found: Sequence[tuple[Forecast, float]]) -> dict[str, Any]:
    """Return the coverage with its standard error, the width of the intervals, and the error of the forecast."""
    covered = np.array([f.low <= value <= f.high for f, value in found])
    error = np.array([f.mean - value for f, value in found])
    share = covered.mean()
    return {
        "sites": len(found[0][0].accuracies),
        "t": student_quantile(0.975, len(found[0][0].accuracies) - 1),
        "n": len(found),
        "coverage": float(share),
        "stderr": float(np.sqrt(share * (1 - share) / len(found))),
        "mean_width": float(np.mean([f.high - f.low for f, _ in found])),
        "mean_error": float(error.mean()),
        "mean_absolute_error": float(np.abs(error).mean()),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write the coverage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="Folder with MNIST, spoken_digits, heart, ...")
    parser.add_argument("--repeats", type=int, default=200, help="Draws of made-up sites for each number of sites.")
    parser.add_argument("--out", type=Path, help="JSON file.")
    options = parser.parse_args(arguments)
    draw = np.random.default_rng(0)
    results: dict[str, dict[str, Any]] = {}

    def add(name: str, found: Sequence[tuple[Forecast, float]]) -> None:
        results[name] = {key: round(value, 3) for key, value in summarise(found).items()}
        print(name, results[name], file=sys.stderr)

    pool = made_up_sites(options.data, draw)
    for count in COUNTS:
        found = []
        for _ in range(options.repeats):
            *sites, new = (pool[i] for i in draw.choice(POOL, count + 1, replace=False))
            found.append((forecast_sites(sites), accuracy(sites, new)))
        add(f"MNIST, {count} made-up sites", found)
    real: dict[str, Callable[[Path, np.random.Generator], list[Site]]] = {
        "RotatedMNIST": rotated_digits,
        "speakers": speakers,
        "products": products,
        "hospitals": hospitals,
    }
    for name, load in real.items():
        sites = load(options.data, np.random.default_rng(0))
        others = [(sites[:i] + sites[i + 1 :], site) for i, site in enumerate(sites)]
        add(name, [(forecast_sites(rest), accuracy(rest, site)) for rest, site in others])
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
