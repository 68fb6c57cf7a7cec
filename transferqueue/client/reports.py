"""What a client reports, so that a notebook shows it as a table. Plain dicts otherwise."""

from __future__ import annotations

from typing import Any

from transferqueue.html import table_html

MIB = 1 << 20


class Status(dict[str, Any]):
    """The answer of `Client.status`."""

    def _repr_html_(self) -> str:
        shards = [
            [shard["slot"], f"{shard['rows']:,}", _mib(shard["used_bytes"]),
             _mib(shard["budget_bytes"]), _copies(shard), shard["leases"], shard["puts_waiting"]]
            for shard in self["shards"]
        ]  # fmt: skip
        partitions = [
            [name, f"{partition['rows']:,}", _mib(partition["bytes"]),
             ", ".join(partition["fields"]), _tasks(partition), sum(partition["waiting"].values())]
            for name, partition in self["partitions"].items()
        ]  # fmt: skip
        return table_html(
            f"service {self['service_id']}, up {self['uptime_s']:.0f} s",
            ["shard", "rows", "MiB used", "of", "copies", "leases", "puts waiting"],
            shards,
        ) + table_html(
            "partitions",
            ["partition", "rows", "MiB", "fields", "free/claimed/acked", "waiting"],
            partitions,
        )


def _copies(shard: dict[str, Any]) -> str:
    copies = shard["copies"]
    if copies is None:
        return "1"
    return "2" if copies["is_complete"] else f"1 of 2 ({copies['phase']})"


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:,.1f}"


def _tasks(partition: dict[str, Any]) -> str:
    return ", ".join(
        f"{task} {state['free']}/{state['claimed']}/{state['acked']}"
        for task, state in partition["tasks"].items()
    )
