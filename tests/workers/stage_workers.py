"""Workers that the tests of groups share. In a module, so that other processes can import them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from typing import Any

import torch
import torch.distributed as dist

from transferqueue.dispatch import PADDING_KEY
from transferqueue.view import DataProto
from workers import Dispatch, Execute, Worker, register


class Unpicklable(Exception):
    """Cannot be rebuilt from its ``args``."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


class Critic(Worker):
    """Stages on handles."""

    def __init__(self, scale: float = 2.0) -> None:
        self.scale = scale
        self.calls = 0

    @register(Dispatch.HANDLE, reads=["ids"], optional=["mask"], writes=["values"])
    def compute_values(self, data: DataProto, shift: float = 0.0) -> dict[str, Any]:
        self.calls += 1
        mask = data.batch.get("mask", 1.0)
        return {"values": data.batch["ids"].float() * self.scale * mask + shift, "rank": self.rank}

    @register(Dispatch.HANDLE, reads=["ids", "values"])
    def update(self, data: DataProto) -> dict[str, float]:
        self.calls += 1
        return {"rows": len(data), "loss": float(data.batch["values"].sum())}

    @register(Dispatch.HANDLE, reads=["ids"])
    def as_verl_does(self, data: DataProto) -> DataProto:
        return DataProto(meta_info={"metrics": {"rows": len(data)}})

    @register(Dispatch.HANDLE)
    def touch_undeclared(self, data: DataProto) -> int:
        return int(data.batch["ids"].sum())

    @register(Dispatch.HANDLE, reads=["ids", "mask"])
    def fetch_in_vain(self, data: DataProto) -> int:
        return int(data.batch["ids"].sum())

    @register(Dispatch.HANDLE.padded(), reads=["ids"], writes=["padded"])
    def compute_padded(self, data: DataProto) -> dict[str, Any]:
        return {
            "padded": data.batch["ids"].float(),
            "rows": len(data),
            "padding": data.meta_info.get(PADDING_KEY, 0),
        }

    @register(Dispatch.HANDLE, reads=["ids"], writes=["edited"])
    def edit_in_place(self, data: DataProto) -> DataProto:
        data.batch["ids"].zero_()
        data.batch["edited"] = data.batch["ids"] + self.rank
        return data

    @register(Dispatch.HANDLE, reads=["ids"], writes=["bad"])
    def write_wrongly(self, data: DataProto, how: str, on_rank: int = 0) -> dict[str, Any]:
        good = {"bad": torch.zeros(len(data))}
        if self.rank != on_rank:
            return good
        return {
            "undeclared": {**good, "worse": torch.zeros(len(data))},
            "missing": {},
            "rows": {"bad": torch.zeros(len(data) + 1)},
            "meta": {**good, "handle": object()},
        }[how]

    @register(Dispatch.HANDLE, reads=["ids"], writes=["again"], overwrite=True)
    def write_again(self, data: DataProto, fails: bool) -> dict[str, Any]:  # noqa: FBT001
        if fails and self.rank == 1:
            raise ValueError("no luck")
        return {"again": data.batch["ids"] + 1}

    @register(Dispatch.HANDLE, reads=["ids"])
    def fail_within(self, data: DataProto, how: str) -> None:
        if how == "own":
            raise ValueError("no luck")
        if how == "exit":
            sys.exit(2)
        if how == "cancelled":
            raise asyncio.CancelledError
        self.client.get(data.handle, fields=["idz"])  # type: ignore[attr-defined]

    @register(Dispatch.HANDLE, reads=["nowhere"])
    def read_what_is_not_there(self, data: DataProto) -> None: ...

    @register(Dispatch.HANDLE, reads=["ids"], writes=["doomed"])
    def end_badly(self, data: DataProto, on_rank: int, killed: bool) -> dict[str, Any]:  # noqa: FBT001
        """One rank fails, or is killed, between its reads and its writes."""
        doomed = data.batch["ids"].float()
        if self.rank == on_rank and killed:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.rank == on_rank:
            raise ValueError("no luck")
        return {"doomed": doomed}

    @register(Dispatch.HANDLE, reads=["ids"], writes=["slow"], blocking=False)
    def write_slowly(self, data: DataProto, fails: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002
        time.sleep(0.05 * (self.rank + 1))
        if fails and self.rank == 1:
            raise ValueError("no luck")
        return {"slow": data.batch["ids"].float()}

    @register(Dispatch.HANDLE, reads=["slow"], writes=["slower"], blocking=False)
    def write_after(self, data: DataProto) -> dict[str, Any]:
        return {"slower": data.batch["slow"] + 1}

    @register(Dispatch.HANDLE, reads=["ids"])
    def generate(self, data: DataProto) -> Any:
        """New samples, two for each."""
        ids = data.batch["ids"].repeat_interleave(2, 0)
        return self.client.put({"response": ids + 1}, partition="generated")

    @register(Dispatch.HANDLE, reads=["ids"], writes=["later"])
    async def compute_later(self, data: DataProto) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"later": data.batch["ids"].float()}

    @register(Dispatch.HANDLE, execute_mode=Execute.RANK_ZERO, reads=["ids"])
    def total(self, data: DataProto) -> int:
        return int(data.batch["ids"].sum())


