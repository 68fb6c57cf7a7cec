"""Numbers of a command line of which there is at least one."""

from __future__ import annotations

import argparse


def at_least_one(text: str) -> int:
    """For ``add_argument(type=…)``."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number
