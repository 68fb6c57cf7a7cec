"""`examples.dispatch_modes`, in a short form, as a user runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SHORT = ["--rows", "32", "--prompt", "16", "--response", "128", "--steps", "2"]
LIMIT_S = 400
VERL_VENV = Path(os.environ.get("TQ_VERL_VENV", ROOT / ".venv-verl"))


def run(python: str, *options: str) -> dict[str, list[float]]:
    """The rows of its table: mode -> numbers."""
    done = subprocess.run(
        [python, "-m", "examples.dispatch_modes", *SHORT, *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert "StageWorker.compute_log_prob" in done.stdout, "who read and wrote which field"
    rows = [line.split("│")[1:-1] for line in done.stdout.splitlines() if line.startswith("│")]
    return {name.strip(): list(map(number, numbers)) for name, *numbers in rows}


def number(cell: str) -> float:
    return float(re.sub(r"[^\d.+-]", "", cell))


THROUGH_CONTROLLER = 3
"""Column of the table."""


def test_it_prints_every_mode_and_draws_them(tmp_path: Path) -> None:
    picture = tmp_path / "modes.png"
    rows = run(sys.executable, "--out", str(picture))
    assert list(rows) == ["HANDLE", "DP_COMPUTE_PROTO"]
    assert rows["HANDLE"][THROUGH_CONTROLLER] < rows["DP_COMPUTE_PROTO"][THROUGH_CONTROLLER] / 20
    assert all(value > 0 for value in rows["HANDLE"][:3])
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000


@pytest.mark.skipif(not (VERL_VENV / ".ready").exists(), reason="no environment with verl")
def test_verls_own_mode_is_beside_them_where_verl_is() -> None:
    rows = run(str(VERL_VENV / "bin" / "python"))
    assert list(rows) == ["HANDLE", "DP_COMPUTE_PROTO", "verl's own"]
    assert rows["HANDLE"][THROUGH_CONTROLLER] < rows["verl's own"][THROUGH_CONTROLLER] / 20
