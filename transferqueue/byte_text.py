"""Numbers of bytes as a person reads them."""

from __future__ import annotations


def size(num_bytes: float) -> str:
    """Bytes in the unit that suits them: ``512 B``, ``1.5 KiB``, ``20.0 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:,.0f} {unit}" if unit == "B" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} TiB"
