"""A machine with fake GPUs, a service on the first of them, and a client that uses it.

Modules whose services are other ones have a ``service`` of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import transferqueue as tq
from tests.e2e.fake_gpus import serve, used_bytes
from tests.waiting import wait_until
from transferqueue.devices.fake_machine import FakeMachine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.client.sync_client import Client
    from transferqueue.service.embedded import Service


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> FakeMachine:
    folder = tmp_path_factory.mktemp("machine")
    return FakeMachine.create(folder, num_gpus=2, memory_bytes=128 << 20)


@pytest.fixture(scope="module")
def service(machine: FakeMachine) -> Iterator[Service]:
    with serve(machine) as service:
        yield service


@pytest.fixture
def client(service: Service, machine: FakeMachine) -> Iterator[Client]:
    """Its gets land on the first GPU. In the end the service is empty, or has lost memory."""
    with tq.connect(service.address, device=machine.name_of(machine.uuids[0])) as client:
        yield client
        client.clear(partition="default")
        wait_until(lambda: used_bytes(client) == 0)
