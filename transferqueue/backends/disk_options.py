"""What the disk backend can be told."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from transferqueue.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

KEEP_S = 2.0


class Sync(StrEnum):
    """When bytes must be on the device."""

    NEVER = "never"
    """The kernel writes them when it likes. A disk that cannot is noticed at a later read."""
    SEAL = "seal"
    """Before a put is acknowledged: a disk that cannot write fails the put itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskOptions:
    """``backend_options`` of this backend."""

    sync: Sync = Sync.NEVER
    keep_s: float = KEEP_S
    """How long room that was freed stays the file's, for what is put next. 0: not at all."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """`ConfigError` for options that there are not."""
        unknown = set(options) - {"sync", "keep_s"}
        if unknown:
            raise ConfigError(f"backend 'disk' has no options {sorted(unknown)}")
        return cls(
            sync=_sync(options.get("sync", Sync.NEVER)),
            keep_s=_seconds(options.get("keep_s", KEEP_S)),
        )


def _sync(value: object) -> Sync:
    try:
        return Sync(value)  # type: ignore[arg-type]
    except ValueError as error:
        choices = " or ".join(repr(str(choice)) for choice in Sync)
        raise ConfigError(f"sync must be {choices}, got {value!r}") from error


def _seconds(value: object) -> float:
    if isinstance(value, int | float) and 0 <= value < math.inf:
        return float(value)
    raise ConfigError(f"keep_s must be 0 or more seconds, got {value!r}")
