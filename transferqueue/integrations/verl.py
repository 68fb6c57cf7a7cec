"""Field-level fetch inside verl's own ``WorkerGroup``.

A method of a verl worker changes its decorator and nothing else::

    from transferqueue.integrations.verl import register

    class CriticWorker(Worker):
        @register(mesh="critic", reads=["input_ids", "attention_mask", "position_ids", "responses"],
                  writes=["values"])
        def compute_values(self, data: DataProto) -> DataProto: ...

Called with a handle (or a `LazyDataProto`), the controller sends each rank its part of the handle,
the rank fetches the declared columns and puts what the method returns, and the call gives the
handle with the new fields. Called with verl's ``DataProto`` it does what verl's own decorator does,
so that one argument compares the two. It is a dict-form dispatch mode: ``RayWorkerGroup`` carries
it, co-located or fused, blocking or not.

`register` is verl's decorator over `handle_mode` over `bridged`; use those to put it together
yourself. `share_reads` spares ranks that get the same rows on hosts without a shard. Ranks find the
service as ``tq.connect()`` does; one that the driver runs itself (``tq.serve``) they are told of.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from verl.protocol import DataProto as VerlDataProto
from verl.single_controller.base import decorator as verl_decorator

from transferqueue.client.connecting import connect
from transferqueue.client.own_services import running_service
from transferqueue.dispatch import (
    Bridge,
    Declaration,
    HandlePart,
    Padding,
    SplitCall,
    StageReply,
    Traffic,
    TrafficReport,
)
from transferqueue.dispatch.ray_replies import RayHandleFuture, RayReplies
from transferqueue.dispatch.shared_reads import SharedReads
from transferqueue.dispatch.split_call import HANDLE_KINDS
from transferqueue.errors import InvalidInput
from transferqueue.view.lazy_dataproto import LazyDataProto

if TYPE_CHECKING:
    from transferqueue.client.sync_client import Client
    from transferqueue.net.keys import ClientKeys

Method = TypeVar("Method", bound=Callable[..., Any])


class VerlView(LazyDataProto, VerlDataProto):  # type: ignore[misc]
    """The lazy view that a method gets: verl's ``DataProto`` too, for code that asks."""


# ---- the decorator


def register(
    *,
    reads: Sequence[str] = (),
    optional: Sequence[str] = (),
    writes: Sequence[str] = (),
    overwrite: bool = False,
    mesh: str | None = None,
    padding: Padding = Padding.ONE_ROW,
    blocking: bool = True,
    execute_mode: Any = None,
) -> Callable[[Method], Method]:
    """verl's ``@register`` for a method whose columns go by handle.

    ``mesh``: the name under which ranks have registered their place (verl's n-d mesh); ``None``:
    every rank has a part of its own. ``padding``: what ranks get when rows do not divide.
    ``reads``, ``optional``, ``writes``, ``overwrite``: see `Declaration`.
    """
    execute = verl_decorator.Execute.ALL if execute_mode is None else execute_mode

    def declare(method: Method) -> Method:
        bridge = bridged(reads=reads, optional=optional, writes=writes, overwrite=overwrite)(method)
        alone = execute is verl_decorator.Execute.RANK_ZERO
        mode = handle_mode(mesh, padding=padding, writes=writes, rank_zero=alone)
        decorated: Method = verl_decorator.register(
            dispatch_mode=mode, execute_mode=execute, blocking=blocking
        )(bridge)
        return decorated

    return declare


# ---- the controller's side


