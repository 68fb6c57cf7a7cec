"""How each mode splits arguments and joins answers, without any worker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from transferqueue.dispatch import Padding, StageReply, by_tokens
from transferqueue.errors import ConfigError, DuplicateRows, InvalidInput
from transferqueue.handle import BatchHandle, FieldSpec
from transferqueue.view import DataProto
from workers import Dispatch, Execute, Mesh, Placement, register, register_dispatch_mode
from workers.calls import CallSite, Dispatched
from workers.modes import DispatchMode, FunctionPair
from workers.registration import registered_methods


def site(
    world_size: int = 4, *, mesh: Mesh | Placement | None = None, writes: Any = (), **more: Any
) -> CallSite:
    from transferqueue.dispatch import Declaration

    placement = mesh or Placement.flat(world_size)
    placement = placement.placement if isinstance(placement, Mesh) else placement
    return CallSite(
        method="critic.compute",
        world_size=placement.world_size,
        placement=placement,
        declaration=Declaration.of(writes=writes),
        **more,
    )


def split(mode: DispatchMode, where: CallSite, *args: Any, **kwargs: Any) -> Dispatched:
    return mode.dispatch(where, args, kwargs)


def first_args(dispatched: Dispatched) -> list[Any]:
    return [call.args[0] for call in dispatched.calls]


def proto(num_rows: int, **meta: Any) -> DataProto:
    return DataProto.from_single_dict(
        {"x": torch.arange(num_rows), "text": np.array([str(i) for i in range(num_rows)], object)},
        meta_info=meta,
    )


def handle(num_rows: int) -> BatchHandle:
    return BatchHandle(
        service_id="s",
        partition="p",
        uids=np.arange(num_rows),
        fields={"x": FieldSpec(dtype="int64")},
    )


def test_one_to_all_gives_everybody_the_same() -> None:
    dispatched = split(Dispatch.ONE_TO_ALL, site(), "a", b=1)
    assert [(call.args, call.kwargs) for call in dispatched.calls] == [(("a",), {"b": 1})] * 4
    assert dispatched.collect([1, 2, 3, 4]) == [1, 2, 3, 4]


def test_rank_zero_gives_one_answer() -> None:
    dispatched = split(Dispatch.RANK_ZERO, site(1, rank_zero_only=True), [1, 2], b=[3])
    (call,) = dispatched.calls
    assert (call.args, call.kwargs) == (([1, 2],), {"b": [3]})
    assert dispatched.collect(["answer"]) == "answer"


def test_all_to_all_spreads_lists_of_one_entry_a_rank() -> None:
    dispatched = split(Dispatch.ALL_TO_ALL, site(2), [1, 2], b=["x", "y"])
    assert [(call.args, call.kwargs) for call in dispatched.calls] == [
        ((1,), {"b": "x"}),
        ((2,), {"b": "y"}),
    ]


def test_all_to_all_gives_anything_else_to_everybody() -> None:
    assert first_args(split(Dispatch.ALL_TO_ALL, site(2), [1, 2, 3])) == [[1, 2, 3]] * 2
    assert len(split(Dispatch.ALL_TO_ALL, site(2)).calls) == 2


def test_dp_compute_wants_one_entry_a_rank() -> None:
    assert first_args(split(Dispatch.DP_COMPUTE, site(2), [1, 2])) == [1, 2]
    with pytest.raises(InvalidInput, match="2 ranks, argument 1 has 3 entries"):
        split(Dispatch.DP_COMPUTE, site(2), [1, 2, 3])
    with pytest.raises(InvalidInput, match="argument b has 7"):
        split(Dispatch.DP_COMPUTE, site(2), [1, 2], b=7)


@pytest.mark.parametrize(
    ("rows", "expected"), [(10, [3, 3, 2, 2]), (2, [1, 1, 0, 0]), (0, [0] * 4)]
)
def test_a_batch_that_does_not_divide_is_cut_unevenly(rows: int, expected: list[int]) -> None:
    batch = proto(rows, step=1)
    dispatched = split(Dispatch.DP_COMPUTE_PROTO, site(), batch)
    parts = first_args(dispatched)
    assert [len(part) for part in parts] == expected
    assert dispatched.collect(parts) == batch


def test_a_tensordict_is_cut_too() -> None:
    batch = TensorDict({"x": torch.arange(5)}, batch_size=[5])
    dispatched = split(Dispatch.DP_COMPUTE_PROTO, site(2), data=batch)
    parts = [call.kwargs["data"] for call in dispatched.calls]
    assert [part.batch_size[0] for part in parts] == [3, 2]
    assert torch.equal(dispatched.collect(parts)["x"], batch["x"])


def test_auto_padding_pads_the_parts_and_leaves_the_callers_batch_alone() -> None:
    batch = proto(5, _verl_auto_padding=True)
    dispatched = split(Dispatch.DP_COMPUTE_PROTO, site(), batch)
    parts = first_args(dispatched)
    assert [len(part) for part in parts] == [2, 2, 2, 2]
    assert len(batch) == 5
    assert dispatched.collect(parts) == batch


def test_padding_goes_again_where_a_method_answers_with_several_rows_for_each() -> None:
    batch = proto(3, _verl_auto_padding=True)
    dispatched = split(Dispatch.DP_COMPUTE_PROTO, site(2), batch)
    answers = [part.repeat(2) for part in first_args(dispatched)]
    assert dispatched.collect(answers).batch["x"].tolist() == [0, 0, 1, 1, 2, 2]


def test_metrics_of_every_rank_come_back_also_when_rows_were_padded() -> None:
    dispatched = split(Dispatch.DP_COMPUTE_METRIC, site(), proto(5, _verl_auto_padding=True))
    metrics = [{"loss": rank} for rank in range(4)]
    assert dispatched.collect(metrics) == metrics


def test_by_a_mesh_replicas_get_the_same_part_and_answer_once() -> None:
    batch = proto(4)
    dispatched = split(Dispatch.DP_COMPUTE_PROTO, site(mesh=Mesh.of(dp=2, tp=2)), batch)
    parts = first_args(dispatched)
    assert [part.batch["x"].tolist() for part in parts] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert dispatched.collect(parts) == batch


def test_rows_stay_in_order_when_the_mesh_numbers_parts_backwards() -> None:
    backwards = Placement(part_of_rank=(1, 0), collects=(True, True))
    batch = proto(4)
    dispatched = split(Dispatch.DP_COMPUTE_PROTO, site(mesh=backwards), batch)
    assert dispatched.collect(first_args(dispatched)) == batch


def test_with_func_the_function_goes_to_everybody() -> None:
    dispatched = split(Dispatch.DP_COMPUTE_PROTO_WITH_FUNC, site(2), len, proto(4))
    assert [(call.args[0], len(call.args[1])) for call in dispatched.calls] == [(len, 2)] * 2
    with pytest.raises(InvalidInput, match="takes a function"):
        split(Dispatch.DP_COMPUTE_PROTO_WITH_FUNC, site(2), proto(4))


def test_what_is_no_batch_cannot_be_cut_or_joined() -> None:
    with pytest.raises(InvalidInput, match="argument 1 is a dict"):
        split(Dispatch.DP_COMPUTE_PROTO, site(2), {"x": 1})
    dispatched = split(Dispatch.DP_COMPUTE_PROTO, site(2), proto(2))
    with pytest.raises(InvalidInput, match=r"critic.compute returned dict.*DP_COMPUTE_METRIC"):
        dispatched.collect([{"loss": 1}, {"loss": 2}])


def test_a_handle_is_split_and_given_as_parts() -> None:
    dispatched = split(Dispatch.HANDLE, site(mesh=Mesh.of(dp=2, tp=2)), handle(5), "more", k=1)
    parts: list[Any] = [call.part for call in dispatched.calls]
    assert [len(part.handle) for part in parts] == [3, 3, 2, 2]
    assert [part.stores for part in parts] == [True, False, True, False]
    assert dispatched.calls[0].args == ("more",)
    assert dispatched.calls[0].kwargs == {"k": 1}
    assert dispatched.calls[0].place == 0


def test_a_handle_may_be_the_only_keyword_argument() -> None:
    (call, _) = split(Dispatch.HANDLE, site(2), batch=handle(2)).calls
    assert (call.args, call.kwargs, call.place) == ((), {}, "batch")


def test_a_handle_call_joins_what_ranks_stored() -> None:
    dispatched = split(Dispatch.HANDLE, site(2, writes=["v"]), handle(3))
    reply = StageReply(num_rows=2, fields={"v": FieldSpec(dtype="float32")}, is_batch=True)
    answer = dispatched.collect([reply, reply.packed()])
    assert list(answer.fields) == ["x", "v"]
    assert len(answer) == 3


def test_padded_handles_are_equal_parts() -> None:
    dispatched = split(Dispatch.HANDLE.padded(), site(), handle(5))
    parts: list[Any] = [call.part for call in dispatched.calls]
    assert [len(part.handle) for part in parts] == [2, 2, 2, 2]
    assert sum(len(part.own) for part in parts) == 5
    parts = [call.part for call in split(Dispatch.HANDLE, site(), handle(1)).calls]
    assert [len(part.handle) for part in parts] == [1, 1, 1, 1]
    none = Dispatch.HANDLE.padded(Padding.NONE)
    parts = [call.part for call in split(none, site(), handle(1)).calls]
    assert [len(part.handle) for part in parts] == [1, 0, 0, 0]


def test_a_handle_is_split_by_tokens_when_asked() -> None:
    dispatched = split(Dispatch.HANDLE, site(2), by_tokens(handle(4), [8, 1, 1, 6]))
    parts: list[Any] = [call.part for call in dispatched.calls]
    loads = [sum([8, 1, 1, 6][uid] for uid in part.handle.uids) for part in parts]
    assert sorted(loads) == [7, 9]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), r"takes a handle, got \[\]"),
        ((proto(2),), r"takes a handle, got \['DataProto'\]; put a batch first"),
        ((handle(2), handle(2)), "got 2 handles"),
    ],
)
def test_a_handle_call_takes_one_handle(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        split(Dispatch.HANDLE, site(2), *args)


def test_a_handle_that_names_a_row_twice_cannot_be_written_to() -> None:
    with pytest.raises(DuplicateRows, match="before repeat"):
        split(Dispatch.HANDLE, site(2, writes=["v"]), handle(2).repeat(2))
    assert len(split(Dispatch.HANDLE, site(2), handle(2).repeat(2)).calls) == 2


def test_a_pair_of_functions_is_a_mode() -> None:
    pair = FunctionPair.of(
        (lambda group, x: ([[x + rank for rank in range(group)]], {}), lambda group, out: sum(out))
    )
    dispatched = split(pair, site(3, group=3), 10)
    assert first_args(dispatched) == [10, 11, 12]
    assert dispatched.collect([1, 2, 3]) == 6


def test_a_pair_may_come_as_a_dict_and_must_be_whole() -> None:
    mode = {"dispatch_fn": lambda group: ((), {}), "collect_fn": lambda group, out: out}
    assert isinstance(FunctionPair.of(mode), FunctionPair)
    for bad in ({"dispatch_fn": print}, (print,), "HANDLE", None):
        with pytest.raises(ConfigError):
            FunctionPair.of(bad)


def test_a_registered_mode_is_an_attribute_of_dispatch() -> None:
    mode = register_dispatch_mode(
        "TEST_ONLY_EVEN_RANKS", lambda group, x: ([x], {}), lambda group, out: out[::2]
    )
    assert Dispatch.TEST_ONLY_EVEN_RANKS is mode
    with pytest.raises(ConfigError, match="already"):
        register_dispatch_mode("TEST_ONLY_EVEN_RANKS", print, print)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="already"):
        register_dispatch_mode("HANDLE", print, print)  # type: ignore[arg-type]


def test_a_mode_that_is_not_there_is_named_with_the_nearest() -> None:
    with pytest.raises(AttributeError, match="DP_COMPUTE_PROTO"):
        _ = Dispatch.DP_COMPUTE_PROTOS


def test_register_refuses_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match=r"for dispatch_mode=Dispatch\.HANDLE"):
        register(Dispatch.DP_COMPUTE_PROTO, reads=["x"])
    with pytest.raises(ConfigError, match="one of Execute"):
        register(execute_mode="all")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="dispatch_mode is one of"):
        register(dispatch_mode="HANDLE")  # type: ignore[arg-type]


def test_registered_methods_are_found_in_bases_and_left_as_they_are() -> None:
    class Base:
        @register(Dispatch.ONE_TO_ALL)
        def one(self) -> int:
            return 1

    class Derived(Base):
        @register(Dispatch.HANDLE, blocking=False, reads=["x"])
        def two(self, data: Any) -> None: ...

        def three(self) -> None: ...

        @property
        def four(self) -> int:
            raise AssertionError("a property is not read")

    found = registered_methods(Derived)
    assert sorted(found) == ["one", "two"]
    assert found["one"].execute is Execute.ALL
    assert not found["two"].blocking
    assert Derived().one() == 1
