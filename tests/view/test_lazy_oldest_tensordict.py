"""Views work on the oldest tensordict that is promised, as they do on the newest.

The environment that holds verl has it; see ``tests/differential``.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.differential.test_against_verl import OPTIONS, verl_python

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FILES = ("batch", "view", "pickle", "padded", "derived")

PYTEST = f"""
import sys, types
import pytest
sys.modules["tests"] = tests = types.ModuleType("tests")
tests.__path__ = [{str(ROOT / "tests")!r}]
sys.exit(pytest.main(sys.argv[1:]))
"""
"""A package of that environment is called ``tests`` too, and would be found first."""


@pytest.mark.slow
def test_views_pass_their_tests_on_tensordict_0_10() -> None:
    files = [str(HERE / f"test_lazy_{name}.py") for name in FILES]
    alone = ["-c", os.devnull, f"--rootdir={HERE}", "--noconftest"]
    done = subprocess.run(
        [str(verl_python()), "-c", PYTEST, *files, *alone, *OPTIONS],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-4_000:]
