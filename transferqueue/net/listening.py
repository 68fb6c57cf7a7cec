"""Whether anybody listens at an endpoint: the kernel knows, also when the process stands still."""

from __future__ import annotations

import socket

TIMEOUT_S = 1.0

_IPC, _TCP = "ipc://", "tcp://"


def is_listening(endpoint: str) -> bool:
    """False: no process does, or the host says that none does. True also when it is not known."""
    try:
        _connect(endpoint)
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:
        return True
    return True


def _connect(endpoint: str) -> None:
    if endpoint.startswith(_IPC):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(TIMEOUT_S)
            probe.connect(endpoint[len(_IPC) :])
    elif endpoint.startswith(_TCP):
        host, _, port = endpoint[len(_TCP) :].rpartition(":")
        with socket.create_connection((host, int(port)), TIMEOUT_S):
            pass
