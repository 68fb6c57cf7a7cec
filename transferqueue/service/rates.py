"""How fast a service moves: two answers of `Client.status`, and the time between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PUTS, _GETS = ("put",), ("get",)


def snapshot(
    before: Mapping[str, Any], after: Mapping[str, Any], waits: Mapping[str, Any]
) -> dict[str, Any]:
    """One page of ``top``. Counters that have fallen are of a process that was started again:
    they count from nought."""
    seconds = max(1e-6, after["time_s"] - before["time_s"])
    earlier = {shard["slot"]: shard for shard in before["shards"]}
    return {
        "service_id": after["service_id"],
        "uptime_s": after["uptime_s"],
        "interval_s": seconds,
        "parked": after["parked"],
        "shards": [_shard(shard, earlier.get(shard["slot"]), seconds) for shard in after["shards"]],
        "partitions": {
            name: _partition(partition, before["partitions"].get(name), seconds)
            for name, partition in after["partitions"].items()
        },
        "stages": stages(before["stages"], after["stages"], seconds),
        "waits": waits["waits"],
        "waits_left_out": waits["left_out"],
    }


_STAGE_BYTES = ("read_bytes", "written_bytes", "untouched_bytes", "undeclared_bytes")


def stages(
    before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]], seconds: float
) -> list[dict[str, Any]]:
    """What methods read and wrote, over all fields, those that read most first."""
    then = _by_method(before)
    return sorted(
        (_stage(name, of, then.get(name), seconds) for name, of in _by_method(after).items()),
        key=lambda stage: (-stage["read_bytes"], -stage["written_bytes"]),
    )


def _by_method(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    sums: dict[str, dict[str, int]] = {}
    for row in rows:
        of = sums.setdefault(f"{row['role']}.{row['method']}", dict.fromkeys(_STAGE_BYTES, 0))
        for what in _STAGE_BYTES:
            of[what] += row[what]
        of["calls"] = max(of.get("calls", 0), row["calls"])
    return sums


def _stage(
    name: str, of: Mapping[str, int], before: Mapping[str, int] | None, seconds: float
) -> dict[str, Any]:
    then = before or dict.fromkeys(of, 0)
    return {
        "stage": name,
        **of,
        "read_bytes_per_s": _rise(of["read_bytes"], then["read_bytes"], seconds),
        "written_bytes_per_s": _rise(of["written_bytes"], then["written_bytes"], seconds),
        "untouched_share": of["untouched_bytes"] / of["read_bytes"] if of["read_bytes"] else 0.0,
    }


def _rise(after: float, before: float, seconds: float) -> float:
    return (after - before if after >= before else after) / seconds


def _shard(shard: Mapping[str, Any], before: Mapping[str, Any] | None, s: float) -> dict[str, Any]:
    return {
        "slot": shard["slot"],
        "rows": shard["rows"],
        "used_bytes": shard["used_bytes"],
        "budget_bytes": shard["budget_bytes"],
        "leases": shard["leases"],
        "puts_waiting": shard["puts_waiting"] + shard["puts_over_quota"],
        "puts_per_s": _requests(shard, before, _PUTS, s),
        "gets_per_s": _requests(shard, before, _GETS, s),
        "bytes_per_s": _rise(shard["used_bytes"], before["used_bytes"], s)
        if before and shard["used_bytes"] >= before["used_bytes"]
        else 0.0,
    }


def _requests(
    shard: Mapping[str, Any], before: Mapping[str, Any] | None, names: tuple[str, ...], s: float
) -> float:
    now = sum(shard["requests"].get(name, 0) for name in names)
    then = sum(before["requests"].get(name, 0) for name in names) if before else 0
    return _rise(now, then, s)


def _partition(
    partition: Mapping[str, Any], before: Mapping[str, Any] | None, seconds: float
) -> dict[str, Any]:
    then = before or {"rows_put": 0, "rows_handed_out": 0}
    return {
        "rows": partition["rows"],
        "bytes": partition["bytes"],
        "tasks": partition["tasks"],
        "waiting": partition["waiting"],
        "put_per_s": _rise(partition["rows_put"], then["rows_put"], seconds),
        "handed_out_per_s": _rise(partition["rows_handed_out"], then["rows_handed_out"], seconds),
    }
