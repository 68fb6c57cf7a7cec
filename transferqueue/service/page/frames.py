"""What a browser is sent: plain values in, bytes out. The numbers are those of the command line."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from transferqueue.service.rates import snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transferqueue.errors import TransferQueueError


def frame(
    before: Mapping[str, Any], after: Mapping[str, Any], waits: Mapping[str, Any]
) -> dict[str, Any]:
    """All of the page but the picture: ``status`` as `status --json` has it, ``rates`` as `top
    --json`, ``waits`` as `waits --json`."""
    return {
        "status": after,
        "rates": snapshot(before, after, waits),
        "waits": waits,
    }


def failure(error: TransferQueueError) -> dict[str, Any]:
    """Of a service that does not answer; what was shown stays, and is old."""
    return {"error": type(error).__name__, "text": str(error)}


def event(value: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def packed(picture: Mapping[str, Any]) -> bytes:
    """`Client.picture` for a canvas: the length of a JSON head as uint32, the head, and the levels,
    a byte a column, one row after the other as ``fields`` and then ``tasks`` of the head name them.
    """
    tasks = [[task, state] for task, states in picture["tasks"].items() for state in states]
    head = {
        **{key: picture[key] for key in _PLAIN},
        "columns": len(picture["ends"]),
        "ends": picture["ends"].tolist(),
        "fields": list(picture["fields"]),
        "all_tasks": list(picture["tasks"]),
        "tasks": tasks,
    }
    levels = [
        *picture["fields"].values(), *(picture["tasks"][task][state] for task, state in tasks)
    ]  # fmt: skip
    text = json.dumps(head, separators=(",", ":")).encode()
    return b"".join((struct.pack("<I", len(text)), text, *(row.tobytes() for row in levels)))


_PLAIN = (
    "partition", "num_rows", "step", "num_ready", "num_fields_left_out", "newest_version",
    "staleness",
)  # fmt: skip
