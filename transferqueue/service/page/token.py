"""The file that holds the page's token."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from transferqueue.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def token_in(path: Path) -> str:
    """The text of the file. A file that is not there is made, for this user alone, with a token
    that nobody guesses. ConfigError for one that others can read."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"others can read {path}: chmod 600 it") from None
        return path.read_text().strip()
    except OSError as error:
        raise ConfigError(f"cannot write a token to {path}: {error}") from None
    token = secrets.token_urlsafe(32)
    with os.fdopen(file, "w") as opened:
        opened.write(f"{token}\n")
    return token
