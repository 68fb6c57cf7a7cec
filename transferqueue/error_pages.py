"""The entries of ``ERRORS.md``: what each error means, its usual causes, and what to run."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any, Self

from transferqueue import errors
from transferqueue.errors import TransferQueueError, near_names

PAGE = "ERRORS.md"

_ENTRY = re.compile(r"^### (?P<name>\w+)\n(?P<text>.*?)(?=^#{2,3} |\Z)", re.MULTILINE | re.DOTALL)


class ErrorPages:
    """Every entry by the name of its class, in the order of the page."""

    def __init__(self, text: str) -> None:
        self._texts = {
            match["name"]: match["text"].strip() + "\n" for match in _ENTRY.finditer(text)
        }

    @classmethod
    def read(cls) -> Self:
        """Those of this version, from the package itself."""
        return cls((files("transferqueue") / PAGE).read_text(encoding="utf-8"))

    @property
    def names(self) -> list[str]:
        return list(self._texts)

    def find(self, name: str) -> str | None:
        """The name as it is written, whatever case it was asked in."""
        lowered = {known.lower(): known for known in self._texts}
        return lowered.get(name.rpartition(".")[2].lower())

    def near(self, name: str) -> list[str]:
        return near_names(name, self._texts)

    def entry(self, name: str) -> dict[str, Any]:
        """What `transferqueue explain --json` prints."""
        cls = getattr(errors, name)
        bases = [base for base in cls.__bases__ if issubclass(base, TransferQueueError)]
        return {
            "error": name,
            "kind_of": bases[0].__name__ if bases else None,
            "page": f"transferqueue/{PAGE}#{name.lower()}",
            "text": f"{name}\n\n{self._texts[name]}",
        }
