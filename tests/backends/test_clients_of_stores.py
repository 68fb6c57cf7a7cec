"""Backends over the client of another store, whose threads and sockets go when their process does.

So their tests run in a process of their own: what a client leaves behind on purpose, as it does
when its store hangs, is not to be seen by the tests that follow.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LIMIT_S = 300.0


@pytest.mark.slow
@pytest.mark.parametrize("cases", ["mooncake_cases.py", "ray_cases.py"])
def test_all_cases_hold(cases: str) -> None:
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / cases)]
    done = subprocess.run(run, cwd=HERE.parents[1], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
