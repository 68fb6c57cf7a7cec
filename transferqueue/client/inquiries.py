"""Questions of an operator: who waits for what, where single cells are, which way goes where."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.client.links import links_of
from transferqueue.client.placement import split_by_home
from transferqueue.coordinator.cell_report import ROW_STATES, TASK_STATES
from transferqueue.errors import InvalidInput, ServiceUnreachable
from transferqueue.fields import FieldSpec
from transferqueue.net.calls import Call, raise_first
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.tags import read_tags

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transferqueue.client.caller import Caller
    from transferqueue.client.device_sides import DeviceSides
    from transferqueue.config import ClientConfig
    from transferqueue.wire.format import Buffer, Message

LOOK_S = 2.0
"""How long a shard has to say its part of a report. Somebody looks because something hangs, maybe
that shard: what is known without it is shown, and that it is silent."""


class Inquiries:
    """Asks coordinator and shards, and puts their answers together. Changes nothing."""

    def __init__(self, caller: Caller, config: ClientConfig, devices: DeviceSides) -> None:
        self._caller = caller
        self._devices = devices
        self._session = caller.session
        self._config = config

    def links(self) -> list[dict[str, Any]]:
        links = links_of(self._session, self._devices.side(), self._caller.windows)
        return [asdict(link) for link in links]

    # -- waits ----------------------------------------------------------------------------------

    async def waits(
        self, *, partition: str | None = None, limit: int = 100, timeout_s: float | None = None
    ) -> dict[str, Any]:
        timeout_s = self._config.timeout_s if timeout_s is None else timeout_s
        body = {"partition": partition, "limit": limit}
        coordinator = await self._caller.coordinator(ops.WAITS, body, timeout_s=timeout_s)
        shards, silent = await self._look(
            {slot: self._call(slot, ops.WAITS, body) for slot in self._session.slots}, timeout_s
        )
        answers = [coordinator.body, *(answer.body for answer in shards.values())]
        _name_putters(answers[0]["waits"], {slot: one.body for slot, one in shards.items()})
        every = [wait for answer in answers for wait in answer["waits"]]
        longest_first = sorted(every, key=lambda wait: -float(wait["since_s"]))
        num_waits = sum(int(answer["num_waits"]) for answer in answers)
        return {
            "waits": longest_first[:limit],
            "left_out": num_waits - len(longest_first[:limit]),
            "shards": [
                {"slot": slot, **{key: one.body[key] for key in ("readers", "num_readers")}}
                for slot, one in shards.items()
            ],
            "silent": silent,
        }

    async def _look(
        self, calls: Mapping[int, Call], timeout_s: float
    ) -> tuple[dict[int, Message], list[int]]:
        """Answers by slot, and the slots that have given none, both sorted. Other failures are
        raised."""
        slots, limit_s = sorted(calls), min(timeout_s, LOOK_S)
        outcomes = await self._caller.outcomes(
            [calls[slot] for slot in slots], timeout_s=limit_s, parks=False
        )
        silent = [
            slot
            for slot, outcome in zip(slots, outcomes, strict=True)
            if isinstance(outcome, ServiceUnreachable)
        ]
        heard = [slot for slot in slots if slot not in silent]
        answers = raise_first([one for one in outcomes if not isinstance(one, ServiceUnreachable)])
        return dict(zip(heard, answers, strict=True)), silent

    def _call(
        self, slot: int, op: str, body: Mapping[str, Any], frames: Sequence[Buffer] = ()
    ) -> Call:
        endpoint = self._session.shard(slot).endpoint
        return Call(endpoint=endpoint, op=op, body=dict(body), frames=frames)

    # -- held -----------------------------------------------------------------------------------

    async def held(
        self, *, partition: str | None = None, timeout_s: float | None = None
    ) -> dict[str, Any]:
        timeout_s = self._config.timeout_s if timeout_s is None else timeout_s
        body = {"partition": partition}
        answer = await self._caller.coordinator(ops.HELD, body, timeout_s=timeout_s)
        calls = {slot: self._call(slot, ops.STORED, body) for slot in self._session.slots}
        held: dict[str, Any] = answer.body["held"]
        shards, _ = await self._look(calls, timeout_s)
        for shard in shards.values():
            _add_stored(held, shard.body["stored"])
        return held

    # -- picture --------------------------------------------------------------------------------

    async def picture(
        self, partition: str, *, columns: int = 512, timeout_s: float | None = None
    ) -> dict[str, Any]:
        answer = await self._caller.coordinator(
            ops.PICTURE,
            {"partition": partition, "columns": columns},
            timeout_s=self._config.timeout_s if timeout_s is None else timeout_s,
        )
        body, arrays = answer.body, ArrayReader(answer.frames)
        return {
            **body,
            "ends": arrays.int64s(body["ends"]),
            "fields": {name: arrays.get(levels) for name, levels in body["fields"].items()},
            "tasks": {
                task: {state: arrays.get(levels) for state, levels in states.items()}
                for task, states in body["tasks"].items()
            },
        }

    # -- describe -------------------------------------------------------------------------------

    async def describe(
        self,
        partition: str | None = None,
        *,
        uids: Sequence[int] | None = None,
        limit: int = 20,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        timeout_s = self._config.timeout_s if timeout_s is None else timeout_s
        arrays = ArrayWriter()
        asked = None if uids is None else _checked_uids(uids)
        body = {"partition": partition, "uids": arrays.add_optional(asked), "limit": limit}
        answer = await self._caller.coordinator(
            ops.DESCRIBE, body, frames=arrays.frames, timeout_s=timeout_s
        )
        found = ArrayReader(answer.frames).int64s(answer.body["uids"])
        rows = _rows(answer, found, self._session.homes.of(found))
        silent = await self._add_cells(str(answer.body["partition"]), found, rows, timeout_s)
        return {
            "partition": str(answer.body["partition"]),
            "num_rows": int(answer.body["num_rows"]),
            "left_out": int(answer.body["num_rows"]) - len(rows),
            "absent": ArrayReader(answer.frames).int64s(answer.body["absent"]).tolist(),
            "rows": rows,
            "silent": silent,
        }

    async def _add_cells(
        self, partition: str, uids: np.ndarray, rows: list[dict[str, Any]], timeout_s: float
    ) -> list[int]:
        """Complete the rows with what the shards know of their cells. Slots of those that did not
        say."""
        parts = [
            part
            for part in split_by_home(uids, self._session.homes)
            if part.slot in self._session.slots
        ]
        calls = {}
        for part in parts:
            arrays = ArrayWriter()
            body = {"partition": partition, "uids": arrays.add(uids[part.rows])}
            calls[part.slot] = self._call(part.slot, ops.DESCRIBE, body, arrays.frames)
        answers, silent = await self._look(calls, timeout_s) if calls else ({}, [])
        for part in parts:
            places = np.arange(len(uids))[part.rows]
            answer = answers.get(part.slot)
            if answer is None:
                _note_unknown(rows, places)
                continue
            for field, cells in answer.body["fields"].items():
                backends = [str(name) for name in answer.body["backends"]]
                _add_field(rows, places, str(field), cells, backends, ArrayReader(answer.frames))
        return silent


def _note_unknown(rows: list[dict[str, Any]], places: np.ndarray) -> None:
    """Nobody has said whether these cells are stored."""
    for place in places.tolist():
        for cell in rows[place]["fields"].values():
            cell["stored"] = None


def _name_putters(waits: list[dict[str, Any]], shards: dict[int, Any]) -> None:
    """The coordinator knows which shard asks for room for a put, and the shard for whom. Both have
    them in the order they came."""
    by_place: dict[tuple[str, str], deque[str]] = defaultdict(deque)
    for slot, shard in shards.items():
        for put in shard["over_quota"]:
            by_place[(f"shard {slot}", str(put["partition"]))].append(str(put["who"]))
    for wait in waits:
        putters = by_place.get((str(wait["who"]), str(wait["partition"])))
        if wait["kind"] == "put" and putters:
            wait["who"] = f"{putters.popleft()} ({wait['who']})"


def _add_stored(held: dict[str, Any], stored: dict[str, Any]) -> None:
    """Sums over shards of the bytes of each field by backend, with partitions that are held."""
    for partition, fields in stored.items():
        if partition not in held:
            continue
        backends = held[partition].setdefault("backends", {})
        for field, by_backend in fields.items():
            sums = backends.setdefault(field, {})
            for name, num_bytes in by_backend.items():
                sums[name] = sums.get(name, 0) + num_bytes


def _checked_uids(uids: Sequence[int]) -> np.ndarray:
    try:
        array = np.asarray(uids, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(f"uids must be 64-bit ints, got {uids!r:.80}") from None
    if array.ndim != 1 or not len(array):
        raise InvalidInput(f"uids must be a list of at least one int, got {uids!r:.80}")
    return array


def _rows(answer: Message, uids: np.ndarray, homes: np.ndarray) -> list[dict[str, Any]]:
    """One dict a sample: these are to be read by people, and are few. ``homes``: their slots."""
    body, arrays = answer.body, ArrayReader(answer.frames)
    states = arrays.get(body["states"]).tolist()
    ages_s = arrays.get(body["ages_s"]).tolist()
    ready = {str(f): arrays.get(mask).tolist() for f, mask in body["ready"].items()}
    rows = [
        {
            "uid": uid,
            "shard": home,
            "state": ROW_STATES[states[at]],
            "age_s": ages_s[at],
            "site": str(body["sites"][at]),
            "tags": {},
            "tasks": {},
            "fields": {
                field: {"ready": mask[at], "stored": False} for field, mask in ready.items()
            },
        }
        for at, (uid, home) in enumerate(zip(uids.tolist(), homes.tolist(), strict=True))
    ]
    for name, values in read_tags(body["tags"], arrays).items():
        listed = values.tolist() if isinstance(values, np.ndarray) else values
        for at, row in enumerate(rows):
            value = listed[at] if isinstance(listed, list) else listed
            if value is not None:
                row["tags"][name] = value
    _add_tasks(rows, body, arrays)
    return rows


def _add_tasks(rows: list[dict[str, Any]], body: Any, arrays: ArrayReader) -> None:
    for task, columns in body["tasks"].items():
        states = arrays.get(columns["states"]).tolist()
        deliveries = arrays.get(columns["deliveries"]).tolist()
        for at, row in enumerate(rows):
            row["tasks"][str(task)] = {
                "state": TASK_STATES[states[at]],
                "deliveries": deliveries[at],
            }
    for claim in body["claims"]:
        for at in np.flatnonzero(arrays.get(claim["is_mine"])).tolist():
            rows[at]["tasks"].setdefault(str(claim["task"]), {}).update(
                claim_id=claim["claim_id"], who=claim["client"], left_s=claim["left_s"]
            )


def _add_field(
    rows: list[dict[str, Any]],
    places: np.ndarray,
    field: str,
    cells: Any,
    backends: Sequence[str],
    arrays: ArrayReader,
) -> None:
    at = arrays.int64s(cells["at"])
    nbytes = arrays.int64s(cells["nbytes"]).tolist()
    specs = [FieldSpec.from_wire(spec) for spec in cells["specs"]]
    of_cell = arrays.get_optional(cells["of_cell"])
    which = [0] * len(at) if of_cell is None else of_cell.tolist()
    where = arrays.int64s(cells["backend"]).tolist()
    for place, num_bytes, number, in_backend in zip(
        places[at].tolist(), nbytes, which, where, strict=True
    ):
        spec = specs[number]
        cell = rows[place]["fields"].setdefault(field, {"ready": False})
        cell.update(
            stored=True,
            bytes=num_bytes,
            backend=backends[in_backend],
            dtype=spec.dtype,
            shape=list(spec.shape),
            ragged_dim=spec.ragged_dim,
            kind=spec.kind.value,
        )
