"""Writing and reading records and run folders. What cannot be read is skipped with a warning."""

import json
import math
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_folders import record, write_run

from pogm._system.errors import DataError
from pogm._system.terminal import printable
from pogm.benchmark.results.record_file import RecordWarning, accuracy, append_record, mean_score, read_records
from pogm.benchmark.results.records import read_runs


def test_record_is_one_line_of_json_with_sorted_keys(tmp_path):
    path = tmp_path / "records.jsonl"
    append_record(path, {"step": 0, "epoch": 0.5})
    append_record(path, {"step": 30, "epoch": 1.0})
    assert path.read_text() == '{"epoch": 0.5, "step": 0}\n{"epoch": 1.0, "step": 30}\n'


def test_nan_and_infinity_are_written_as_null_at_any_depth(tmp_path):
    path = tmp_path / "records.jsonl"
    append_record(path, {"step": 0, "metrics": {"cosine": (0.5, math.nan), "loss": math.inf}})
    assert read_records(path)[0]["metrics"] == {"cosine": [0.5, None], "loss": None}
    assert "NaN" not in path.read_text()


def test_former_names_of_metrics_are_read_under_their_present_names(tmp_path):
    path = tmp_path / "records.jsonl"
    append_record(
        path, {"step": 0, "metrics": {"angle": [0.5], "loss": 1.0}, "rounds": {"round": [1], "angle": [[0.5]]}}
    )
    append_record(path, {"step": 1, "metrics": {"cosine": [0.25]}, "rounds": {"round": [2], "cosine": [[0.25]]}})
    append_record(path, {"step": 2, "metrics": None})
    old, new, without = read_records(path)
    assert old["metrics"] == {"cosine": [0.5], "loss": 1.0}
    assert old["rounds"] == {"round": [1], "cosine": [[0.5]]}
    assert (new["metrics"], new["rounds"]) == ({"cosine": [0.25]}, {"round": [2], "cosine": [[0.25]]})
    assert without["metrics"] is None


def test_unreadable_lines_are_skipped_with_one_warning_that_counts_them(tmp_path):
    path = tmp_path / "records.jsonl"
    append_record(path, {"step": 0})
    with path.open("ab") as file:
        file.write(b'\xff\xfe\n[1, 2]\n{"epoch": 3}\n{"step": 60, "acc')
    with pytest.warns(RecordWarning, match=r"records\.jsonl: skipped 4 unreadable lines") as caught:
        records = read_records(path)
    assert [record["step"] for record in records] == [0]
    assert len(caught) == 1


