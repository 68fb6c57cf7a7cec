"""Workers of verl's style inside verl's own ``RayWorkerGroup``, fat and by handle.

Runs where the real verl is: see ``tests/differential/test_against_verl.py`` for that environment.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LIMIT_S = 900


def verl_python() -> Path:
    venv = Path(os.environ.get("TQ_VERL_VENV") or ROOT / ".venv-verl")
    python = venv.resolve() / "bin" / "python"
    if not python.exists():
        message = f"no {python}; make it with tests/differential/make_venv.sh"
        if os.environ.get("TQ_VERL_REQUIRED") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return python


@pytest.mark.slow
def test_a_verl_worker_gives_equal_numbers_fat_and_by_handle() -> None:
    # None of the repository's pytest settings: their plugins are not in that environment.
    alone = ["-c", os.devnull, f"--rootdir={HERE}", f"--confcutdir={HERE}"]
    options = ["-q", "--no-header", "--import-mode=importlib", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [
            *(str(verl_python()), "-W", "ignore", "-m", "pytest", str(HERE / "verl_checks.py")),
            *(*alone, *options, "-W", "ignore"),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{HERE}"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-4_000:]
