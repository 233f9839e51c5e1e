"""Augmented images per second: ours, and torchvision on Pillow images as in DomainBed.

python benchmarks/pipeline.py --data FOLDER [--device cuda] [--workers 8] [--out results.md]

A minibatch has 32 images from each of three domains of PACS (sketch is held out). An epoch has as many images as their
training parts. There is no network and no evaluation. The reference decodes each image every time, in --workers
processes per domain. Ours decodes once, which is measured separately, and then draws from the cache.
"""

import argparse
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from clock import capture
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler
from torchvision import datasets, transforms

from pogm._system.cpu import count_cores
from pogm.core import random
from pogm.core.state import State
from pogm.data.datasets.pacs import PACS
from pogm.data.transforms.photographs import DEVIATION, MEAN, Photographs
from pogm.engine.input_store import Resident
from pogm.engine.prefetch import Streamed
from pogm.engine.sampling import (
    SampleIndices,
    SampleTable,
    build_sample_indices,
    collect_labels_and_sizes,
    concatenate_inputs,
    draw_batch,
)

BATCH = 32
HELD_OUT = (3,)


def reference(root: Path, workers: int) -> Iterator[Tensor]:
    """Yield minibatches from DomainBed's transform and loaders, without end."""
    augment = transforms.Compose(
        [
            transforms.RandomResizedCrop(224, scale=(0.7, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.3, 0.3, 0.3, 0.3),
            transforms.RandomGrayscale(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, DEVIATION),
        ]
    )
    loaders = []
    for domain in PACS.folders[:3]:
        images = datasets.ImageFolder(root / PACS.folder / domain, augment)
        sampler = RandomSampler(images, replacement=True, num_samples=10**6)
        loaders.append(iter(DataLoader(images, BATCH, sampler=sampler, num_workers=workers)))
    while True:
        yield torch.stack([next(loader)[0] for loader in loaders])


def ours(
    table: SampleTable, rows: SampleIndices, device: torch.device, stream: Streamed | None
) -> Callable[[], Tensor]:
    """Return a function that draws the next minibatch; on a GPU, as a CUDA graph."""
    transform, step = Photographs(), torch.zeros((), dtype=torch.int64, device=device)
    key = random.key(0, device)
    state = State({}, {}, {}, {}, step, key)

    def minibatch() -> Tensor:
        x = draw_batch(table, rows.train, random.fold(random.fold(key, 0), step), BATCH, transform, torch.float32).x
        step.add_(1)
        return x

    play = capture(minibatch, device)
    step.zero_()

    def streamed() -> Tensor:
        assert stream is not None
        stream.prepare(state)
        x = play()
        stream.follow(state)
        return x

    return play if stream is None else streamed


def images_per_second(next_one: Callable[[], Tensor], count: int, device: torch.device) -> float:
    """Return the images per second of ``count`` minibatches, after a warm-up. Reading the last number waits for all."""
    for _ in range(min(5, count)):
        next_one()
    if device.type == "cuda":
        torch.cuda.synchronize()
    began, images = time.perf_counter(), 0
    for _ in range(count):
        x = next_one()
        images += x.shape[0] * x.shape[1]
    x[-1, -1, -1, -1, -1].item()
    return images / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--workers", type=int, default=1, help="processes of each of the three loaders of the reference"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="number of measurements; the table has the smallest and the largest"
    )
    parser.add_argument(
        "--epochs", type=float, default=1.0, help="epochs of ours; the reference runs a tenth of an epoch"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"

    with tempfile.TemporaryDirectory() as cache:
        os.environ["POGM_CACHE"] = cache
        began = time.perf_counter()
        PACS().prepare(options.data, lambda items, total: items)
        built = time.perf_counter() - began
        began = time.perf_counter()
        domains = PACS().load(options.data, 0)
        opened = time.perf_counter() - began
        counts = ", ".join(f"{name} {len(d.labels)}" for name, d in zip(PACS.folders, domains, strict=True))

        rows, segments = build_sample_indices(domains, HELD_OUT, trial_seed=0, device=device)
        labels, sizes = (part.to(device) for part in collect_labels_and_sizes(domains))
        images = concatenate_inputs(domains)
        epoch = math.ceil(sum(segments[0:6:2]) / (3 * BATCH))
        stream = Streamed(images, rows, BATCH, 1, device)
        loader = reference(options.data, options.workers)
        ways = {
            "ours, images on the device": ours(
                SampleTable(Resident(images.to(device)), labels, sizes), rows, device, None
            ),
            "ours, images streamed to it": ours(SampleTable(stream, labels, sizes), rows, device, stream),
            f"torchvision on Pillow, 3 × {options.workers} workers": lambda: next(loader).to(device),
        }
        lines = [
            f"PACS: {counts}. Cache built in {built:.1f} s on {count_cores()} cores, opened again in {opened:.2f} s.",
            "",
            f"One epoch is {epoch} minibatches of 3 × {BATCH} images of 224×224, float32. {name}, torch "
            f"{torch.__version__}, {torch.get_num_threads()} threads; {options.rounds} rounds, least – most.",
            "",
            "| | images/s | one epoch |",
            "|---|---|---|",
        ]
        for label, way in ways.items():
            count = max(int(epoch * (options.epochs if "ours" in label else 0.1)), 1)
            speeds = [images_per_second(way, count, device) for _ in range(options.rounds)]
            seconds = epoch * 3 * BATCH / max(speeds)
            lines.append(f"| {label} | {min(speeds):,.0f} – {max(speeds):,.0f} | {seconds:.2f} s |")
            print(lines[-1], flush=True)
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
