"""Tables for notebooks. Everything that is shown is escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def table_html(caption: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A plain table; a notebook's own style sheet does the rest, light or dark."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(value))}</td>" for value in row) + "</tr>"
        for row in rows
    )
    title = f'<caption style="text-align:left">{escape(caption)}</caption>'
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
