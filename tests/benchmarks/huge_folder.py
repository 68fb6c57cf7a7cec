"""A folder whose files get huge pages, for as long as a benchmark runs."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def huge_folder(nbytes: int, say: Callable[[str], None]) -> Iterator[str | None]:
    """A tmpfs of ``nbytes`` mounted with ``huge=within_size``; ``None`` where that may not be."""
    with tempfile.TemporaryDirectory(prefix="bench-huge-") as folder:
        options = f"huge=within_size,size={nbytes},mode=0700"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            say(f"  no folder with huge pages: {getattr(error, 'stderr', '') or error}")
            yield None
            return
        try:
            yield folder
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)
