"""Slabs as objects of a real Mooncake Store. Without its package these tests fail: see README."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.mooncake_master import Master, free_port, mooncake_master
from transferqueue.backends import mooncake
from transferqueue.backends.base import BackendConfig
from transferqueue.backends.checked import CheckedBackend, checked
from transferqueue.backends.mooncake import MooncakeBackend, MooncakeOptions
from transferqueue.backends.registry import open_backend
from transferqueue.errors import BytesDamaged, ConfigError, ServiceFailed
from transferqueue.testing.backend_contract import CHECKS
from transferqueue.testing.backend_faults import DamagedBytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.backends.base import Backend
    from transferqueue.testing.backend_contract import Check, Maker

MIB = 1 << 20
CONFIG = BackendConfig(service_id="svc", slot=0, budget_bytes=8 * MIB)

IN_ITS_OWN_PROCESS = {"a_kill_takes_no_sealed_byte_and_leaves_nothing_else"}
"""It forks, and Mooncake's client does not come through a fork of a process that has used it."""


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    with mooncake_master(tmp_path_factory.mktemp("mooncake")) as master:
        yield master


class SharedClient:
    """A client of a real store that outlives the backends which use it: it takes 2 s to end."""

    def __init__(self, backend: MooncakeBackend) -> None:
        self._client, self.pinned = backend._mooncake, backend._pinned

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def close(self) -> None:
        pass

    def maker(self, options: dict[str, Any]) -> Maker:
        found = MooncakeOptions.of(options)
        return lambda config: checked(MooncakeBackend(self, self.pinned, config, found))


@pytest.fixture(scope="module")
def client(master: Master) -> Iterator[SharedClient]:
    config = replace(CONFIG, budget_bytes=64 * MIB, options=master.options)
    with MooncakeBackend.open(config) as backend:
        yield SharedClient(backend)


def maker_of(options: dict[str, Any]) -> Maker:
    def make(config: BackendConfig) -> Backend:
        return checked(MooncakeBackend.open(replace(config, options=options)))

    return make


@pytest.mark.may_leak  # the library's threads and sockets go when the process does
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check: Check, master: Master, client: SharedClient) -> None:
    if check.__name__ in IN_ITS_OWN_PROCESS:
        program = (
            "from tests.backends.mooncake_cases import maker_of\n"
            f"from transferqueue.testing.backend_faults import {check.__name__} as check\n"
            f"check(maker_of({master.options!r}))\n"
        )
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    else:
        check(client.maker(master.options))


def overwrite(backend: Backend, address: int) -> None:
    """Another client of the store puts another value under the key."""
    assert isinstance(backend, CheckedBackend)
    inner = backend.inner
    assert isinstance(inner, MooncakeBackend)
    start, slab = inner._slabs.find(address, 1)
    read = inner.read_ranges(np.array([start]), np.array([slab.nbytes]))
    read[address - start] ^= 1
    assert inner._mooncake.remove(slab.stored, True) == 0
    assert inner._put(slab.stored, read) == 0


@pytest.mark.may_leak
def test_a_value_that_was_changed_in_the_store_is_never_given_out(
    master: Master, client: SharedClient
) -> None:
    DamagedBytes(overwrite)(client.maker(master.options))


@pytest.fixture(scope="module")
def backend(master: Master) -> Iterator[MooncakeBackend]:
    backend = open_backend("mooncake", replace(CONFIG, options=master.options))
    assert isinstance(backend, CheckedBackend)
    assert isinstance(backend.inner, MooncakeBackend)
    with backend:
        yield backend.inner


def put(backend: Backend, nbytes: int) -> int:
    found = backend.reserve([nbytes])
    assert found is not None
    backend.write(int(found[0]), memoryview(bytes(nbytes)))
    backend.seal(found, np.array([nbytes]))
    return int(found[0])


@pytest.mark.may_leak
def test_what_the_store_has_lost_or_cut_off_is_damaged_and_nothing_else_is(
    backend: MooncakeBackend,
) -> None:
    lost, cut, kept = (put(backend, 10_000) for _ in range(3))
    library = backend._mooncake
    for at, replacement in ((lost, b""), (cut, b"x" * 5_000)):
        key = backend._slabs.find(at, 1)[1].stored
        assert library.remove(key, True) == 0
        assert not replacement or library.put(key, replacement, backend._pinned) == 0
    with pytest.raises(BytesDamaged, match="the store does not have them any more"):
        backend.readable(lost, 10_000)
    with pytest.raises(BytesDamaged, match="5000 bytes came, not 10000"):
        backend.readable(cut, 10_000)
    assert bytes(backend.readable(kept, 10_000)) == bytes(10_000)


