"""The first part of ``make soak``: random kills and failing system calls of a sweep."""

import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parents[1] / "benchmarks" / "soak.py"


def test_a_sweep_with_kills_and_faults_has_the_results_of_a_clean_one(tmp_path):
    words = ["--out", tmp_path / "soak", "--kills", "3", "--faults", "2", "--algorithms", "ERM"]
    found = subprocess.run([sys.executable, SOAK, *words], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "kills, " in found.stdout
    assert "the same results" in found.stdout
