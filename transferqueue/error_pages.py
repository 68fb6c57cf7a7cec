"""The entries of each ``ERRORS.md``: what each error means, its usual causes, and what to run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

from transferqueue.errors import PAGES, TransferQueueError, near_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ENTRY = re.compile(r"^### (?P<name>\w+)\n(?P<text>.*?)(?=^#{2,3} |\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Of one class."""

    cls: type[TransferQueueError]
    page: str
    text: str


class ErrorPages:
    """Every entry by the name of its class, in the order of the pages."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = dict(entries)

    @classmethod
    def read(cls) -> Self:
        """Those of this version, from the packages themselves, of those that are installed."""
        return cls({entry.cls.__name__: entry for module in PAGES for entry in _entries_of(module)})

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    def find(self, name: str) -> str | None:
        """The name as it is written, whatever case it was asked in."""
        lowered = {known.lower(): known for known in self._entries}
        return lowered.get(name.rpartition(".")[2].lower())

    def near(self, name: str) -> list[str]:
        return near_names(name, self._entries)

    def entry(self, name: str) -> dict[str, Any]:
        """What `transferqueue explain --json` prints."""
        entry = self._entries[name]
        bases = [base for base in entry.cls.__bases__ if issubclass(base, TransferQueueError)]
        return {
            "error": name,
            "kind_of": bases[0].__name__ if bases else None,
            "page": f"{entry.page}#{name.lower()}",
            "text": f"{name}\n\n{entry.text}",
        }


def _entries_of(module: str) -> Iterator[Entry]:
    """Nothing where the package is not installed, or is somebody else's of the same name."""
    package = module.partition(".")[0]
    if find_spec(package) is None or not (page := files(package) / "ERRORS.md").is_file():
        return
    classes = vars(import_module(module))
    for match in _ENTRY.finditer(page.read_text(encoding="utf-8")):
        yield Entry(
            cls=classes[match["name"]], page=PAGES[module], text=match["text"].strip() + "\n"
        )
