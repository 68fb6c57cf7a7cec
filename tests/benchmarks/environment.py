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
VERL_VENV_VARIABLE = "TQ_VERL_VENV"
MAKE_VERL = REPOSITORY / "tests" / "differential" / "make_venv.sh"
INSTALL_TIMEOUT_S = 1800.0


class Environments:
    """The Python of each `Home`. ``say``: told of what takes long."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._made: dict[str, str | NotRun] = {"ours": sys.executable}

    def python(self, home: Home) -> str:
        """NotRun when the environment could not be made; tried once a run."""
        if home not in self._made:
            make = _peers_python if home == "peers" else _verl_python
            try:
                self._made[home] = make(self._say)
            except NotRun as error:
                self._made[home] = error
        made = self._made[home]
        if isinstance(made, NotRun):
            raise made
        return made


def venv_path() -> Path:
    """``$TQ_BENCH_VENV``, or ``.venv-bench`` in the repository."""
    configured = os.environ.get(VENV_VARIABLE)
    return Path(configured) if configured else REPOSITORY / ".venv-bench"


def _verl_python(say: Callable[[str], None]) -> str:
    configured = os.environ.get(VERL_VENV_VARIABLE)
    path = Path(configured) if configured else REPOSITORY / ".venv-verl"
    if not (path / ".ready").exists():
        say(f"installing verl into {path} (once; minutes) ...")
    environment = {**os.environ, VERL_VENV_VARIABLE: str(path), "PYTHON": sys.executable}
    try:
        subprocess.run(
            ["bash", str(MAKE_VERL)],
            check=True,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NotRun(f"no environment for verl: {error}") from None
    return str(path / "bin" / "python")


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
