"""A client on another host, for tests: ``far_client.py ADDRESS KEY_FILE TIMEOUT_S WHAT ...``.

Prints one JSON line: what came out of it, and after how long.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import transferqueue as tq
from transferqueue.net.keys import ClientKeys

if TYPE_CHECKING:
    from collections.abc import Callable


def batch(num_mib: int) -> dict[str, Any]:
    """Dense, ragged and object columns of about so many MiB."""
    rng = np.random.default_rng(num_mib)
    words = rng.integers(0, 1 << 30, size=(num_mib * 16, 16384), dtype=np.int32)
    lengths = torch.arange(1, len(words) + 1)
    ragged = torch.nested.nested_tensor_from_jagged(
        torch.arange(int(lengths.sum())),
        offsets=torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
    )
    return {
        "words": torch.from_numpy(words),
        "ragged": ragged,
        "texts": [f"sample {i}" for i in range(len(words))],
    }


def digest(columns: dict[str, Any]) -> str:
    """The content of a batch, whatever way it came."""
    summary = hashlib.sha256()
    summary.update(columns["words"].numpy().tobytes())
    summary.update(columns["ragged"].values().numpy().tobytes())
    summary.update(json.dumps(list(columns["texts"])).encode())
    return summary.hexdigest()


def put(client: tq.Client, columns: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    handle = client.put(columns, timeout_s=timeout_s)
    return {"handle": handle.to_bytes().hex()}


def get(client: tq.Client, handle: tq.BatchHandle, timeout_s: float) -> dict[str, Any]:
    return {"digest": digest(client.get_columns(handle, timeout_s=timeout_s))}


def task(what: str, argument: str) -> Callable[[tq.Client, float], dict[str, Any]]:
    """``put MIB`` answers with a handle, ``get HANDLE`` with a digest."""
    if what == "put":
        columns = batch(int(argument))
        return lambda client, timeout_s: put(client, columns, timeout_s)
    handle = tq.BatchHandle.from_bytes(bytes.fromhex(argument))
    return lambda client, timeout_s: get(client, handle, timeout_s)


def main(address: str, key_file: str, timeout_s: str, what: str, argument: str) -> None:
    keys = ClientKeys.load(Path(key_file))
    run = task(what, argument)
    with tq.connect(address, keys=keys, transport="tcp") as client:
        start_s = time.monotonic()
        try:
            said = run(client, float(timeout_s))
        except tq.errors.TransferQueueError as error:
            said = {"error": type(error).__name__, "text": str(error)}
        said["took_s"] = time.monotonic() - start_s
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
        sys.stdin.read()  # a client that failed lives on, its socket too


if __name__ == "__main__":
    main(*sys.argv[1:])
