"""Time and memory of pogm with a dataset of DomainNet's size: 586,575 images in 6 domains and 345 classes.

python benchmarks/large_dataset.py [--images 586575] [--folder DIR] [--out benchmarks/results/large_dataset_cpu.json]

The images are noise of 16 × 16 pixels, as PNG files, with DomainNet's number of images in each domain. They are written
to a temporary folder and deleted at the end. Each part is a new process, which uses the cache of the parts before:

- listing: find all files, hash them and read their headers
- cache: decode all images
- start: what a run reads before its first step, the second time
- streamed: start, 200 minibatches of ERM with a small network, images memory-mapped and read ahead, 1 evaluation
- resident: the same with all images in memory, without the evaluation
- run: ``pogm run`` with 20 minibatches of ERM and 2 evaluations of all images, streamed as if memory were too small
- report: ``pogm report`` of this run, with the HTML page

The script prints wall time, CPU time and peak memory of each part. The peak includes pages of memory-mapped files,
which the system can take back.
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

from load import ROOT, START, Cost, encode_png, run_child, summarise, write_results

from pogm.data.datasets.domain_net import DomainNet

STEPS = 200
RUN_STEPS = 20
CLASSES = 345
NETWORK = ("network=small_cnn", "weights=random", "image_size=16", "batch_size=32", "freeze_bn=false")

LISTING = """
import sys
from pathlib import Path
from pogm.data.images.index import scan_folder
scan = scan_folder(Path(sys.argv[1]))
assert len(scan.index()) == len(scan.tree.files)
print(scan.fingerprint)
"""

TRAIN = """
import json, resource, sys, time
import torch
from pathlib import Path
from pogm.benchmark.plan.datasets import find_dataset
from pogm.benchmark.plan.sweep import Sweep
from pogm.data.images.index import forget_scans, reuse_scans
from pogm.engine.session import Engine, Session
torch.set_num_threads(1)
root, log, images, steps, settings = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), tuple(sys.argv[5:])
found = {}
def note(name, began, cpu):
    found[name] = time.perf_counter() - began, time.process_time() - cpu, resource.getrusage(
        resource.RUSAGE_SELF).ru_maxrss / 2**20
    return time.perf_counter(), time.process_time()
with reuse_scans():
    clock = time.perf_counter(), time.process_time()
    trial = Sweep(("ERM",), (find_dataset(str(root)),), 1, 1, settings=settings).plan()[0]
    session = Session([trial.task(root.parent)], Engine("cpu", images=images))
    forget_scans()
    session.step()
    session.diverged()
    clock = note("set-up and first step", *clock)
    for _ in range(steps):
        session.step()
    session.diverged()
    clock = note(f"{steps} minibatches", *clock)
    if images == "streamed":
        session.accuracies()
        note("evaluation of all images", *clock)
Path(log).write_text(json.dumps(found))
"""

STREAMED_COMMAND = """
import sys
from pogm.cli import main
from pogm.engine import session
session.fits_on_device = lambda *arguments: False
sys.exit(main(sys.argv[1:]))
"""


def write_images(root: Path, images: int) -> int:
    """Write the images in DomainNet's proportions; return their number."""
    draw, written = random.Random(0), 0
    for name, count in zip(DomainNet.folders, DomainNet.counts, strict=True):
        share = count * images // sum(DomainNet.counts)
        for label in range(CLASSES):
            folder = root / name / f"class{label:03d}"
            folder.mkdir(parents=True)
            for number in range(label, share, CLASSES):
                (folder / f"{number:06d}.png").write_bytes(encode_png(draw.randbytes(16 * 48)))
                written += 1
    return written


def main() -> None:
    """Write the images, measure all parts, delete the images and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=sum(DomainNet.counts))
    parser.add_argument("--folder", type=Path, help="folder for the temporary files (default: that of the system)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    parts: dict[str, dict[str, float]] = {}

    def add(name: str, cost: Cost) -> None:
        parts[name] = summarise([cost])
        print(f"{name}: {parts[name]}", flush=True)

    with tempfile.TemporaryDirectory(prefix="pogm-large-", dir=options.folder) as name:
        folder = Path(name)
        site, cache, runs = folder / "data" / "sites", folder / "cache", folder / "run"
        environment = {"POGM_CACHE": str(cache), "PYTHONUNBUFFERED": "1"}

        def measure(name: str, *words: str) -> None:
            add(name, run_child(ROOT, words, environment, prints_cost=False))

        began = time.perf_counter()
        images = write_images(site, options.images)
        print(f"{images} images written in {time.perf_counter() - began:.0f} s", flush=True)
        measure("listing", "-c", LISTING, str(site))
        measure("cache", "-c", START, str(site))
        measure("start", "-c", START, str(site))
        for storage in ("streamed", "resident"):
            log = folder / f"{storage}.json"
            measure(storage, "-c", TRAIN, str(site), str(log), storage, str(STEPS), *NETWORK)
            for name, values in json.loads(log.read_text()).items():
                add(f"{storage}: {name}", Cost(*values))
        settings = [word for setting in NETWORK for word in ("--set", setting)]
        words = ["run", "--dataset", str(site), "--algorithm", "ERM", "--test-domain", "sketch", "--device", "cpu"]
        words += ["--steps", str(RUN_STEPS), "--evaluate-every", str(RUN_STEPS)]
        measure("run", "-c", STREAMED_COMMAND, *words, *settings, "--out", str(runs))
        measure("report", "-m", "pogm", "report", str(runs), "--out", str(folder / "report"))
        sizes = {
            name: sum(path.stat().st_size for path in (cache / name).rglob("*") if path.is_file())
            for name in ("images", "indexes")
        }
    write_results({"benchmark": "large_dataset", "images": images, "cache_bytes": sizes, "parts": parts}, options.out)


if __name__ == "__main__":
    main()
