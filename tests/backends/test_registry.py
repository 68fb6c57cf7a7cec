"""Backends by name."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from transferqueue import entry_points as plugins
from transferqueue.backends.base import BackendConfig
from transferqueue.backends.heap import HeapBackend
from transferqueue.backends.registry import backend_names, load_backend, open_backend
from transferqueue.errors import ConfigError


def test_built_in_backends_are_known() -> None:
    assert {"heap", "shm"} <= set(backend_names())
    with open_backend("heap", BackendConfig(service_id="a", slot=0, budget_bytes=4096)) as backend:
        assert isinstance(backend, HeapBackend)


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"no backend 'sm'; installed: .*did you mean 'shm'"):
        load_backend("sm")


def test_a_plugin_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(value: str) -> None:
        point = EntryPoint("mine", value, "transferqueue.backends")
        monkeypatch.setattr(plugins, "entry_points", lambda **_: [point])

    installed("transferqueue.backends.heap:HeapBackend")
    assert load_backend("mine") is HeapBackend
    installed("no_such_module:Backend")
    with pytest.raises(ConfigError, match="cannot be used: No module named 'no_such_module'"):
        load_backend("mine")
    installed("transferqueue.backends.heap:Missing")
    with pytest.raises(ConfigError, match="cannot be used"):
        load_backend("mine")
    installed("transferqueue.backends.heap:np")
    with pytest.raises(ConfigError, match="not a Backend class"):
        load_backend("mine")