class Replica(Worker):
    """Reads together with the other ranks of its part."""

    @register(Dispatch.ONE_TO_ALL)
    def join(self) -> None:
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{self.master_address}:{self.master_port}",
            rank=self.rank,
            world_size=self.world_size,
        )
        self.share_reads(dist.group.WORLD)

    @register(Dispatch.ONE_TO_ALL)
    def leave(self) -> None:
        dist.destroy_process_group()

    @register(Dispatch.HANDLE, reads=["ids", "ragged", "small", "text"])
    def read(self, data: DataProto) -> tuple[Any, ...]:
        values = (
            data.batch["ids"].tolist(),
            [row.tolist() for row in data.batch["ragged"].unbind()],
            data.batch["small"].tolist(),
            data.non_tensor_batch["text"].tolist(),
        )
        data.batch["ids"].zero_()
        return values

    @register(Dispatch.HANDLE, execute_mode=Execute.RANK_ZERO, reads=["small"])
    def read_alone(self, data: DataProto) -> list[float]:
        return data.batch["small"].tolist()  # type: ignore[no-any-return]

    @register(Dispatch.HANDLE, reads=["ids", "nowhere"])
    def read_what_is_not_there(self, data: DataProto) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    def fetch_without_room(self) -> None:
        def fetch() -> Any:
            raise MemoryError("no room")

        assert self._shared_reads is not None
        self._shared_reads.fetch(fetch)

    @register(Dispatch.ONE_TO_ALL)
    def fail_before(self, rank: int) -> Any:
        """One rank fails before it comes to fetch; what the other gets."""
        assert self._shared_reads is not None
        if self.rank == rank:
            self._shared_reads.stay_out(OSError("no way"))
            raise OSError("no way")
        return dict(self._shared_reads.fetch(lambda: {"x": torch.ones(2)}))


class Plain(Worker):
    """Methods that need no service."""

    def __init__(self, fail_on: int | None = None) -> None:
        if self.rank == fail_on:
            raise RuntimeError("cannot be made")
        self.events: list[str] = []

    @register(Dispatch.ONE_TO_ALL)
    def where(self) -> tuple[int, int, int, str]:
        return (self.rank, self.world_size, self.local_rank, self.role)

    @register(Dispatch.ONE_TO_ALL)
    def process(self) -> tuple[int, str | None]:
        return os.getpid(), os.environ.get("RANK")

    @register(Dispatch.ONE_TO_ALL)
    def node(self) -> str:
        import ray

        return str(ray.get_runtime_context().get_node_id())

    @register(Dispatch.RANK_ZERO)
    def on_rank_zero(self, *args: Any) -> Any:
        return (self.rank, args)

    @register(Dispatch.DP_COMPUTE_PROTO)
    def double(self, data: DataProto) -> DataProto:
        data.batch["x"] *= 2
        return data

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def double_later(self, data: DataProto) -> DataProto:
        time.sleep(0.05)
        data.batch["x"] *= 2
        return data

    @register(Dispatch.DP_COMPUTE_METRIC)
    def count(self, data: DataProto) -> dict[str, int]:
        return {"rows": len(data)}

    @register(Dispatch.ONE_TO_ALL)
    def fail(self, on_rank: int, picklable: bool = True) -> int:  # noqa: FBT001, FBT002
        if self.rank == on_rank:
            raise ValueError("no luck") if picklable else Unpicklable(1, 2)
        return self.rank

    @register(Dispatch.ONE_TO_ALL)
    def die(self, on_rank: int) -> int:
        if self.rank == on_rank:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.rank

    @register(Dispatch.ONE_TO_ALL)
    def unsendable(self) -> Any:
        return threading.Lock()

    @register(Dispatch.ONE_TO_ALL)
    def unpicklable(self) -> Any:
        return Unpicklable(1, 2)

    @register(Dispatch.ONE_TO_ALL)
    def sleep(self, seconds: float) -> int:
        time.sleep(seconds)
        return self.rank

    @register(Dispatch.ONE_TO_ALL, blocking=False)
    async def overlap(self, number: int, other: int) -> list[int]:
        """Ends only when another call that came later has begun."""
        self.events.append(f"{number}")
        while f"{other}" not in self.events:
            await asyncio.sleep(0.005)
        return [self.rank, number]

    @register(Dispatch.ONE_TO_ALL)
    def take(self, value: Any) -> Any:
        return value

    @register(Dispatch.ONE_TO_ALL)
    def keywords(self, **values: int) -> list[str]:
        return sorted(values)

    @register(Dispatch.ONE_TO_ALL)
    def declare(self, name: str) -> None:
        self.declare_mesh(name, part=self.rank // 2, collects=self.rank % 2 == 0)

    @register(Dispatch.DP_COMPUTE_PROTO.on("declared"))
    def double_by_declared_mesh(self, data: DataProto) -> DataProto:
        return DataProto.from_single_dict({"x": data.batch["x"] * 2})
