"""Slabs as objects of a real Ray."""

from __future__ import annotations

import gc
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.waiting import wait_until
from transferqueue.backends.base import BackendConfig
from transferqueue.backends.checked import CheckedBackend, checked
from transferqueue.backends.ray_objects import RayBackend
from transferqueue.backends.registry import open_backend
from transferqueue.errors import BytesDamaged, ConfigError, ServiceFailed
from transferqueue.testing.backend_contract import CHECKS
from transferqueue.testing.backend_faults import DamagedBytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.backends.base import Backend
    from transferqueue.testing.backend_contract import Check

pytestmark = pytest.mark.may_leak  # Ray's threads and sockets go when the process does

MIB = 1 << 20
CONFIG = BackendConfig(service_id="svc", slot=0, budget_bytes=16 * MIB)
FORKS = "a_kill_takes_no_sealed_byte_and_leaves_nothing_else"
"""Runs in a process of its own: Ray's client does not come through a fork."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Its address."""
    import ray

    context = ray.init(
        num_cpus=1,
        include_dashboard=False,
        logging_level="error",
        object_store_memory=128 * MIB,
    )
    yield str(context.address_info["address"])
    ray.shutdown()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check: Check, cluster: str) -> None:
    if check.__name__ == FORKS:
        program = (
            "from dataclasses import replace\n"
            "from transferqueue.backends.ray_objects import RayBackend as B\n"
            f"from transferqueue.testing.backend_faults import {FORKS} as check\n"
            f"check(lambda c: B.open(replace(c, options={{'address': {cluster!r}}})))\n"
        )
        subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
    else:
        check(lambda config: checked(RayBackend.open(config)))


def replace_object(backend: Backend, address: int) -> None:
    """Objects of Ray cannot be changed; what is read may be another one all the same."""
    assert isinstance(backend, CheckedBackend)
    inner = backend.inner
    assert isinstance(inner, RayBackend)
    start, slab = inner._slabs.find(address, 1)
    data = np.array(inner._ray.get(slab.stored))
    data[address - start] ^= 1
    slab.stored = inner._ray.put(data)


def test_another_object_is_never_given_out(cluster: str) -> None:
    DamagedBytes(replace_object)(lambda config: checked(RayBackend.open(config)))


def put(backend: Backend, data: np.ndarray) -> int:
    found = backend.reserve([len(data)])
    assert found is not None
    backend.write(int(found[0]), data.data)
    backend.seal(found, np.array([len(data)]))
    return int(found[0])


def test_a_read_is_a_view_of_the_store_and_a_freed_object_goes(cluster: str) -> None:
    data = np.random.default_rng(0).integers(0, 256, 4 * MIB, dtype=np.uint8)
    with open_backend("ray", CONFIG) as backend:
        at = put(backend, data)
        one, two = (backend.readable(at + 5, 1_000_000) for _ in "ab")
        where = [
            np.frombuffer(view, np.uint8).__array_interface__["data"][0] for view in (one, two)
        ]
        assert where[0] == where[1]
        assert bytes(one) == data[5:1_000_005].tobytes()
        assert isinstance(backend, CheckedBackend)
        assert isinstance(backend.inner, RayBackend)
        reference = backend.inner._slabs.find(at, 1)[1].stored.hex()
        del one, two
        backend.free(np.array([at]), backend.extents([len(data)]))
        gc.collect()
        wait_until(lambda: not is_referenced(reference))


def is_referenced(reference: str) -> bool:
    import ray

    return reference in ray._private.worker.global_worker.core_worker.get_all_reference_counts()


def test_more_than_the_store_holds_is_spilled_by_ray_and_read_back(cluster: str) -> None:
    config = replace(CONFIG, budget_bytes=256 * MIB)
    with open_backend("ray", config) as backend:
        addresses = [put(backend, np.full(16 * MIB, seed, np.uint8)) for seed in range(14)]
        for seed, at in enumerate(addresses):
            assert set(bytes(backend.readable(at + 8 * MIB, 4096))) == {seed}


@pytest.mark.parametrize("lost", [True, False])
def test_errors_of_ray_are_ours(
    cluster: str, monkeypatch: pytest.MonkeyPatch, *, lost: bool
) -> None:
    import ray

    def fails(*_: object, **__: object) -> None:
        if lost:
            raise ray.exceptions.ObjectLostError("00", b"", "here")
        raise ray.exceptions.GetTimeoutError("too slow")

    with open_backend("ray", CONFIG) as backend:
        at = put(backend, np.ones(MIB, np.uint8))
        monkeypatch.setattr(ray, "get", fails)
        error, why = (BytesDamaged, "has lost the object") if lost else (ServiceFailed, "too slow")
        with pytest.raises(error, match=why):
            backend.readable(at, 100)


def test_a_ray_that_is_not_there_is_an_error_that_names_the_command() -> None:
    program = (
        "from transferqueue.backends.base import BackendConfig\n"
        "from transferqueue.backends.registry import open_backend\n"
        "options = {'address': '127.0.0.1:1'}\n"
        "config = BackendConfig(service_id='s', slot=0, budget_bytes=1 << 20, options=options)\n"
        "open_backend('ray', config)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert "ConfigError: backend 'ray': no Ray at '127.0.0.1:1'" in done.stderr
    assert "ray start --head --port=6379" in done.stderr


def test_a_missing_package_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"needs the package ray .*\[ray\]"):
        open_backend("ray", CONFIG)


def test_options_that_there_are_not_are_refused() -> None:
    options: dict[str, Any] = {"adress": "auto"}
    with pytest.raises(ConfigError, match="unexpected keyword argument 'adress'"):
        open_backend("ray", replace(CONFIG, options=options))