def test_record_after_a_half_written_line_is_read(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"step": 0, "acc')
    append_record(path, {"step": 30})
    with pytest.warns(RecordWarning, match="skipped 1 unreadable line"):
        assert [record["step"] for record in read_records(path)] == [30]


def test_last_record_of_a_step_is_read(tmp_path):
    path = tmp_path / "records.jsonl"
    for step, loss in [(0, 1.0), (30, 0.9), (30, 0.8), (0, 0.7)]:
        append_record(path, {"step": step, "loss": loss})
    assert [(record["step"], record["loss"]) for record in read_records(path)] == [(0, 0.7), (30, 0.8)]


def test_record_of_averaged_weights_does_not_replace_the_record_of_its_step(tmp_path):
    path = tmp_path / "records.jsonl"
    for step, more in [(0, {}), (30, {}), (0, {"swad": True}), (60, {}), (30, {"swad": False})]:
        append_record(path, {"step": step} | more)
    assert [(record["step"], record.get("swad")) for record in read_records(path)] == [
        (0, None),
        (30, False),
        (60, None),
        (0, True),
    ]


def test_missing_file_has_no_records(tmp_path):
    assert read_records(tmp_path / "records.jsonl") == ()


def test_nan_of_another_program_is_read_as_null(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text('{"step": 0, "accuracy": {"in": [NaN], "out": [1e999]}}\n')
    (record,) = read_records(path)
    assert math.isnan(accuracy(record, "in", 0))
    assert math.isnan(accuracy(record, "out", 0))
    assert math.isnan(accuracy(record, "out", 5))


@given(st.lists(st.one_of(st.binary(max_size=20), st.integers(0, 5)), max_size=12))
def test_every_complete_record_is_found_among_garbage(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("records") / "records.jsonl"
    with path.open("wb") as file:
        for line in lines:
            text = json.dumps({"step": line}).encode() if isinstance(line, int) else b"#" + line
            file.write(text + b"\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecordWarning)
        found = [record["step"] for record in read_records(path)]
    assert found == sorted({line for line in lines if isinstance(line, int)})


def test_runs_are_found_at_any_depth_and_sorted_by_trial(make_run, tmp_path):
    make_run(label="POGM")
    make_run(label="ERM", trial_seed=1)
    moved = make_run(label="ERM", trial_seed=0)
    (tmp_path / "z" / "deep").mkdir(parents=True)
    moved.rename(tmp_path / "z" / "deep" / "anything")
    runs = read_runs(tmp_path, tmp_path / "z")
    assert [(run.label, run.trial_seed) for run in runs] == [("ERM", 0), ("ERM", 1), ("POGM", 0)]


def test_a_run_without_its_trial_is_left_out_with_a_warning(tmp_path):
    write_run(tmp_path, [record(0, [0.5, 0.5], [0.5, 0.5])])
    (lost := write_run(tmp_path, [record(0, [0.6, 0.6], [0.6, 0.6])], label="POGM") / "trial.json").unlink()
    with pytest.warns(RecordWarning, match=rf"{lost.parent}: run left out \(it has no trial\.json\)"):
        assert [run.label for run in read_runs(tmp_path)] == ["ERM"]


def test_status_of_a_run(make_run, make_record, tmp_path):
    make_run(label="a")
    make_run(label="b", done=False, failure="out of memory")
    make_run(label="c", done=False)
    make_run([make_record(0, [None] * 3, [None] * 3, status="diverged")], label="d", done=False)
    runs = read_runs(tmp_path)
    assert [run.status for run in runs] == ["done", "failed", "unfinished", "diverged"]
    assert runs[1].failure == "out of memory"
    assert (runs[0].dataset, runs[0].test_domains, runs[0].train_domains) == ("Toy", {0}, (1, 2))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"trial": 3}',
        '{"trial": {}}',
        '{"id": "x", "label": "y", "domains": ["A"], "trial": {}}',
    ],
)
def test_unreadable_trial_is_reported_and_the_others_are_read(make_run, tmp_path, text):
    make_run()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "trial.json").write_text(text)
    with pytest.warns(RecordWarning, match=r"broken.trial\.json: run left out"):
        assert len(read_runs(tmp_path)) == 1


def test_held_out_domain_that_does_not_exist_is_reported(make_run, tmp_path):
    make_run(test_domains=[7])
    with pytest.warns(RecordWarning, match="test_domains to be some of 3 domains"):
        assert read_runs(tmp_path) == []


def test_of_two_copies_of_a_run_the_one_with_more_records_is_read(make_run, make_record, tmp_path):
    folder = make_run([make_record(0, [0.1] * 3, [0.1] * 3)])
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "trial.json").write_bytes((folder / "trial.json").read_bytes())
    (run,) = read_runs(tmp_path)
    assert run.folder == folder


def test_missing_folder_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(DataError, match=r"Expected a folder of runs.*Pass the folder"):
        read_runs(tmp_path / "nowhere")


def test_control_characters_in_names_are_escaped():
    assert printable("a\nb\x1b[31m\ud800") == "a\\nb\\x1b[31m\\ud800"
    assert printable("−90 % ü 空") == "−90 % ü 空"


@pytest.mark.parametrize(
    ("r2", "rmse", "mean"),
    [
        ([0.2, 0.4], [1.0, 1.0], 0.3),
        ([None, 0.4], [1.0, 1.0], 0.4),  # equal targets
        ([None, 0.4], [None, 1.0], None),  # not evaluated, or diverged
        ([None, None], [1.0, 1.0], None),
    ],
)
def test_mean_score_leaves_out_domains_without_r2_but_not_failures(r2, rmse, mean):
    found = mean_score({"r2": {"out": r2}, "rmse": {"out": rmse}}, "out", (0, 1))
    assert math.isnan(found) if mean is None else found == pytest.approx(mean)


def test_mean_score_of_a_classifier_needs_every_domain():
    record = {"accuracy": {"out": [0.5, None, 0.7]}}
    assert mean_score(record, "out", (0, 2)) == pytest.approx(0.6)
    assert math.isnan(mean_score(record, "out", (0, 1)))
