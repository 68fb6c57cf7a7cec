"""Tables for notebooks. Everything that is shown is escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def described_html(text: str) -> str:
    """A batch in words, as `view.description` has it: its sections become tables."""
    title, *lines = text.splitlines()
    tables, section, rows = [f"<b>{escape(title)}</b>"], "", list[tuple[str, str]]()
    for line in [*lines, ""]:
        if line.startswith("  "):
            name, _, value = line.strip().partition(": ")
            rows.append((name, value))
            continue
        if rows:
            tables.append(table_html(section, ["column", "holds"], rows))
        section, rows = line, []
    return "".join(tables)


def table_html(caption: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A plain table; a notebook's own style sheet does the rest, light or dark."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(value))}</td>" for value in row) + "</tr>"
        for row in rows
    )
    title = f'<caption style="text-align:left">{escape(caption)}</caption>'
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