@pytest.mark.may_leak
def test_pinned_values_are_not_evicted_when_the_store_is_full(backend: MooncakeBackend) -> None:
    first = put(backend, MIB)
    loose = type(backend._pinned)()
    loose.preferred_segment = backend._mooncake.get_hostname()
    names = [f"others/{number}" for number in range(50)]
    codes = [backend._mooncake.put(name, bytes(4 * MIB), loose) for name in names]
    there = [backend._mooncake.is_exist(name) for name in names]
    assert codes[0] == 0
    assert there.count(1) < 40, "the store keeps more than its segments hold"
    assert bytes(backend.readable(first, MIB)) == bytes(MIB)
    backend._mooncake.remove_by_regex("^others/", True)


@pytest.mark.may_leak
def test_closing_leaves_no_object_behind(master: Master, backend: MooncakeBackend) -> None:
    with MooncakeBackend.open(replace(CONFIG, slot=1, options=master.options)) as other:
        key = other._slabs.find(put(other, 100), 1)[1].stored
        assert backend._mooncake.is_exist(key) == 1
    assert backend._mooncake.is_exist(key) == 0


@pytest.mark.may_leak
def test_a_store_that_is_killed_or_hangs_is_an_error_within_the_deadline(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with mooncake_master(tmp_path_factory.mktemp("doomed")) as master:
        options = {**master.options, "timeout_s": 0.5}
        with MooncakeBackend.open(replace(CONFIG, options=options)) as backend:
            at = put(backend, 100_000)
            master.stop()
            began_s = time.monotonic()
            with pytest.raises(ServiceFailed, match=r"did not answer in 0\.5 s"):
                backend.readable(at, 100)
            with pytest.raises(ServiceFailed, match="an earlier call has not been answered"):
                put(backend, 100)
            backend.free(np.array([at]), backend.extents([100_000]))
            assert time.monotonic() - began_s < 5
            assert backend.facts()["undropped"] == 1
            master.go_on()
            deadline_s = time.monotonic() + 10
            while time.monotonic() < deadline_s:
                try:
                    at = put(backend, 100)
                    break
                except ServiceFailed:
                    time.sleep(0.05)
            assert bytes(backend.readable(at, 100)) == bytes(100)
            backend.free(np.array([at]), backend.extents([100]))
            assert backend.facts()["undropped"] == 0
            master.kill()
            began_s = time.monotonic()
            with pytest.raises(ServiceFailed, match="mooncake at"):
                put(backend, 100)
        assert time.monotonic() - began_s < 15


@pytest.mark.may_leak
def test_a_backend_whose_store_hangs_is_closed_at_once(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with mooncake_master(tmp_path_factory.mktemp("hanging")) as master:
        backend = MooncakeBackend.open(replace(CONFIG, options=master.options))
        put(backend, 1_000)
        master.stop()
        began_s = time.monotonic()
        backend.close()
        assert time.monotonic() - began_s < 4


def test_a_missing_package_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mooncake", None)
    with pytest.raises(ConfigError, match=rf"{mooncake.PACKAGE} .*\[mooncake\].*libibverbs1"):
        open_backend("mooncake", replace(CONFIG, options={"master": "127.0.0.1:1"}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"needs options=\{'master': 'host:port'\}"),
        ({"master": "here"}, "master must be 'host:port', got 'here'"),
        ({"master": "h:1", "colour": 3}, "unexpected keyword argument 'colour'"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_backend("mooncake", replace(CONFIG, options=options))


def test_a_missing_server_is_an_error_that_names_the_command_and_the_port() -> None:
    port = free_port()
    options = {"master": f"127.0.0.1:{port}", "metadata": "http://127.0.0.1:7777/metadata"}
    with pytest.raises(ConfigError, match=rf"nobody listens at 127.0.0.1:{port}") as raised:
        open_backend("mooncake", replace(CONFIG, options=options))
    command = f"mooncake_master --rpc_port={port} --enable_http_metadata_server=true"
    assert command in str(raised.value)
    assert "--http_metadata_server_port=7777" in str(raised.value)


@pytest.mark.may_leak
def test_a_missing_metadata_server_is_an_error_that_names_the_port(master: Master) -> None:
    port = free_port()
    options = {**master.options, "metadata": f"http://127.0.0.1:{port}/metadata"}
    with pytest.raises(ConfigError, match=f"--http_metadata_server_port={port}"):
        open_backend("mooncake", replace(CONFIG, options=options))
