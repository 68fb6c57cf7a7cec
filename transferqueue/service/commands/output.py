"""What all commands print with: JSON, tables that are plain when nobody watches, numbers."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from transferqueue.service.commands.exits import EPILOG

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console
    from rich.table import Table

PIPED_WIDTH = 200
"""Of a table that goes into a file or a pipe: a row is to stay a line."""

MIB = 1 << 20

json_option = click.option("--json", "as_json", is_flag=True, help="The same as JSON.")


def json_epilog(keys: Mapping[str, str]) -> str:
    """What stands below the options of a command with ``--json``: its keys, and how it exits."""
    listed = "\n\n".join(f"{key}: {meaning}" for key, meaning in keys.items())
    return f"JSON keys:\n\n{listed}\n\n{EPILOG}"


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def console() -> Console:
    """As wide as the terminal, or ``$COLUMNS``; without colour where there is none."""
    from rich.console import Console

    is_wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=PIPED_WIDTH if is_wide else None, highlight=False, soft_wrap=False)


def table(
    *heads: str, rows: Iterable[Sequence[object]] = (), title: str = "", right: Sequence[str] = ()
) -> Table:
    """Columns without lines. ``right``: heads of columns of numbers."""
    from rich.table import Table
    from rich.text import Text

    made = Table(
        box=None,
        padding=(0, 2, 0, 0),
        title=title or None,
        title_justify="left",
        title_style="bold",
        header_style="bold",
    )
    for head in heads:
        made.add_column(head, justify="right" if head in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(str(cell)) for cell in row))
    return made


def mib(num_bytes: float) -> str:
    """Bytes as MiB."""
    return f"{num_bytes / MIB:,.1f}"


def span(seconds: float) -> str:
    """A span of time, to two places: ``4.2 s``, ``3 min 10 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def who(client: str) -> str:
    """A client's name without the part that only tells it from another of its process."""
    return client.partition("/")[0] if ":" in client.partition("/")[0] else client


def silent(slots: Sequence[int], what: str) -> str:
    """A line on shards that have not answered; ``what`` is therefore not known."""
    shards = ", ".join(map(str, slots))
    return f"[yellow]no answer from shard {shards}: {what}[/yellow]"


def left_out(num: int, what: str) -> str:
    """What to say of those that a limit left out; "" for none."""
    return f"and {num:,} more {what} (--limit)" if num else ""
