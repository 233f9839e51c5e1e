"""``pogm board`` during a real sweep, over HTTP and in a real browser."""

import os
import re
import signal
import threading
from urllib.request import urlopen

import pytest
from processes import pogm, start, until
from run_folders import record, write_run

from pogm._system.files import lock_folder
from pogm.benchmark.results.record_file import append_record
from pogm.cli import main
from pogm.report import page as page_module
from pogm.report.board import Board
from pogm.report.serve import open_server

SWEEP = ("sweep", "--algorithms", "ERM", "--datasets", "ColoredDigits", "--configurations", 1, "--trials", 1)


def read(address):
    with urlopen(address, timeout=30) as answer:
        return answer.read().decode()


def counts(text):
    """Return the numbers of runs by state that the page shows."""
    listed = text.partition('<ul class="states">')[2].partition("</ul>")[0]
    return {state: int(count) for count, state in re.findall(r"(\d+) (\w+)</li>", listed)}


@pytest.fixture
def board(tmp_path):
    """Start a board of a new folder in its own process; return the process and its address."""
    (tmp_path / "sweep").mkdir()
    started = start("board", tmp_path / "sweep", "--port", 0)
    said = started.said / "err"
    until(lambda: said.exists() and "http://" in said.read_text())
    yield started, re.search(r"http://127\.0\.0\.1:\d+/", said.read_text())[0]
    if not started.process._closed:
        started.process.kill()


def test_board_shows_a_sweep_from_first_to_last_run_and_ctrl_c_ends_only_the_board(tmp_path, board):
    started, address = board
    assert "There are no runs yet." in read(address)
    words = ("--steps", 401, "--evaluate-every", 20, "--device", "cpu", "--workers", 1, "--out", tmp_path / "sweep")
    sweep = start(*SWEEP, *words)
    seen = []
    until(lambda: seen.append(read(address)) or counts(seen[-1])["running"] == 1)
    assert counts(seen[-1])["waiting"] + counts(seen[-1])["done"] == 2
    assert sweep.wait().code == 0, "the board must not disturb it"
    last = read(address)
    assert counts(last) == {"done": 3, "running": 0, "interrupted": 0, "failed": 0, "waiting": 0}
    assert "All runs are done." in last
    assert "Training-domain validation" in last
    os.kill(started.process.pid, signal.SIGINT)
    end = started.wait()
    assert (end.code, end.out) == (0, "")
    assert "The board is closed; the runs continue." in end.err


def test_errors_are_one_paragraph(tmp_path, capsys):
    assert main(["board", str(tmp_path / "absent")]) == 3
    assert "found nothing at" in capsys.readouterr().err
    with open_server(lambda: "", 0) as taken:
        end = pogm("board", tmp_path, "--port", taken.server_port)
    assert end.code == 2
    assert "Expected a free port" in end.err
    assert "Traceback" not in end.err


def at(step):
    return record(step, [step / 400] * 3, [step / 300] * 3, seconds_per_step=0.5)


def test_in_a_browser_curves_grow_and_scroll_position_and_open_parts_stay(tmp_path, browser, monkeypatch):
    monkeypatch.setattr(page_module, "SECONDS", 0.2)
    for seed in range(3):
        write_run(tmp_path, [at(step) for step in range(0, 300, 30)], trial_seed=seed)
    folder = write_run(tmp_path, [at(0), at(30)], label="POGM", done=False)
    server = open_server(Board(tmp_path).page, 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    page = browser.new_page(viewport={"width": 900, "height": 500})
    page.set_default_timeout(20_000)
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    with lock_folder(folder):
        page.goto(server.address)
        page.locator("summary").first.click()
        line = page.locator("#running .mark-line.role-mark path")
        before = line.get_attribute("d")
        page.locator("#toy .panel").first.scroll_into_view_if_needed()
        page.locator("#toy .chart").first.focus()
        page.keyboard.press("+")
        page.locator("#toy").get_by_text("Reset zoom").first.wait_for()
        page.evaluate("document.querySelector('#toy').scrollIntoView()")
        position = page.evaluate("scrollY")
        assert position > 0
        append_record(folder / "records.jsonl", at(60))
        page.wait_for_function(
            "d => document.querySelector('#running .mark-line.role-mark path').getAttribute('d') !== d", arg=before
        )
        assert line.get_attribute("d").count(",") == before.count(",") + 1
        assert "60 of 299" in page.locator("#running").inner_text()
        assert page.evaluate("scrollY") == position
        assert page.locator("details").first.get_attribute("open") is not None
        assert page.locator("#toy").get_by_text("Reset zoom").first.is_visible()
    (folder / "done").write_text("done\n")
    page.wait_for_function("() => document.body.innerText.includes('All runs that have started are done.')")
    assert said == []
    server.shutdown()
    server.server_close()
    page.wait_for_function("() => getComputedStyle(document.body, '::before').content.includes('has stopped')")
