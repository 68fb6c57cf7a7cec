"""The program of a client in a process of its own, for `transport_probe.OtherProcess`."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from typing import TYPE_CHECKING, Any

from transferqueue.errors import TransportFailed

if TYPE_CHECKING:
    from types import ModuleType

    from transferqueue.transports.base import WindowTransport

TIMEOUT_S = 5.0


def _module(settings: dict[str, Any]) -> ModuleType:
    if settings["module"] != "__main__":
        return importlib.import_module(settings["module"])
    spec = importlib.util.spec_from_file_location("own_transport_module", settings["file"])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> int:
    """0 when a move was refused that came after others, as it should be at some time."""
    settings = json.loads(sys.stdin.buffer.readline())
    transport: type[WindowTransport] = getattr(_module(settings), settings["class"])
    ticket = bytes.fromhex(settings["ticket"])
    memory = memoryview(bytearray(b"\xff" * settings["nbytes"]))
    with transport.open_client_end(settings["facts"]) as client:
        move = client.write if settings["writes"] else client.read
        is_first = True
        while True:
            try:
                move(ticket, 0, memory, timeout_s=TIMEOUT_S)
            except TransportFailed:
                return int(is_first)
            if is_first:
                sys.stdout.write("moving\n")
                sys.stdout.flush()
                is_first = False


if __name__ == "__main__":
    sys.exit(main())
