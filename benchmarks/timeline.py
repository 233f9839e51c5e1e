"""Timeline of a sweep on an NVIDIA GPU: when batches of trials train, and when the GPU is idle.

python benchmarks/timeline.py --out timeline.json SWEEP_FOLDER -- pogm sweep ... --out SWEEP_FOLDER

runs the command after ``--`` and samples the utilization of the GPU by nvidia-smi four times a second. A batch of
trials begins when its run folders are written and ends when their last records are. The script prints the wall time,
the number of finished runs, the share of samples in which the GPU was idle, and the longest idle time.

python benchmarks/timeline.py --plot docs/images/timeline.svg timeline.json

draws the timeline.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from pogm.benchmark.results.record_digest import DONE, TRIAL
from pogm.report.draw import write_svg
from pogm.report.figure import Figure, Line, Panel, Point

SAMPLE_MS = 250
IDLE = 5  # percent of the time with a kernel on the GPU, below which a sample counts as idle
TOGETHER = 1.0  # seconds between the starts, and between the ends, of runs of a batch
WINDOW = 8  # samples of the drawn mean
QUERY = ["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", f"--loop-ms={SAMPLE_MS}"]


def measure(command: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run a command and return its wall time, the samples of the GPU and the batches of its sweep."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        sys.exit("error: Expected nvidia-smi, which samples the GPU; found none. Install the driver of the GPU.")
    began = time.time()
    with tempfile.TemporaryFile("w+") as file, subprocess.Popen([tool, *QUERY], stdout=file) as sampler:
        running = subprocess.Popen(command)
        try:
            running.wait()
        except KeyboardInterrupt:  # the sweep gets the signal, too, and stops with checkpoints
            running.wait()
        seconds = time.time() - began
        sampler.terminate()
        file.seek(0)
        utilization = [int(line) for line in file if line.strip().isdigit()]
    return {
        "command": " ".join(command),
        "exit": running.returncode,
        "seconds": seconds,
        "utilization": utilization,
        "batches": batches(folder, began),
    }


def batches(folder: Path, began: float) -> list[dict[str, float]]:
    """Return start, end and number of runs of each batch, in seconds after ``began``; older runs do not count.

    Runs that start together and end together are one batch. Several processes may start together, too.
    """
    spans = []
    for done in folder.rglob(DONE):
        start, end = (path.stat().st_mtime - began for path in (done.with_name(TRIAL), done))
        if start >= 0:
            spans.append((start, end))
    found: list[dict[str, float]] = []
    for start, end in sorted(spans, key=lambda span: span[1]):
        near = [one for one in found if max(abs(start - one["start"]), end - one["end"]) < TOGETHER]
        if near:
            near[-1] |= {"end": end, "runs": near[-1]["runs"] + 1}
        else:
            found.append({"start": start, "end": end, "runs": 1})
    return sorted(found, key=lambda one: one["start"])


def summary(found: dict[str, Any]) -> str:
    """Return the numbers of a timeline as one line."""
    samples = found["utilization"]
    if not samples:
        return "no samples of the GPU"
    idle = [value < IDLE for value in samples]
    longest = max((len(list(group)) for flag, group in groupby(idle) if flag), default=0)
    period = found["seconds"] / len(samples)
    return (
        f"{found['seconds']:.0f} s, {sum(int(batch['runs']) for batch in found['batches'])} finished runs in "
        f"{len(found['batches'])} batches; a kernel was on the GPU in {sum(samples) / len(samples):.0f} % of the time; "
        f"idle in {100 * sum(idle) / len(idle):.0f} % of the samples, at most {longest * period:.1f} s in a row"
    )


def lanes(found: list[dict[str, float]]) -> list[int]:
    """Return a lane for each batch, the lowest that is free: as many lanes as processes that train at once."""
    free_from: list[float] = []
    result = []
    for batch in found:
        lane = next((i for i, end in enumerate(free_from) if end <= batch["start"] + 0.5), len(free_from))
        free_from[lane:] = [batch["end"], *free_from[lane + 1 :]]
        result.append(lane)
    return result


def figure(found: dict[str, Any]) -> Figure:
    """Return the figure: utilization of the GPU, and a line for each batch of trials."""
    samples = found["utilization"]
    period = found["seconds"] / len(samples)
    means = [samples[i : i + WINDOW] for i in range(0, len(samples), WINDOW)]
    points = tuple(Point((i + 0.5) * WINDOW * period, sum(some) / len(some)) for i, some in enumerate(means))
    batches, lane_of = found["batches"], lanes(found["batches"])
    rows = tuple(
        Line("", (Point(batch["start"], lane + 1), Point(batch["end"] - 0.5, lane + 1)), number % 2)
        for number, (batch, lane) in enumerate(zip(batches, lane_of, strict=True))
    )
    count = max(lane_of, default=0) + 1
    whole = (0.0, found["seconds"])
    return Figure(
        "timeline",
        "A sweep on one GPU",
        (
            Panel("GPU in use", (Line("", points),), "seconds", "% of the time", x_range=whole, y_range=(0.0, 100.0)),
            Panel("batches of trials", rows, "seconds", "process", x_range=whole, y_range=(0.0, count + 0.5)),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="folder of the sweep; with --plot, the file of a timeline")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path, help="draw a timeline into this file, and run nothing")
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    options, command = parser.parse_args(words[:split]), words[split + 1 :]
    if options.plot:
        found = json.loads(options.path.read_text())
        write_svg(figure(found), options.plot)
    elif command:
        found = measure(command, options.path)
        if options.out:
            options.out.write_text(json.dumps(found) + "\n")
    else:
        parser.error("give the command of the sweep after --")
    print(summary(found))


if __name__ == "__main__":
    main()
