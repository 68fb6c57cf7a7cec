"""The folders of services, of which some end while others look."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from transferqueue.client import host_services
from transferqueue.client.host_services import running_services
from transferqueue.service.runtime_dir import RuntimeDir, remove_leftovers

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_service_that_ends_while_somebody_looks_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSFERQUEUE_RUNTIME_DIR", str(tmp_path))
    stays = RuntimeDir("stays")
    stays.describe(["ipc://stays"])
    read = host_services.described

    def read_and_end(path: Path) -> object:
        found = read(path)
        if path.name == "ends":
            shutil.rmtree(path)
        return found

    monkeypatch.setattr(host_services, "described", read_and_end)
    for look in (lambda: list(running_services()), lambda: remove_leftovers(tmp_path)):
        for is_described in (True, False):
            ends = RuntimeDir("ends", resume=True)
            if is_described:
                ends.describe(["ipc://ends"])
            look()
            assert [path.name for path in tmp_path.iterdir()] == ["stays"]
    assert [service.service_id for service in running_services()] == ["stays"]
