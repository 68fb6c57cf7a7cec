"""The program of a measured process: ``python -m tests.benchmarks.actor``.

One JSON object a line comes in on stdin, one answer a line goes out on stdout, and both clocks
are read in here, right around the call. It runs in the environment of its system, so it imports
the standard library, numpy and torch, and of this package only what does the same.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from tests.benchmarks.adapter import Adapter, Unsupported
from tests.benchmarks.columns import MAKERS, digest, num_bytes, read_all

if TYPE_CHECKING:
    from collections.abc import Mapping


class Actor:
    """What the process holds between two requests."""

    def __init__(self) -> None:
        self._adapter: Adapter | None = None
        self._start_seconds = 0.0
        self._prepared: Any = None
        self._references: dict[str, Any] = {}
        self._kept: Any = None

    @property
    def adapter(self) -> Adapter:
        if self._adapter is None:
            raise RuntimeError("no system has been opened")
        return self._adapter

    def open(self, adapter: str, settings: dict[str, Any], address: str | None) -> dict[str, Any]:
        module, _, name = adapter.partition(":")
        self._adapter = getattr(importlib.import_module(module), name)(settings)
        started_s = time.perf_counter()
        if address is None:
            address = self.adapter.start()
        else:
            self.adapter.join(address)
        self._start_seconds = time.perf_counter() - started_s
        return {"address": address}

    def started(self) -> dict[str, Any]:
        """How long the start took: of the system's own part, where the adapter tells it."""
        own = self.adapter.start_seconds
        return {"seconds": self._start_seconds if own is None else own}

    def make(self, maker: str, **shape: int) -> dict[str, Any]:
        """Hold a batch to put."""
        columns = MAKERS[maker](**shape)
        self._prepared = self.adapter.prepare(columns)
        return {
            "bytes": num_bytes(columns),
            "digest": digest(columns),
            "sum": read_all(columns),
        }

    def drop(self) -> dict[str, Any]:
        """Let go of the batch and of what was got."""
        self._prepared = self._kept = None
        gc.collect()
        return {}

    def put(self, times: int = 1, at_s: float | None = None) -> dict[str, Any]:
        """Put the batch ``times`` times; not before the instant ``at_s``, where one is given."""
        wait_until(at_s)
        seconds, cpu_seconds, references = [], [], []
        begun_s = time.monotonic()
        for _ in range(times):
            started_s, cpu_s = time.perf_counter(), time.process_time()
            reference = self.adapter.put(self._prepared)
            seconds.append(time.perf_counter() - started_s)
            cpu_seconds.append(time.process_time() - cpu_s)
            references.append(reference)
        ended_s = time.monotonic()
        tokens = [self._remember(reference) for reference in references]
        return {
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "tokens": tokens,
            "begun_s": begun_s,
            "ended_s": ended_s,
        }

    def _remember(self, reference: Any) -> str:
        token = self.adapter.token(reference)
        self._references[token] = reference
        return token

    def _reference(self, token: str) -> Any:
        if token not in self._references:
            self._references[token] = self.adapter.reference(token)
        return self._references[token]

    def get(
        self,
        tokens: list[str],
        *,
        fields: list[str] | None = None,
        rows: list[int] | None = None,
        read: bool = False,
        check: bool = False,
        keep: bool = False,
    ) -> dict[str, Any]:
        """Get batches one after the other. ``read``: also read every element, timed apart;
        ``check``: also a digest of each; ``keep``: hold the last one."""
        references = [self._reference(token) for token in tokens]
        self._kept = None
        seconds, read_seconds, sums, digests = [], [], [], []
        for reference in references:
            started_s = time.perf_counter()
            columns = self.adapter.get(reference, fields=fields, rows=rows)
            got_s = time.perf_counter()
            seconds.append(got_s - started_s)
            if read:
                sums.append(read_all(columns))
                read_seconds.append(time.perf_counter() - got_s)
            if check:
                digests.append(digest(columns))
            if keep:
                self._kept = columns
            del columns
        return {
            "seconds": seconds,
            "read_seconds": read_seconds,
            "sums": sums,
            "digests": digests,
        }

    def clear(self, tokens: list[str]) -> dict[str, Any]:
        for token in tokens:
            self.adapter.clear(self._reference(token))
            self._references.pop(token, None)
        return {}

    def forget(self) -> dict[str, Any]:
        """Drop what names batches that others have cleared."""
        self._references.clear()
        gc.collect()
        return {}

    def renew(self) -> dict[str, Any]:
        self._kept = None
        gc.collect()
        self.adapter.renew()
        return {}

    def drive(self, name: str, at_s: float | None = None, **options: Any) -> dict[str, Any]:
        if name not in self.adapter.drives:
            raise Unsupported(f"{name} is not measured for it")
        wait_until(at_s)
        result: dict[str, Any] = self.adapter.drives[name](self.adapter, **options)
        return result

    def close(self) -> dict[str, Any]:
        self.drop()
        self._references.clear()
        if self._adapter is not None:
            self._adapter.close()
            self._adapter = None
        return {}


def wait_until(at_s: float | None) -> None:
    """Sleep to an instant of the host's monotonic clock, for processes that begin at once."""
    if at_s is not None:
        time.sleep(max(0.0, at_s - time.monotonic()))


def answer(actor: Actor, request: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out one request; an error becomes an answer."""
    arguments = dict(request)
    operation = arguments.pop("op")
    try:
        result: dict[str, Any] = getattr(actor, operation)(**arguments)
        return result
    except Unsupported as error:
        return {"unsupported": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever a peer raises is the reason in the table
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    # What libraries print goes to the log; the answers have the real stdout for themselves.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        actor = Actor()
        try:
            for line in sys.stdin:
                request = json.loads(line)
                answers.write(json.dumps(answer(actor, request)) + "\n")
                answers.flush()
                if request["op"] == "close":
                    return
        finally:
            with contextlib.suppress(Exception):
                actor.close()


if __name__ == "__main__":
    main()
