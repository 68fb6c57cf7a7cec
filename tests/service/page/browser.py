"""A browser for tests of the page: the system's Chromium, without a window."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ("chromium", "chromium-browser", "google-chrome")
REQUIRED = "TQ_BROWSER_REQUIRED"


def program() -> str:
    """Where Chromium is. Skips the test where there is none, unless one is required."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        if os.environ.get(REQUIRED):
            pytest.fail(f"${REQUIRED} is set, and there is no {NAMES[0]}")
        pytest.skip(f"no {NAMES[0]} here: apt-get install chromium")
    return found


@contextmanager
def running_browser() -> Iterator[Any]:
    # As root, as in most containers, Chromium does not start with its sandbox. It only sees ours.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program(), args=arguments)
        try:
            yield browser
        finally:
            browser.close()
