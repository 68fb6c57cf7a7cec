"""Which way each pair of GPUs takes, and how fast: ``python -m tests.gpu.tables [MEBIBYTES]``.

Prints two tables in Markdown with the machine's name. On a machine without a CUDA device it says
so and ends; nothing here is of use without one.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import torch

import transferqueue as tq
from transferqueue.devices.cuda_driver import cuda_driver
from transferqueue.devices.registry import find_device
from transferqueue.errors import DeviceMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transferqueue.client.sync_client import Client
    from transferqueue.devices.base import Device

TURNS = 5


def serve_on(device: str, budget_bytes: int) -> tq.Service:
    return tq.serve(backend="device", backend_options={"device": device}, budget_bytes=budget_bytes)


def ladder_rows(devices: Sequence[str]) -> list[tuple[str, str, str, str]]:
    """Shard's device, client's device, the way, and why not a better one."""
    rows = []
    for shard in devices:
        with serve_on(shard, 1 << 20) as service:
            for reader in devices:
                with tq.connect(service.address, device=reader) as client:
                    (link,) = client.links()
                    rows.append((shard, reader, link["rung"], link["why_not_better"]))
    return rows


def median_s(step: Callable[[], object]) -> float:
    """Of some turns after one that warms up."""
    took = []
    for _ in range(TURNS + 1):
        start_s = time.perf_counter()
        step()
        took.append(time.perf_counter() - start_s)
    return statistics.median(took[1:])


def bandwidth_rows(device: str, nbytes: int) -> list[tuple[str, float]]:
    """What is done, and bytes a second. The first is the copy that the others are to come near."""
    rows = [("one copy on the device", nbytes / _copy_s(device, nbytes))]
    with (
        serve_on(device, 2 * nbytes + (8 << 20)) as service,
        tq.connect(service.address, device=device) as client,
        tq.connect(service.address) as host,
    ):
        data = torch.randint(0, 100, (1024, nbytes // 1024), dtype=torch.uint8)
        handle = client.put({"x": data})
        got = client.get(handle)["x"]
        assert torch.equal(got.cpu(), data), "other bytes came back"
        rows.append(("get on the device", nbytes / median_s(lambda: client.get(handle))))
        shuffled = handle[np.random.default_rng(0).permutation(1024)]
        rows.append(("get of shuffled rows on it", nbytes / median_s(lambda: client.get(shuffled))))
        often = handle[np.repeat(np.arange(128), 8)]
        rows.append(("get of an eighth, 8 times", nbytes / median_s(lambda: client.get(often))))
        rows.append(("get to the host", nbytes / median_s(lambda: host.get(handle))))
        rows.append(("put from the device", nbytes / median_s(lambda: _put(client, got))))
        rows.append((".cpu() and put", nbytes / median_s(lambda: _put(client, got.cpu()))))
        borrowed = median_s(lambda: _borrow(client, handle))
        rows.append(("borrow on the device", nbytes / borrowed))
        rows += _by_host_memory(device, got, nbytes)
        rows += _by_socket(device, got, nbytes)
    return rows


def _by_host_memory(device: str, on_device: torch.Tensor, nbytes: int) -> list[tuple[str, float]]:
    """Shards on the host: by what is page-locked, and as it is without any of this."""
    with (
        tq.serve(budget_bytes=4 * nbytes + (8 << 20)) as service,
        tq.connect(service.address, device=device) as client,
        tq.connect(service.address) as host,
    ):
        # To a fake GPU it is the client that had the tensor made which knows where it is.
        there = client.get(client.put({"x": on_device.cpu()}))["x"]
        handle = client.put({"x": there})
        steps: dict[str, Callable[[], object]] = {
            "put from the device to the host": lambda: _put(client, there),
            ".cpu() and put to the host": lambda: _put(host, there.cpu()),
            "get from the host on the device": lambda: client.get(handle),
        }
        return [(what, nbytes / median_s(step)) for what, step in steps.items()]


def _by_socket(device: str, on_device: torch.Tensor, nbytes: int) -> list[tuple[str, float]]:
    """Chunks over TCP on this host, and what it would be without an overlap."""
    with (
        tq.serve(budget_bytes=4 * nbytes + (8 << 20), host="127.0.0.1", encrypt=False) as service,
        tq.connect(service.address, device=device, transport="tcp") as client,
        tq.connect(service.address, transport="tcp") as host,
    ):
        there = client.get(client.put({"x": on_device.cpu()}))["x"]
        handle = client.put({"x": there})
        steps: dict[str, Callable[[], object]] = {
            "put from the device over TCP": lambda: _put(client, there),
            ".cpu() and put over TCP": lambda: _put(host, there.cpu()),
            "get on the device over TCP": lambda: client.get(handle),
            "get to the host over TCP": lambda: host.get(handle),
        }
        return [(what, nbytes / median_s(step)) for what, step in steps.items()]


def _borrow(client: Client, handle: tq.BatchHandle) -> None:
    with client.borrow(handle):
        pass


def _put(client: Client, data: torch.Tensor) -> None:
    client.clear(client.put({"x": data}, partition="again"))


def _copy_s(name: str, nbytes: int) -> float:
    with (
        find_device(name) as device,
        device.allocate(nbytes) as source,
        device.allocate(nbytes) as target,
        device.stream() as stream,
    ):

        def copy() -> None:
            stream.copy_across(target, 0, source, 0, nbytes)
            stream.synchronize()

        return median_s(copy)


def free_bytes(name: str) -> int:
    device: Device
    with find_device(name) as device:
        return device.room.free_bytes


def main(mebibytes: int) -> None:
    try:
        uuids = cuda_driver().uuids()
    except DeviceMissing as error:
        sys.exit(str(error))
    devices = [f"cuda:{uuid}" for uuid in uuids]
    print(f"{torch.cuda.get_device_name(0)}, {len(devices)} of them, torch {torch.__version__}\n")
    print("| shard | client | way | why not a better one |\n|---|---|---|---|")
    for row in ladder_rows(devices):
        print(f"| {' | '.join(row)} |")
    print(f"\n| {mebibytes} MiB | GB/s |\n|---|---|")
    for what, rate in bandwidth_rows(devices[0], mebibytes << 20):
        print(f"| {what} | {rate / 1e9:.1f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1024)
