"""A real browser for tests; without one, the tests are skipped with a message."""

import shutil

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu")
QUIET = ("--disable-background-networking", "--disable-component-update", "--no-first-run")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"needs a browser: none of {', '.join(BROWSERS)} is installed")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program, args=[*FLAGS, *QUIET])
        yield opened
        opened.close()
