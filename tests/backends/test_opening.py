"""Which backends of a shard have to be there at its start, and which at a restart."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pytest

from tests.backends.object_store import DictBackend
from transferqueue.backends import opening
from transferqueue.backends.base import BackendConfig
from transferqueue.backends.heap import HeapBackend
from transferqueue.backends.opening import StorageConfig
from transferqueue.backends.shm import ShmBackend
from transferqueue.config import OtherBackend
from transferqueue.errors import ConfigError, ServiceFailed

if TYPE_CHECKING:
    from pathlib import Path

    from transferqueue.backends.base import Backend

MIB = 1 << 20


class Missing(DictBackend):
    """Its store is not there."""

    @classmethod
    def open(cls, config: BackendConfig) -> Self:
        raise ConfigError("nobody listens at h:1; start it with: storectl up")


KINDS: dict[str, type[Backend]] = {
    "store": Missing,
    "there": DictBackend,
    "heap": HeapBackend,
    "shm": ShmBackend,
}


@pytest.fixture(autouse=True)
def _kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "load_backend", KINDS.__getitem__)
    monkeypatch.setattr(opening, "open_backend", lambda name, config: KINDS[name].open(config))


def storage(folder: Path, backend: str, *others: str, epoch: int) -> StorageConfig:
    config = BackendConfig(
        service_id="0123456789abcdef",
        slot=0,
        budget_bytes=2 * MIB,
        directory=str(folder),
        epoch=epoch,
    )
    beside = [OtherBackend(name=name, backend=name, budget_bytes=MIB) for name in others]
    return StorageConfig(backend=backend, config=config, others=beside)


@pytest.mark.parametrize("names", [("store",), ("heap", "store"), ("shm", "store")])
def test_at_the_first_start_all_of_them_have_to_be_there(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError, match="storectl up"):
        storage(tmp_path, *names, epoch=0).opened(recover=False)
    assert not list(tmp_path.iterdir()), "and nothing of the others is left"


def test_a_restart_goes_on_without_one_whose_rows_had_ended_anyway(tmp_path: Path) -> None:
    with storage(tmp_path, "shm", "store", "there", epoch=1).opened(recover=True) as several:
        assert several.names == ["shm", "store", "there"]
        assert [several.absence(number) is None for number in range(3)] == [True, False, True]
        assert several.lost.tolist() == [0, 1, 2]
        found = several.reserve_in([100, 100], np.array([0, 2]))
        assert found is not None
        with pytest.raises(ServiceFailed, match=r"'store': was not there when .*storectl up"):
            several.reserve_in([100, 100], np.array([0, 1]))
        report: dict[str, Any] = several.report()
        assert report["store"]["times_looked"] == 1
        assert report["store"]["budget_bytes"] == MIB
        assert several.tick(0.0) is not None, "it is looked for again"
        several.free(found, several.extents_at(found, [100, 100]))


def test_so_does_one_of_which_it_is_the_default(tmp_path: Path) -> None:
    with storage(tmp_path, "store", "heap", epoch=1).opened(recover=True) as several:
        with pytest.raises(ServiceFailed, match="storectl up"):
            several.reserve([100])
        assert several.reserve_in([100], np.array([1])) is not None
        assert several.facts()["times_looked"] == 1


def test_one_that_outlives_its_process_has_to_be_there_for_its_rows_wait(tmp_path: Path) -> None:
    wanted = storage(tmp_path, "heap", "shm", epoch=1)
    missing = str(tmp_path / "unmounted")
    config = replace(wanted.config, directory=missing)
    with pytest.raises(ConfigError, match="unmounted"):
        replace(wanted, config=config, others=[
            OtherBackend(name="shm", backend="shm", budget_bytes=MIB, arena_dir=missing)
        ]).opened(recover=True)  # fmt: skip
