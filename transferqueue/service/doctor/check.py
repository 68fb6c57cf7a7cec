"""One thing that was looked at, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    """How it is."""

    OK = "ok"
    WARN = "warn"
    """It works, and may be slow or fail later."""
    FAIL = "fail"
    """Something does not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was found."""

    name: str
    health: Health
    found: str
    advice: str = ""
    """What to do, or run; "" where there is nothing to do."""


def ok(name: str, found: str) -> Check:
    return Check(name=name, health=Health.OK, found=found)


def warn(name: str, found: str, advice: str) -> Check:
    return Check(name=name, health=Health.WARN, found=found, advice=advice)


def fail(name: str, found: str, advice: str) -> Check:
    return Check(name=name, health=Health.FAIL, found=found, advice=advice)
