"""Seeing that what was opened was closed: descriptors, threads, mappings and files."""

from __future__ import annotations

import gc
import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ARENA_FILES = "transferqueue-"


class Leaked(AssertionError):
    """Something was left open. ``args``: the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What this process holds at one moment."""

    descriptors: frozenset[tuple[int, str]]
    threads: frozenset[str]
    mappings: frozenset[str]
    """Address ranges and files of arenas that are mapped."""
    files: frozenset[str]

    @classmethod
    def now(cls, directory: str | None = None) -> Holdings:
        return cls(
            descriptors=frozenset(_descriptors()),
            threads=frozenset(f"{t.name} {t.ident}" for t in threading.enumerate()),
            mappings=frozenset(_arena_mappings()),
            files=frozenset(os.listdir(directory) if directory is not None else ()),
        )

    def beyond(self, before: Holdings) -> str:
        """What is held now and was not then; empty if nothing."""
        extra = {
            "descriptors": sorted(self.descriptors - before.descriptors),
            "threads": sorted(self.threads - before.threads),
            "mappings": sorted(self.mappings - before.mappings),
            "files": sorted(self.files - before.files),
        }
        return "; ".join(f"{what}: {left}" for what, left in extra.items() if left)


@contextmanager
def no_leaks(directory: str | None = None) -> Iterator[None]:
    """Fail with `Leaked` if the block leaves more open than it found.

    ``directory``: where files may not be left either. Nothing is checked when the block raises.
    """
    before = Holdings.now(directory)
    yield
    left = Holdings.now(directory).beyond(before)
    if left:
        gc.collect()  # what only a cycle still holds is not left behind
        left = Holdings.now(directory).beyond(before)
    if left:
        raise Leaked(f"left behind: {left}")


def _descriptors() -> Iterator[tuple[int, str]]:
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the one that listed the directory
        yield int(name), target


def _arena_mappings() -> Iterator[str]:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if ARENA_FILES in line:
            yield f"{line.split()[0]} {line.split(maxsplit=5)[-1]}"
