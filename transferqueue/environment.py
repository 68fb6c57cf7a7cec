"""What environment variables say. They are read in this file and nowhere else."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

ADDRESS_VARIABLE = "TRANSFERQUEUE_ADDRESS"
KEY_FILE_VARIABLE = "TRANSFERQUEUE_KEY_FILE"
RUNTIME_DIR_VARIABLE = "TRANSFERQUEUE_RUNTIME_DIR"
ARENA_DIR_VARIABLE = "TRANSFERQUEUE_ARENA_DIR"


def address_from_environment() -> str | None:
    """The service address in ``$TRANSFERQUEUE_ADDRESS``, if set."""
    return os.environ.get(ADDRESS_VARIABLE) or None


def key_file_from_environment() -> Path | None:
    """The client key file in ``$TRANSFERQUEUE_KEY_FILE``, if set."""
    value = os.environ.get(KEY_FILE_VARIABLE)
    return Path(value) if value else None


def runtime_root() -> Path:
    """The folder that holds one 0700 folder a running service of this user."""
    configured = os.environ.get(RUNTIME_DIR_VARIABLE)
    if configured:
        return Path(configured)
    return Path(tempfile.gettempdir()) / f"transferqueue-{os.getuid()}"


def default_arena_dir() -> str:
    """``$TRANSFERQUEUE_ARENA_DIR``, else ``/dev/shm``."""
    return os.environ.get(ARENA_DIR_VARIABLE) or "/dev/shm"
