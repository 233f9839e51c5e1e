"""Take the screenshots of the report and the board in docs/images, from a small sweep that is trained here.

    python docs/screenshots.py

It needs Chromium and Playwright. The sweep is kept in build/screenshots, so that a second call only takes pictures.
"""

import contextlib
import os
import shutil
import threading
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from pogm._system.files import lock_folder
from pogm.benchmark.results.records import read_runs
from pogm.cli import main
from pogm.report.board import Board
from pogm.report.runs import write_report
from pogm.report.serve import open_server

ROOT = Path(__file__).parents[1]
RUNS, IMAGES = ROOT / "build/screenshots/sweep", ROOT / "docs/images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SWEEP = (
    "sweep --algorithms ERM Fish Fishr POGM --datasets RotatedDigits --configurations 1 --trials 3 --steps 201 "
    "--evaluate-every 20 --device cpu --workers 1"
)
MOST_BYTES = 300_000


def take(browser: Browser, address: str, name: str, width: int, height: int, scheme: str = "light") -> None:
    """Open a page and write the top of it as a PNG file."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(address)
    page.wait_for_timeout(1500)  # charts are drawn
    path = IMAGES / f"{name}.png"
    page.screenshot(path=path)
    context.close()
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"Expected at most {MOST_BYTES} bytes; found {size} in {path}. Take a smaller picture.")


def take_board(browser: Browser) -> None:
    """Show a copy of the sweep in which some runs are in progress or waiting."""
    (RUNS.parent / "running").mkdir(exist_ok=True)
    os.chdir(RUNS.parent / "running")  # the title of the board is its folder
    folder = Path(RUNS.name)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(RUNS, folder)
    last = [run.folder for run in read_runs(folder) if run.trial_seed == 2]
    for run in last[3:]:
        shutil.rmtree(run)
    with contextlib.ExitStack() as locked, open_server(Board(folder).page, 0) as server:
        for run in last[:3]:
            (run / "done").unlink()
            locked.enter_context(lock_folder(run))
        server_thread = threading.Thread(target=server.serve_forever)
        server_thread.start()
        try:
            take(browser, server.address, "board", 1280, 890)
        finally:
            server.shutdown()
            server_thread.join()


if __name__ == "__main__":
    code = main([*SWEEP.split(), "--out", str(RUNS)])
    if code:
        raise SystemExit(code)
    report = write_report(read_runs(RUNS), RUNS, command="pogm report runs/sweep").as_uri()
    with sync_playwright() as driver:
        program = next(filter(None, map(shutil.which, BROWSERS)), None)
        opened = driver.chromium.launch(executable_path=program, args=["--headless", "--no-sandbox", "--disable-gpu"])
        take(opened, report, "report", 1280, 1100)
        take(opened, report, "report_dark", 1280, 1100, "dark")
        take(opened, report, "report_phone", 390, 806)
        take_board(opened)
        opened.close()
