"""Pack the records of finished runs into one compressed file, to store with the results.

python benchmarks/pack_records.py RUNS results/NAME.tar.gz

RUNS is a folder of run folders, as `pogm sweep` and `pogm experiment` write them. The archive has trial.json,
records.jsonl and done of each run, but no checkpoints. Paths of the machine are removed from the provenance. The same
runs give the same bytes. To use the records: ``tar xzf results/NAME.tar.gz -C FOLDER`` and ``pogm report FOLDER``, or
unpack them into the ``runs`` folder of an experiment, which then runs only what is missing. After records of the
evidence, run ``python benchmarks/update_results.py``: it updates results/PLAN.md and the tables of the pages.
"""

import gzip
import io
import json
import sys
import tarfile
from collections.abc import Container
from pathlib import Path

from pogm._system.files import write_atomic

KEPT = ("trial.json", "records.jsonl", "done")
PATHS = ("data", "weights")


def pack(runs: Path, archive: Path, names: Container[str] | None = None) -> int:
    """Write the archive and return the number of runs in it: all finished runs, or those with the given names."""
    finished = sorted(folder for folder in runs.iterdir() if (folder / "done").exists())
    finished = [folder for folder in finished if names is None or folder.name in names]
    content = io.BytesIO()
    with gzip.GzipFile("", "wb", fileobj=content, mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for folder in finished:
            for name in KEPT:
                record = (folder / name).read_bytes()
                if name == "trial.json":
                    record = _without_paths(record)
                entry = tarfile.TarInfo(f"{folder.name}/{name}")
                entry.size = len(record)
                tar.addfile(entry, io.BytesIO(record))
    write_atomic(archive, content.getvalue())
    return len(finished)


def _without_paths(content: bytes) -> bytes:
    trial = json.loads(content)
    provenance = trial.get("provenance", {})
    trial["provenance"] = {name: None if name in PATHS else value for name, value in provenance.items()}
    return json.dumps(trial, indent=1, sort_keys=True).encode() + b"\n"


if __name__ == "__main__":
    print(f"{pack(Path(sys.argv[1]), Path(sys.argv[2]))} runs")
