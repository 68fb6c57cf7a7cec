"""Where the peers live: a virtual environment of their own, made when it is first asked for."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.actor_process import REPOSITORY, NotRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.benchmarks.systems import Home

VENV_VARIABLE = "TQ_BENCH_VENV"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
INSTALL_TIMEOUT_S = 1800.0


class Environments:
    """The Python of each `Home`. ``say``: told of what takes long."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._peers: str | NotRun | None = None

    def python(self, home: Home) -> str:
        """NotRun when the peers' environment could not be made; tried once a run."""
        if home == "ours":
            return sys.executable
        if self._peers is None:
            try:
                self._peers = _peers_python(self._say)
            except NotRun as error:
                self._peers = error
        if isinstance(self._peers, NotRun):
            raise self._peers
        return self._peers


def venv_path() -> Path:
    """``$TQ_BENCH_VENV``, or ``.venv-bench`` in the repository."""
    configured = os.environ.get(VENV_VARIABLE)
    return Path(configured) if configured else REPOSITORY / ".venv-bench"


def _peers_python(say: Callable[[str], None]) -> str:
    path = venv_path()
    python = path / "bin" / "python"
    stamp = path / "requirements.sha256"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return str(python)
    say(f"installing the peers into {path} (once; minutes) ...")
    try:
        if not python.exists():
            venv.create(path, with_pip=True, symlinks=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "--requirement", str(REQUIREMENTS)],
            check=True,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
        )
    except subprocess.CalledProcessError as error:
        lines = [line for line in str(error.stderr).splitlines() if line.startswith("ERROR")]
        raise NotRun(f"pip could not install the peers: {' '.join(lines)[:200]}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise NotRun(f"no environment for the peers: {error}") from None
    stamp.write_text(wanted)
    return str(python)
