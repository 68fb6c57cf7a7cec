"""Whether uneven batches may be dispatched: by a key of their ``meta_info``, else by process."""

from __future__ import annotations

import os
from typing import ClassVar

from transferqueue.errors import BatchInconsistent

ENV_AUTO_PADDING = "VERL_AUTO_PADDING"
"""verl's own name, so that one setting moves both."""


class _AutoPadding(type):
    """Makes ``DataProtoConfig.auto_padding`` a checked property of the class itself."""

    auto_padding_key: ClassVar[str] = "_verl_auto_padding"
    """The ``meta_info`` key by which one batch allows it; verl's name, to exchange batches."""

    _enabled: bool = False

    @property
    def auto_padding(cls) -> bool:
        """Set in code, or by ``$VERL_AUTO_PADDING`` in ``{true, 1}``."""
        return cls._enabled or os.environ.get(ENV_AUTO_PADDING, "").upper() in {"TRUE", "1"}

    @auto_padding.setter
    def auto_padding(cls, enabled: bool) -> None:
        if not isinstance(enabled, bool):
            raise BatchInconsistent(f"auto_padding must be a bool, got {enabled!r}")
        cls._enabled = enabled


class DataProtoConfig(metaclass=_AutoPadding):
    """Process-wide switch: ``DataProtoConfig.auto_padding = True``."""
