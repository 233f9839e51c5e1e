"""Run examples/table.py."""

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "table.py"


def test_example_trains_and_predicts_what_is_in_the_table(tmp_path, capsys):
    found = runpy.run_path(str(EXAMPLE))["run"](tmp_path)
    assert found["patient 0"] < 0.2
    assert found["patient 1"] > 0.8
    assert "Expected accuracy at a new site" in capsys.readouterr().out
