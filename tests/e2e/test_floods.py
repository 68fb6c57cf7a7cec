"""Connections that say nothing, by the thousand, do not keep clients out."""

from __future__ import annotations

import contextlib
import resource
import socket
from typing import TYPE_CHECKING

import pytest
import torch

import transferqueue as tq

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_SILENT = 1_500
USUAL_LIMIT = 1_024
"""Of open files, in a shell."""
CUT_AFTER_S = 10.0
"""When a connection has shown no key; until then it has its descriptor."""


@pytest.fixture
def service() -> Iterator[tq.Service]:
    """Started under the usual limit, by a process that then opens more than that itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = 4 * NUM_SILENT
    if hard != resource.RLIM_INFINITY and hard < enough:
        pytest.skip(f"not more than {hard} open files are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (USUAL_LIMIT, hard))
    try:
        with tq.serve(budget_bytes=64 << 20, host="127.0.0.1") as service:
            resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
            yield service
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_silent_connections_beyond_a_shells_limit_keep_nobody_out(service: tq.Service) -> None:
    host, port = service.address.removeprefix("tcp://").rsplit(":", 1)
    with contextlib.ExitStack() as stack:
        before = stack.enter_context(_client(service))
        handle = before.put({"x": torch.arange(4.0)})
        for _ in range(NUM_SILENT):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
        assert before.get(handle)["x"].tolist() == [0, 1, 2, 3]
        with _client(service, timeout_s=CUT_AFTER_S / 2) as later:
            assert later.get(handle)["x"].tolist() == [0, 1, 2, 3]
    assert service.num_restarts == 0


def _client(service: tq.Service, timeout_s: float = 30.0) -> tq.Client:
    return tq.connect(
        service.address, keys=service.client_keys, transport="tcp", timeout_s=timeout_s
    )
