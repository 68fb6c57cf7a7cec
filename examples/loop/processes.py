"""Roles in child processes, called with batches: dispatch and collect, as verl's groups do it.

The same code for eager batches and for views, because a view is a ``DataProto``. What a view
changes is what a pickle of it holds: names instead of columns.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import transferqueue as tq
from transferqueue.view.lazy_connection import close_process_clients
from workers.forking import start_child
from workers.roles.fields import declared_fields

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from types import TracebackType

RoleFactory = Callable[[], Mapping[str, Any]]
"""Roles by name. Called in their process."""

TRAIN = "train"


@dataclass(slots=True)
class CallBytes:
    """What went through the controller for one method."""

    sent: int = 0
    received: int = 0


@dataclass(slots=True, kw_only=True)
class Group:
    """Ranks of some roles, each a process. ``group.method(batch)`` cuts the batch over the ranks
    and joins what they return."""

    make_roles: RoleFactory
    num_ranks: int
    service_address: str
    traffic: dict[str, CallBytes] = field(default_factory=dict)
    """By method; several groups may count in one."""
    _ranks: list[_Rank] = field(default_factory=list)

    def __enter__(self) -> Group:
        for _ in range(self.num_ranks):
            self._ranks.append(_Rank(self.make_roles, self.service_address))
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for rank in self._ranks:
            rank.close()

    def __getattr__(self, method: str) -> Callable[[tq.DataProto], tq.DataProto]:
        if method.startswith("_"):
            raise AttributeError(method)
        return partial(self._call, method)

    def _call(self, method: str, batch: tq.DataProto) -> tq.DataProto:
        padded, _ = tq.pad_dataproto_to_divisor(batch, self.num_ranks)
        messages = [pickle.dumps((method, part)) for part in padded.chunk(self.num_ranks)]
        for rank, message in zip(self._ranks, messages, strict=True):
            rank.connection.send_bytes(message)
        answers = [rank.connection.recv_bytes() for rank in self._ranks]
        counted = self.traffic.setdefault(method, CallBytes())
        counted.sent += sum(map(len, messages))
        counted.received += sum(map(len, answers))
        parts = [_result(pickle.loads(answer)) for answer in answers]  # noqa: S301 - our children
        joined = tq.DataProto.concat(parts)
        return joined[: len(batch)] if len(joined) == len(padded) else joined


class _Rank:
    """One process and the pipe to it."""

    def __init__(self, make_roles: RoleFactory, address: str) -> None:
        program = partial(_serve, make_roles=make_roles, address=address)
        self._process, self.connection = start_child(program, "rank")

    def close(self) -> None:
        self.connection.close()
        self._process.join(20)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


@dataclass(frozen=True, slots=True)
class _Failed:
    error: str


def _result(answer: Any) -> tq.DataProto:
    if isinstance(answer, _Failed):
        raise RuntimeError(f"a role failed: {answer.error}")
    return answer  # type: ignore[no-any-return]


def _serve(connection: Connection, make_roles: RoleFactory, address: str) -> None:
    """The process of a rank, until the controller hangs up."""
    torch.set_num_threads(1)
    roles = make_roles()
    with tq.connect(address) as client:
        while True:
            try:
                message = connection.recv_bytes()
            except EOFError:
                break
            method, batch = pickle.loads(message)  # noqa: S301 - from the parent
            connection.send_bytes(pickle.dumps(_answer(roles, method, batch, client)))
    close_process_clients()


def _answer(
    roles: Mapping[str, Any], method: str, batch: tq.DataProto, client: tq.Client
) -> tq.DataProto | _Failed:
    try:
        role = next(role for role in roles.values() if hasattr(role, method))
        return run(role, method, batch, client)
    except Exception as error:  # noqa: BLE001 - whatever it was, the controller raises it
        return _Failed(f"{method}: {type(error).__name__}: {error}")


def run(role: Any, method_name: str, batch: tq.DataProto, client: tq.Client) -> tq.DataProto:
    """Run a method on the columns that it declares; its columns, or its metrics, as a batch."""
    method = getattr(role, method_name)
    needs = getattr(role, "needs", lambda _: ())(method_name)
    fields = declared_fields(method)
    output = method(_columns(batch, [*fields.reads, *needs]))
    if not fields.writes:
        return tq.DataProto(meta_info={"metrics": output})
    written = tq.DataProto.from_single_dict(output)
    return stored(written, batch, client) if isinstance(batch, tq.LazyDataProto) else written


def _columns(batch: tq.DataProto, names: list[str]) -> dict[str, Any]:
    if isinstance(batch, tq.LazyDataProto):
        batch.prefetch(names)
    tensors = {} if batch.batch is None else batch.batch
    return {
        name: batch.non_tensor_batch[name] if name in batch.non_tensor_batch else tensors[name]
        for name in names
    }


def stored(written: tq.DataProto, batch: tq.LazyDataProto, client: tq.Client) -> tq.LazyDataProto:
    """A view of the written columns, stored: with the samples of the batch, or as new samples
    where several of its rows are one sample (a prompt, repeated)."""
    if batch.handle.has_duplicates:
        return client.view(client.put(written, partition=TRAIN))
    batch.union(written).push()
    return batch.select(list(written.batch.keys()), [], [])
