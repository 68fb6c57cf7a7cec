"""Whether a service is there and takes the key, over real sockets."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import transferqueue as tq
from transferqueue import errors
from transferqueue.net.greeting import Greeting, greet
from transferqueue.net.keys import ServiceKeys

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", params=[True, False], ids=["encrypted", "plain"])
def service(request: pytest.FixtureRequest) -> Iterator[tq.Service]:
    with tq.serve(budget_bytes=8 << 20, host="127.0.0.1", encrypt=request.param) as service:
        yield service


def test_the_right_key_is_welcome(service: tq.Service) -> None:
    assert greet(service.address, service.client_keys, timeout_s=5) is Greeting.WELCOME


def test_every_wrong_key_is_refused_and_said_to_be(service: tq.Service) -> None:
    right = service.client_keys
    other = ServiceKeys.generate(encrypted=right.encrypted).for_clients()
    wrong = [
        other,
        replace(right, client_public=other.client_public, client_secret=other.client_secret),
        replace(right, encrypted=not right.encrypted),
    ]
    for keys in wrong:
        assert greet(service.address, keys, timeout_s=5) is Greeting.REFUSED
    with pytest.raises(errors.KeyRefused, match=r"client\.key"):
        tq.connect(service.address, keys=wrong[1], timeout_s=600)  # not waited for


async def test_the_async_face_says_so_too(service: tq.Service) -> None:
    other = ServiceKeys.generate(encrypted=service.client_keys.encrypted).for_clients()
    with pytest.raises(errors.KeyRefused):
        await tq.connect_async(service.address, keys=other, timeout_s=600)


def test_nobody_and_something_else_are_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        keys = ServiceKeys.generate().for_clients()
        assert greet(address, keys, timeout_s=0.3) is Greeting.SILENT
    assert greet(address, keys, timeout_s=0.3) is Greeting.ABSENT
