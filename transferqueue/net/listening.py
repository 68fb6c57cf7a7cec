"""Whether anybody listens at an endpoint: the kernel knows, also when the process stands still."""

from __future__ import annotations

import socket
import threading

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


class ListeningProbe:
    """The same for who cannot wait: a host that is gone says nothing, and is only known to after
    `TIMEOUT_S`. Over TCP a thread asks, one at a time, and what it heard is told the next time."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._is_local = not endpoint.startswith(_TCP)
        self._lock = threading.Lock()
        self._is_asking = False
        self._said = True

    def is_there(self) -> bool:
        """As `is_listening`, perhaps a moment ago. Returns at once."""
        if self._is_local:
            return is_listening(self._endpoint)
        with self._lock:
            said, self._said = self._said, True
            if self._is_asking:
                return said
            self._is_asking = True
        threading.Thread(target=self._ask, name="listening", daemon=True).start()
        return said

    def _ask(self) -> None:
        said = is_listening(self._endpoint)
        with self._lock:
            self._is_asking, self._said = False, said


def _connect(endpoint: str) -> None:
    if endpoint.startswith(_IPC):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(TIMEOUT_S)
            probe.connect(endpoint[len(_IPC) :])
    elif endpoint.startswith(_TCP):
        host, _, port = endpoint[len(_TCP) :].rpartition(":")
        with socket.create_connection((host, int(port)), TIMEOUT_S):
            pass