def handle_mode(
    mesh: str | None = None,
    *,
    padding: Padding = Padding.ONE_ROW,
    writes: Sequence[str] = (),
    rank_zero: bool = False,
) -> dict[str, Callable[..., Any]]:
    """A dispatch mode in verl's dict form, for methods that are `bridged`. ``rank_zero``: for those
    that verl's ``Execute.RANK_ZERO`` runs, which gets all rows and whose answer is the answer."""
    plan = _Plan(mesh=mesh, padding=padding, writes=tuple(writes), rank_zero=rank_zero)
    return {
        "dispatch_fn": functools.partial(_dispatch, plan),
        "collect_fn": functools.partial(_collect, plan),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What one decorated method needs to be dispatched."""

    mesh: str | None
    padding: Padding
    writes: tuple[str, ...]
    rank_zero: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one rank gets in place of the handle."""

    part: HandlePart
    address: str | None
    """Of a service that only the driver would find; ``None``: as ``connect()`` finds it."""
    keys: ClientKeys | None
    mesh: str | None
    history: tuple[RayReplies, ...] = ()
    """Calls whose fields the handle does not have yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """What ``collect_fn`` must know of the ``dispatch_fn`` before it."""

    split: SplitCall
    storing: list[int]
    history: tuple[RayReplies, ...]


class _CallUnderWay(threading.local):
    """verl calls ``dispatch_fn``, runs the method and calls ``collect_fn`` in one thread, with
    nothing in between to hand a value through."""

    call: _Call | None = None


_under_way = _CallUnderWay()


def _dispatch(plan: _Plan, group: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    _under_way.call = None
    given = [value for value in (*args, *kwargs.values()) if _is_handle(value)]
    if not given:
        return _verl_dispatch(plan, group, *args, **kwargs)
    if len(given) > 1:
        raise InvalidInput("a dispatched method takes one handle; union() them, or concat()")
    batch: Any = given[0]
    sent = _parts(plan, group, batch)

    def spread(value: Any) -> Any:
        to_each = sent if value is batch else [value] * len(sent)
        return to_each[0] if plan.rank_zero else to_each

    return [spread(value) for value in args], {name: spread(kwargs[name]) for name in kwargs}


def _parts(plan: _Plan, group: Any, batch: Any) -> list[_Part]:
    """What each rank gets of a handle; remembers what collecting needs."""
    history: tuple[RayReplies, ...] = ()
    if isinstance(batch, RayHandleFuture):
        if batch.split.as_new:  # its samples are known when they are made
            batch = batch.get()
        else:
            batch, history = batch.batch, batch.history
    parts_of_ranks, collects = _placement(plan, group)
    split = SplitCall.of(batch, max(parts_of_ranks) + 1, padding=plan.padding, writes=plan.writes)
    storing = _storing(parts_of_ranks, collects)
    _under_way.call = _Call(split=split, storing=storing, history=history)
    service = running_service()
    return [
        _Part(
            part=replace(split.parts[part], stores=stores),
            address=None if service is None else service.address,
            keys=None if service is None else service.client_keys,
            mesh=None if plan.rank_zero else plan.mesh,
            history=history,
        )
        for part, stores in zip(parts_of_ranks, collects, strict=True)
    ]


def _is_handle(value: object) -> bool:
    return isinstance(value, (*HANDLE_KINDS, RayHandleFuture))


def _verl_dispatch(plan: _Plan, group: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """As verl's own mode of this kind."""
    if plan.rank_zero:
        return verl_decorator.dispatch_all_to_all(group, *args, **kwargs)  # type: ignore[no-any-return]
    if plan.mesh is None:
        return verl_decorator.dispatch_dp_compute_data_proto(group, *args, **kwargs)  # type: ignore[no-any-return]
    return verl_decorator.dispatch_lazy_compute_data_proto(  # type: ignore[no-any-return]
        plan.mesh, group, *args, **kwargs
    )


def _placement(plan: _Plan, group: Any) -> tuple[list[int], list[bool]]:
    """By rank: its part, and whether it answers for it. Asked from the ranks once, as verl does."""
    if plan.rank_zero:
        return [0], [True]
    if plan.mesh is None:
        return list(range(group.world_size)), [True] * group.world_size
    if plan.mesh not in group._dispatch_info:
        group._dispatch_info[plan.mesh] = group._query_dispatch_info(plan.mesh)
    if plan.mesh not in group._collect_info:
        group._collect_info[plan.mesh] = group._query_collect_info(plan.mesh)
    return list(group._dispatch_info[plan.mesh]), list(group._collect_info[plan.mesh])


def _storing(parts_of_ranks: Sequence[int], collects: Sequence[bool]) -> list[int]:
    ranks = [rank for rank, stores in enumerate(collects) if stores]
    return sorted(ranks, key=lambda rank: parts_of_ranks[rank])


def _collect(plan: _Plan, group: Any, output: Any) -> Any:
    call, _under_way.call = _under_way.call, None
    if call is None:
        return _verl_collect(plan, group, output)
    replies = [output] if plan.rank_zero else output
    if not all(isinstance(reply, StageReply | bytes) for reply in replies):
        # Not waited for: object refs.
        return RayHandleFuture(
            split=call.split,
            storing=call.storing,
            before=call.history,
            replies=RayReplies(replies),
            rank_zero=plan.rank_zero,
        )
    handle = call.split.handle
    for earlier in call.history:
        handle = earlier.over(handle)
    answer = call.split.answer(replies, storing=call.storing, handle=handle)
    return answer[0] if plan.rank_zero and isinstance(answer, list) else answer


def _verl_collect(plan: _Plan, group: Any, output: Any) -> Any:
    if plan.rank_zero:
        return output
    if plan.mesh is None:
        return verl_decorator.collect_dp_compute_data_proto(group, output)
    return verl_decorator.collect_lazy_compute_data_proto(plan.mesh, group, output)


# ---- the worker's side


def bridged(
    *,
    reads: Sequence[str] = (),
    optional: Sequence[str] = (),
    writes: Sequence[str] = (),
    overwrite: bool = False,
) -> Callable[[Method], Method]:
    """Makes a worker's method take a part of a handle: it gets a `VerlView` of it, and what it
    returns is put. Given anything else the method runs as it is. Goes below verl's ``@register``.
    """
    declaration = Declaration.of(reads=reads, optional=optional, writes=writes, overwrite=overwrite)

    def wrap(method: Any) -> Any:
        @functools.wraps(method)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            stage = _Stage.of(self, method, declaration, args, kwargs)
            if stage is None:
                return method(self, *args, **kwargs)
            return stage.store(method(self, *stage.args, **stage.kwargs))

        @functools.wraps(method)
        async def run_async(self: Any, *args: Any, **kwargs: Any) -> Any:
            stage = _Stage.of(self, method, declaration, args, kwargs)
            if stage is None:
                return await method(self, *args, **kwargs)
            return stage.store(await method(self, *stage.args, **stage.kwargs))

        return run_async if inspect.iscoroutinefunction(method) else run

    return wrap


def share_reads(worker: Any, group: Any, *, mesh: str) -> None:
    """Called by every rank: of those that get the same part over this mesh one fetches the
    declared reads and sends them to the others. ``group``: a ``torch.distributed`` group of
    exactly these ranks, over Gloo; verl's own are over NCCL. For ranks on a host without a shard;
    elsewhere each maps the shard's memory."""
    _shared(worker)[mesh] = SharedReads(group)


def _shared(worker: Any) -> dict[str | None, SharedReads]:
    """By mesh."""
    found: dict[str | None, SharedReads] = vars(worker).setdefault("_transferqueue_shared", {})
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """One call on a rank: its arguments with a view in place of the part."""

    bridge: Bridge
    part: HandlePart
    view: LazyDataProto
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(
        cls,
        worker: Any,
        method: Any,
        declaration: Declaration,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> _Stage | None:
        """``None`` when there is no part among the arguments."""
        sent = next((v for v in (*args, *kwargs.values()) if isinstance(v, _Part)), None)
        if sent is None:
            return None
        bridge = Bridge(
            client=_clients.get(sent.address, sent.keys),
            declaration=declaration,
            role=type(worker).__name__,
            method=method.__name__,
            rank=int(worker.rank),
            traffic=_traffic,
            view_kind=VerlView,
            shared=_shared(worker).get(sent.mesh),
        )
        part = sent.part
        for earlier in sent.history:
            part = replace(part, handle=earlier.over(part.handle))
        view = bridge.open(part)
        return cls(
            bridge=bridge,
            part=part,
            view=view,
            args=tuple(view if value is sent else value for value in args),
            kwargs={name: view if value is sent else value for name, value in kwargs.items()},
        )

    def store(self, output: Any) -> StageReply | bytes:
        return self.bridge.store(self.part, self.view, output).packed()


class _Clients:
    """The clients of this process, one a service, until it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_address: dict[tuple[int, str | None], Client] = {}

    def get(self, address: str | None, keys: ClientKeys | None) -> Client:
        key = (os.getpid(), address)  # sockets do not survive a fork
        with self._lock:
            if not self._by_address:
                atexit.register(self.close)
            if key not in self._by_address:
                self._by_address[key] = connect(address, keys=keys)
            return self._by_address[key]

    def close(self) -> None:
        with self._lock:
            clients, self._by_address = self._by_address, {}
        for (pid, _), client in clients.items():
            if pid == os.getpid():
                client.close()


_clients = _Clients()
_traffic = Traffic()


# ---- the report


def traffic_report(group: Any) -> TrafficReport:
    """Bytes by role, method and field of all ranks of a ``RayWorkerGroup``."""
    return TrafficReport.of(group.execute_all_sync("execute_func_rank_zero", _rows_of_this_process))


def _rows_of_this_process() -> list[dict[str, Any]]:
    return _traffic.rows()
