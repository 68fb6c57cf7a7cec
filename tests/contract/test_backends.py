"""Every backend that comes with the package keeps the contract."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from transferqueue.backends.heap import HeapBackend
from transferqueue.backends.shm import ShmBackend
from transferqueue.testing.backend_contract import CHECKS, check_backend
from transferqueue.testing.broken import ContractBroken
from transferqueue.testing.leaks import no_leaks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transferqueue.backends.base import Backend, BackendConfig
    from transferqueue.testing.backend_contract import Check, Maker


@pytest.fixture(params=["heap", "shm", "shm small segments", "shm prefaulted"])
def maker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Maker]:
    options = {
        "heap": None,
        "shm": {},
        "shm small segments": {"segment_bytes": 256 << 10},
        "shm prefaulted": {"prefault": True},
    }[request.param]

    def make(config: BackendConfig) -> Backend:
        if options is None:
            return HeapBackend.open(config)
        return ShmBackend.open(replace(config, directory=str(tmp_path), options=options))

    with no_leaks(str(tmp_path)):
        yield make


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check: Check, maker: Maker) -> None:
    check(maker)


def test_the_whole_suite_runs_in_one_call() -> None:
    check_backend(HeapBackend.open)


class Forgetful(HeapBackend):
    """Drops the last byte of every write."""

    def write(self, address: int, data: memoryview) -> None:
        super().write(address, data[:-1])


class Stingy(HeapBackend):
    """Never gives room back."""

    def free(self, addresses: object, nbytes: object) -> None:
        pass


@pytest.mark.parametrize("broken", [Forgetful, Stingy])
def test_a_backend_that_breaks_the_contract_is_caught(broken: type[HeapBackend]) -> None:
    with pytest.raises(ContractBroken, match=": "):
        check_backend(broken.open)
