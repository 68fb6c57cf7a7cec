"""The machine that the numbers are of."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def facts() -> dict[str, Any]:
    """What has to stand beside every number: hardware, kernel, versions, and who else is busy."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("torch", "numpy", "tensordict", "pyzmq")},
        "load_average_before": load_average(),
    }


def load_average() -> list[float]:
    """Runnable processes over 1, 5 and 15 minutes."""
    return [round(load, 2) for load in os.getloadavg()]


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
