"""Content of the board for folders of runs."""

import re
import shutil
from html.parser import HTMLParser

import pytest
from run_folders import record, write_run, write_sweep

from pogm._system.files import lock_folder
from pogm.benchmark.results.record_file import append_record
from pogm.report.board import Board

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">'


class Tags(HTMLParser):
    """The elements of a page and its text."""

    def __init__(self, page):
        super().__init__()
        self.found, self.text = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def at(step, value=0.5, **more):
    return record(step, [value] * 3, [value] * 3, **more)


def text(board):
    return Tags(board.page()).text


def test_a_board_of_an_empty_folder_says_so_and_shows_new_runs(tmp_path):
    board = Board(tmp_path)
    assert "There are no runs yet." in text(board)
    write_run(tmp_path, [at(0)])
    assert "All runs that have started are done." in text(board)


def test_board_shows_counts_progress_and_time_left(tmp_path):
    write_run(tmp_path, [at(299)])
    running = write_run(tmp_path, [at(149, seconds_per_step=1.0)], trial_seed=1, done=False)
    write_run(tmp_path, [], trial_seed=2, done=False, failure="Traceback\n" + "\n".join(f"line {i}" for i in range(20)))
    board = Board(tmp_path)
    with lock_folder(running):
        page = board.page()
    content = Tags(page).text
    assert "75% of the started runs is done, about 2.5 min left." in content
    assert re.findall(r"(\d+) (done|running|interrupted|failed|waiting)", content)[:5] == [
        *[("1", "done"), ("1", "running"), ("0", "interrupted"), ("1", "failed"), ("0", "waiting")]
    ]
    assert "149 of 299" in content
    assert "line 19" in content
    assert "line 14" in content
    assert "line 13" not in content
    assert "75% of the started runs is done. Nothing is running." in text(board)


def test_curves_of_unfinished_runs_grow(tmp_path):
    folder = write_run(tmp_path, [at(0, 0.1), at(30, 0.2)], done=False)
    board = Board(tmp_path)
    assert '"x":30.0,"y":20.0}' in board.page()
    with lock_folder(folder):
        append_record(folder / "records.jsonl", at(60, 0.75))
        page = board.page()
    assert page.count('"x":60.0,"y":75.0}') == 2  # in the chart of running runs and in that of the algorithm
    assert "of finished runs" not in page
    assert "of runs with the first configuration of an algorithm, finished or not" in page


def test_held_out_domain_of_a_running_run_is_shown_by_its_name(tmp_path):
    folder = write_run(tmp_path, [at(0), at(30)], domains=("60", "75", "90"), test_domains=(1,), done=False)
    with lock_folder(folder):
        content = text(Board(tmp_path))
    assert "Toy, held out: 75" in content
    assert "7, 5" not in content


def test_tables_have_finished_runs_only(tmp_path):
    write_sweep(tmp_path, ("ERM", "POGM"), dataset="Digits", domains=("a", "b", "c"), seeds=2)
    write_run(
        tmp_path, [at(0, 0.987)], dataset="Digits", domains=("a", "b", "c"), label="ERM", trial_seed=7, done=False
    )
    page = Tags(Board(tmp_path).page())
    assert "Training-domain validation" in page.text
    assert "98.7 ±" not in page.text
    assert [attrs["id"] for tag, attrs in page.found if tag == "section"] == ["progress", "digits"]


def test_board_starts_with_the_sentence_and_the_figure_of_the_main_finding(tmp_path):
    write_sweep(tmp_path, ("ERM", "POGM"), dataset="Digits", domains=("a", "b", "c"), seeds=2)
    board = Board(tmp_path)
    page = board.page()
    lead = page[: page.index('id="progress"')]
    assert "has the highest mean accuracy on unseen domains of Digits" in lead
    assert "Mean on unseen domains" in lead
    assert "Difference to ERM, paired" in lead
    write_run(tmp_path, [at(0)], dataset="Digits", domains=("a", "b", "c"), trial_seed=7, done=False)
    assert "Preliminary" in text(board)


def test_a_page_is_rendered_again_only_if_a_file_changed(tmp_path):
    folder = write_run(tmp_path, [at(0)], done=False)
    board = Board(tmp_path)
    first = board.page()
    assert board.page() is first
    with lock_folder(folder):
        assert board.page() is not first
    (folder / "done").write_text("done\n")
    assert "All runs that have started are done." in text(board)


def test_runs_with_different_domains_are_an_error_on_the_page(tmp_path):
    write_run(tmp_path, [at(0)])
    write_run(tmp_path, [at(0)], domains=("A", "B", "D"), trial_seed=1)
    write_run(tmp_path, [at(0)], dataset="Other")
    content = text(Board(tmp_path))
    assert "Expected runs that agree on the domains of a dataset" in content
    assert "All runs that have started are done." in content


@pytest.mark.parametrize("state", ["done", "running", "failed"])
def test_names_do_not_become_markup(tmp_path, state):
    folder = write_run(
        tmp_path / HOSTILE.replace("/", "_"),
        [at(0)],
        label=HOSTILE,
        dataset=HOSTILE,
        domains=(HOSTILE, "b", "c"),
        done=state == "done",
        failure=HOSTILE if state == "failed" else None,
    )
    board = Board(folder.parent)
    if state == "running":
        with lock_folder(folder):
            page = board.page()
    else:
        page = board.page()
    tags = Tags(page)
    assert "img" not in {tag for tag, _ in tags.found}
    assert all("onerror" not in attrs for _, attrs in tags.found)
    assert sum(tag == "script" and "type" not in attrs for tag, attrs in tags.found) == 1, "the script of the page"
    assert "alert(1)" in tags.text


def without_time(page):
    return re.sub(r"[\d-]+ [\d:]+ UTC", "", page)


def test_page_after_changes_is_that_of_a_new_board(tmp_path):
    """A board keeps what a change does not affect. Its page must be the one that a board makes that keeps nothing."""
    root = tmp_path / "runs"
    write_sweep(root, ("ERM", "POGM"), seeds=2, domains=("0", "15", "30"))
    write_sweep(root, ("Fish",), seeds=1, dataset="Other", domains=("A", "B"))
    first, second, third, *_ = sorted(path for path in root.iterdir() if path.is_dir())
    done = (first / "done").read_bytes()
    (first / "done").unlink()

    def add_label():
        write_run(root, [at(0)], label="AAA", dataset="Other", domains=("A", "B"), test_domains=[1])

    changes = {
        "a record": lambda: append_record(first / "records.jsonl", at(400, 0.9)),
        "done": lambda: (first / "done").write_bytes(done),
        "failed": lambda: ((second / "done").unlink(), (second / "failed.json").write_text('{"error": "no memory"}')),
        "a copy": lambda: shutil.copytree(third, root / "copy"),
        "no copy": lambda: shutil.rmtree(root / "copy"),
        "a run of a new algorithm": add_label,
        "a removed run": lambda: shutil.rmtree(third),
        "a damaged run": lambda: (second / "trial.json").write_text("{"),
        "altered records": lambda: write_run(root, [at(0)], label="POGM", trial_seed=9, domains=("0", "15", "X")),
    }
    board = Board(root)
    board.page()
    for name, change in changes.items():
        before = without_time(board.page())
        change()
        page = without_time(board.page())
        assert page != before or name in ("a copy", "no copy"), name
        assert page == without_time(Board(root).page()), name
