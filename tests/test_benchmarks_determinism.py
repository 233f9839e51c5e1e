"""The benchmark of determinism: one process with tiny sizes, and the table."""

import sys
from multiprocessing import Pipe
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import determinism
from rows.run import SMALL


def test_process_trains_and_measures_both_modes():
    here, there = Pipe()
    here.send("time")
    here.send(None)
    plan = determinism.Plan("mnist-ERM", "cpu", "off", "fp32", SMALL, 2, 2, determinism.MODES)
    determinism.serve(there, plan)
    proof, took = here.recv(), here.recv()
    assert proof["default"]["digest"] == proof["deterministic"]["digest"], "on a CPU the option changes nothing"
    assert all(len(took[mode]) == 2 and min(took[mode]) > 0 for mode in determinism.MODES)
    other = proof | {"default": proof["default"] | {"digest": "f" * 64}}
    found = determinism.summary([proof, other], took)
    assert found["same"] == {"default": False, "deterministic": True}
    *_, row = determinism.table({plan.case: found})
    assert row.startswith("| mnist-ERM |")
    assert "| no (" in row
    assert "| yes (" in row


def test_failure_is_a_line_of_the_table():
    *_, row = determinism.table({"mnist-ERM": {"failed": "its process died"}})
    assert "failed: its process died" in row
