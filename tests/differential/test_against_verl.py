"""``DataProto`` does what verl 0.9.1's does, operation by operation, on random batches.

verl pins tensordict 0.10 and brings Ray and transformers, so it lives in a virtual environment of
its own: ``tests/differential/make_venv.sh`` makes it, ``$TQ_VERL_VENV`` says where. Without it this
is skipped; with ``$TQ_VERL_REQUIRED=1`` (as CI sets) it fails.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LIMIT_S = 1200
OPTIONS = ["-q", "--no-header", "--import-mode=importlib", "-p", "no:cacheprovider", "-W", "ignore"]


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
def test_ours_and_verl_agree_but_for_the_listed_corrections() -> None:
    checks = sorted((HERE / "against_verl").glob("*checks.py"))
    # None of the repository's pytest settings: their plugins are not in that environment.
    alone = ["-c", os.devnull, f"--rootdir={HERE}", f"--confcutdir={HERE}"]
    done = subprocess.run(
        [str(verl_python()), "-m", "pytest", *map(str, checks), *alone, *OPTIONS],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{HERE}"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-4_000:]
