"""Time to average 20 finished runs of a ResNet-50, and to evaluate the soups: the whole command ``pogm soup``.

python benchmarks/soup.py [--device cuda] [--runs 20] [--images 9991] [--network resnet50] [--out soup_h200.json]

The data are noise in the shape of PACS: JPEG files of 227 × 227 pixels, 4 domains, 7 classes. The runs are written by
the functions of the runner, with different weights near one point and without training. Each measurement is a new
process, from its start to its end: uniform soup with images that are not in the cache yet, then uniform, greedy and
both soups, and an ensemble, with cached images. The greedy soup evaluates each run and each average on the validation
images. The goal is 60 s for 20 runs on an H200.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import pogm
from pogm import ERM
from pogm._system.files import write_atomic
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.record_digest import DONE, RECORDS, RecordDigest
from pogm.benchmark.results.record_file import append_record, record_line
from pogm.benchmark.runs.directory import make_folder, write_trial
from pogm.benchmark.runs.selected_model import SelectedModel, describe
from pogm.data.datasets.folder import Folder
from pogm.data.images.store import CACHE_VARIABLE

ROOT = Path(__file__).resolve().parent.parent
DOMAINS = ("art", "cartoon", "photo", "sketch")
CLASSES = 7
DISTINCT = 50  # different images; they are repeated
CASES = {  # words of the command after its folder
    "uniform, images not cached": ("soup", "--rule", "uniform"),
    "uniform": ("soup", "--rule", "uniform"),
    "greedy": ("soup", "--rule", "greedy"),
    "both": ("soup", "--rule", "both"),
    "ensemble": ("ensemble",),
}


def write_images(root: Path, count: int, size: int) -> None:
    """Write JPEG files of smooth noise: <domain>/<class>/<number>.jpg."""
    draw, contents = np.random.default_rng(0), []
    for _ in range(DISTINCT):
        coarse = Image.fromarray(draw.integers(0, 256, (9, 9, 3), dtype=np.uint8))
        file = io.BytesIO()
        coarse.resize((size, size), Image.Resampling.BICUBIC).save(file, "JPEG")
        contents.append(file.getvalue())
    for number in range(count):
        folder = root / DOMAINS[number % len(DOMAINS)] / str(number // len(DOMAINS) % CLASSES)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:06d}.jpg").write_bytes(contents[number % DISTINCT])


def write_runs(folder: Path, root: Path, options: argparse.Namespace) -> None:
    """Write finished runs that share their initial weights, in the format of the runner."""
    dataset = Folder.from_path(root)
    kind: Any = type(dataset.training)
    training = kind(network=options.network, weights="random", image_size=options.size, batch_size=32)
    base = Trial(
        dataset=dataset,
        algorithm=ERM(),
        test_domains=(0,),
        training=training,
        steps=2,
        evaluate_every=1,
        init_seed=0,
        precision=options.precision,
    )
    network = base.task(root).build_network()
    initial = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    stored = dataset.load(root, 0)[0].inputs.shape[2:]
    facts = {"pogm": pogm.__version__, "torch": torch.__version__, "data": str(root), **dataset.describe_data(root)}
    for number in range(options.runs):
        trial = replace(base, seed=number, hparams_seed=number)
        run = folder / trial.id
        make_folder(run)
        write_trial(run, trial, facts)
        scores = [0.5] * len(DOMAINS)
        record = {"step": 1, "accuracy": {"in": scores, "out": scores}, "seconds_per_step": 0.1, "status": "ok"}
        append_record(run / RECORDS, record)
        selected = SelectedModel()
        selected.consider(1, 0.5, partial(perturb, initial, number))
        selected.write(run, describe(trial, dataset.class_names(root), stored, facts))
        write_atomic(run / DONE, RecordDigest(record_line(record)).done())


def perturb(tensors: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Return the tensors with a little noise."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: leaf + 1e-3 * torch.randn(leaf.shape, generator=generator) * leaf.abs().mean()
        if leaf.dtype == torch.float32 and "running" not in name
        else leaf
        for name, leaf in tensors.items()
    }


def measure(folder: Path, root: Path, options: argparse.Namespace) -> Iterator[tuple[str, float]]:
    """Yield the wall time of every command."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), CACHE_VARIABLE: str(folder.parent / "cache")}
    for number, (name, (verb, *words)) in enumerate(CASES.items()):
        out = str(folder.parent / f"out{number}")
        command = [sys.executable, "-m", "pogm", verb, str(folder), *words, "--device", options.device, "--out", out]
        began = time.perf_counter()
        verbosity = "-v" if options.verbose else "-q"
        subprocess.run([*command, verbosity], env=environment, stdout=subprocess.DEVNULL, check=True)
        yield name, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--images", type=int, default=9991)
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--verbose", action="store_true", help="show the times of all parts")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pogm-soup-") as temporary:
        os.environ[CACHE_VARIABLE] = f"{temporary}/unused"  # so that the first command finds no cached images
        root, folder = Path(temporary, "noise"), Path(temporary, "sweep")
        folder.mkdir()
        write_images(root, options.images, round(options.size * 227 / 224))
        write_runs(folder, root, options)
        found = {}
        for name, seconds in measure(folder, root, options):
            found[name] = seconds
            print(f"{name:<28} {seconds:7.1f} s", flush=True)
    on_gpu = torch.cuda.is_available() and options.device != "cpu"
    device = torch.cuda.get_device_name() if on_gpu else "cpu"
    names = ("runs", "images", "network", "size", "precision")
    facts = {name: getattr(options, name) for name in names} | {"device": device, "torch": torch.__version__}
    if options.out:
        options.out.write_text(json.dumps({**facts, "seconds": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
