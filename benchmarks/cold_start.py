"""Seconds until a ResNet-50 trains on a GPU: imports, data and set-up, first step (96 images, bf16, compiled).

python benchmarks/cold_start.py [--repeats 2] [--processes 3] [--out cold_start_h200.json]

In each repeat the cache of the compiler is empty for the first process; the others find the code of the first one. Data
are noise in the shape of PACS. A step is timed until the device has finished it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STARTED = "POGM_BENCHMARK_STARTED"  # environment variable with the time at which the process was started


def run_child() -> None:
    """Print the seconds of each phase of this process as JSON."""
    seconds, last = {}, float(os.environ[STARTED])

    def end_phase(name: str) -> None:
        nonlocal last
        now = time.time()
        seconds[name], last = round(now - last, 2), now

    import torch

    end_phase("import torch")
    from rows.pacs import photographs
    from rows.run import Size, algorithm

    from pogm.engine.engine import Engine
    from pogm.engine.session import Session

    end_phase("import pogm")
    task = photographs(algorithm("ERM"), Size(), "bf16")
    session = Session([task], Engine(device="cuda", compile="on"))
    torch.cuda.synchronize()
    end_phase("set-up")
    for name in ("first step", "second step"):
        session.step()
        torch.cuda.synchronize()
        end_phase(name)
    facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(json.dumps({"facts": facts, "seconds": seconds}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_child()
        return
    rows = []
    for repeat in range(options.repeats):
        with tempfile.TemporaryDirectory(prefix="pogm-cold-", ignore_cleanup_errors=True) as cache:
            for number in range(options.processes):
                variables = {"TORCHINDUCTOR_CACHE_DIR": cache, STARTED: str(time.time())}
                command = [sys.executable, __file__, "--child"]
                said = subprocess.run(command, env=os.environ | variables, stdout=subprocess.PIPE, check=True).stdout
                found = json.loads(said.splitlines()[-1])
                rows.append({"repeat": repeat, "process": number + 1, **found["seconds"]})
                print(rows[-1], flush=True)
    if options.out:
        options.out.write_text(json.dumps({**found["facts"], "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
