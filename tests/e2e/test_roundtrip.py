"""What is put comes back, through real processes and sockets."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import transferqueue as tq
from tests.waiting import wait_until
from transferqueue import errors
from transferqueue.shard import spill

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def service() -> Iterator[tq.Service]:
    # A small budget, so that a put of some MiB is spread over both shards on any transport.
    with tq.serve(shards=2, budget_bytes=16 << 20, host="127.0.0.1") as service:
        yield service


@pytest.fixture(scope="module")
def threads() -> Iterator[tq.Service]:
    with tq.serve(shards=2, budget_bytes=16 << 20, in_process=True) as service:
        yield service


@pytest.fixture(scope="module")
def heap_threads() -> Iterator[tq.Service]:
    with tq.serve(shards=2, budget_bytes=16 << 20, in_process=True, backend="heap") as service:
        yield service


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tq.Service]:
    folder = str(tmp_path_factory.mktemp("disk"))
    with tq.serve(shards=2, budget_bytes=16 << 20, backend="disk", arena_dir=folder) as service:
        yield service


@pytest.fixture(scope="module")
def spilling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tq.Service]:
    """Whatever nobody looks at is on the disk, however small it is."""
    folder = str(tmp_path_factory.mktemp("spilling"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spill, "MIN_SLAB_BYTES", 1)
        with tq.serve(
            shards=2,
            budget_bytes=16 << 20,
            in_process=True,
            spill_dir=folder,
            spill_bytes=1 << 20,
            spill_high=0.0,
            spill_low=0.0,
        ) as service:
            yield service


@pytest.fixture(
    params=["shm", "ipc", "tcp", "threads", "threads with the heap", "disk", "spilling"]
)
def client(
    service: tq.Service,
    threads: tq.Service,
    heap_threads: tq.Service,
    disk: tq.Service,
    spilling: tq.Service,
    request: pytest.FixtureRequest,
) -> Iterator[tq.Client]:
    others = {
        "threads": threads,
        "threads with the heap": heap_threads,
        "disk": disk,
        "spilling": spilling,
    }
    address = others.get(request.param, service).address
    transport = "auto" if request.param in others else request.param
    with tq.connect(address, timeout_s=10, transport=transport) as client:
        yield client
        for partition in client.status()["partitions"]:
            client.clear(partition=partition)


def jagged(*rows: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor(list(rows), layout=torch.jagged)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        if left.is_nested:
            return (
                right.is_nested
                and left._ragged_idx == right._ragged_idx
                and all(map(same, left.unbind(), right.unbind()))
            )
        return left.dtype == right.dtype and left.shape == right.shape and _same_bits(left, right)
    if isinstance(left, np.ndarray):
        return (
            left.dtype == right.dtype
            and left.shape == right.shape
            and all(type(a) is type(b) for a, b in zip(left.flat, right.flat, strict=True))
            and all(map(_same_value, left.flat, right.flat))
        )
    return type(left) is type(right) and _same_value(left, right)


def _same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    def bits(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous().view(torch.uint8) if tensor.numel() else tensor

    if left.dim() == 0 or left.numel() == 0:
        return True
    return torch.equal(bits(left.reshape(-1)), bits(right.reshape(-1)))


def _same_value(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, torch.Tensor | np.ndarray):
        return same(left, right)
    return bool(left == right) or (left != left and right != right)


COLUMNS: dict[str, Any] = {
    "int64": torch.arange(12).reshape(4, 3),
    "bfloat16": torch.randn(4, 2).bfloat16(),
    "float8": torch.randn(4, 2).to(torch.float8_e4m3fn),
    "bool": torch.tensor([True, False, True, True]),
    "complex": torch.randn(4, dtype=torch.complex64),
    "scalar a row": torch.arange(4.0),
    "no columns": torch.zeros(4, 0),
    "3-d": torch.randn(4, 2, 3),
    "ragged": jagged(torch.arange(3), torch.arange(1), torch.arange(5), torch.arange(2)),
    "ragged of one length": jagged(*[torch.arange(3.0) for _ in range(4)]),
    "numpy ints": np.arange(4, dtype=np.int16),
    "numpy text": np.array(["a", "bcd", "", "ü"]),
    "numpy time": np.array(["2026-01-01", "2026-01-02", "NaT", "1970-01-01"], "datetime64[ns]"),
    "strings": ["a", "bcd", "", "ü"],
    "objects": [None, (1, 2), [1, 2], {1: "int key", "t": torch.ones(2), "n": {"a": np.ones(1)}}],
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_comes_back_as_it_was_put(client: tq.Client, name: str) -> None:
    value = COLUMNS[name]
    handle = client.put({"x": value}, partition="exact")
    expected = value
    if isinstance(value, list):
        expected = np.empty(4, dtype=object)
        expected[:] = value
    assert same(expected, client.get_columns(handle)["x"])


def test_equal_length_ragged_rows_keep_their_layout_along_dimension_two(
    client: tq.Client,
) -> None:
    value = torch.nested.nested_tensor_from_jagged(
        torch.arange(24).reshape(4, 6), offsets=torch.tensor([0, 3, 6]), jagged_dim=2
    )
    handle = client.put({"positions": value})
    got = client.get(handle)["positions"]
    assert got.is_nested
    assert got._ragged_idx == 2
    assert [row.shape for row in got.unbind()] == [(4, 3), (4, 3)]
    assert handle.fields["positions"].ragged_dim == 1


def test_rows_come_in_the_handles_order_and_as_often(client: tq.Client) -> None:
    handle = client.put({"x": torch.arange(6), "o": list("abcdef")})
    index = [5, 0, 0, 3]
    got = client.get_columns(handle[index])
    assert got["x"].tolist() == index
    assert got["o"].tolist() == ["f", "a", "a", "d"]


def test_rows_of_several_puts_and_shards_come_together(client: tq.Client) -> None:
    handles = [
        client.put(
            {"x": torch.full((2,), i), "r": jagged(torch.full((i + 1,), i), torch.full((1,), i))}
        )
        for i in range(8)
    ]
    whole = tq.BatchHandle.concat(handles).reorder(np.arange(16)[::-1].copy())
    assert len(set(whole.uids >> 48)) == 2, "both shards took puts"
    got = client.get_columns(whole)
    assert got["x"].tolist() == [i for i in range(7, -1, -1) for _ in range(2)]
    assert [len(row) for row in got["r"].unbind()] == [
        length for i in range(7, -1, -1) for length in (1, i + 1)
    ]


def test_a_large_put_is_spread_over_the_shards_and_joined_again(client: tq.Client) -> None:
    value = torch.randn(64, 40 << 10)
    lengths = torch.arange(1, 65)
    ragged = torch.nested.nested_tensor_from_jagged(
        torch.arange(int(lengths.sum())),
        offsets=torch.cat([torch.zeros(1), lengths.cumsum(0)]).long(),
    )
    handle = client.put({"x": value, "r": ragged, "o": [str(i) for i in range(64)]})
    assert set((handle.uids >> 48).tolist()) == {0, 1}
    for rows in (np.arange(64), np.random.default_rng(0).permutation(64)):
        got = client.get_columns(handle[rows])
        assert torch.equal(got["x"], value[torch.from_numpy(rows)])
        assert got["o"].tolist() == [str(i) for i in rows]
        assert [len(row) for row in got["r"].unbind()] == lengths[torch.from_numpy(rows)].tolist()


def test_more_fields_go_to_the_samples_of_the_handle(client: tq.Client) -> None:
    handle = client.put({"x": torch.arange(4)})
    shuffled = handle.reorder([2, 0, 3, 1])
    with_y = client.put({"y": torch.tensor([20, 0, 30, 10])}, handle=shuffled)
    assert list(with_y.fields) == ["x", "y"]
    got = client.get(client.wait(handle, fields=["y"]), fields=["x", "y"])
    assert got["y"].tolist() == [0, 10, 20, 30]


def test_a_renamed_field_is_read_under_its_new_name(client: tq.Client) -> None:
    handle = client.put({"x": torch.arange(4)}).rename({"x": "z"})
    assert client.get(handle, fields=["z"])["z"].tolist() == [0, 1, 2, 3]


def test_a_put_of_no_rows_and_a_get_of_no_rows(client: tq.Client) -> None:
    handle = client.put({"x": torch.zeros(0, 3), "o": []})
    assert len(handle) == 0
    got = client.get_columns(client.put({"x": torch.zeros(2, 3), "o": ["a", "b"]})[0:0])
    assert got["x"].shape == (0, 3)
    assert got["o"].shape == (0,)


def test_what_was_got_may_be_edited_and_nobody_else_sees_it(client: tq.Client) -> None:
    handle = client.put({"x": torch.zeros(4, 1000)})
    client.get(handle)["x"].fill_(7)
    assert client.get(handle)["x"].sum() == 0


# -- refusals -------------------------------------------------------------------------------------


def test_uneven_columns_are_refused_before_anything_is_stored(client: tq.Client) -> None:
    rows_before = client.status()["shards"][0]["rows"]
    with pytest.raises(
        errors.RowCountMismatch, match="'y' beside field 'x': expected 4 rows, got 3"
    ):
        client.put({"x": torch.zeros(4), "y": torch.zeros(3)})
    assert client.status()["shards"][0]["rows"] == rows_before


def test_an_object_that_cannot_be_carried_is_named_by_field_row_and_type(
    client: tq.Client,
) -> None:
    with pytest.raises(errors.UnsupportedObject, match=r"field 'o', row 1: .*Thread"):
        client.put({"o": [1, threading.Thread()]})


def test_sparse_tensors_are_refused_with_the_way_out(client: tq.Client) -> None:
    with pytest.raises(errors.UnsupportedTensor, match="to_dense"):
        client.put({"x": torch.eye(3).to_sparse()})


def test_a_single_value_is_no_column(client: tq.Client) -> None:
    with pytest.raises(errors.InvalidInput, match="one value a row"):
        client.put({"x": 3})


def test_a_cell_is_written_once(client: tq.Client) -> None:
    handle = client.put({"x": torch.zeros(3)})
    with pytest.raises(errors.FieldExists, match="'x' is already there for 3"):
        client.put({"x": torch.ones(3)}, handle=handle)
    assert client.get(handle)["x"].sum() == 0
    client.put({"x": torch.ones(3)}, handle=handle, overwrite=True)
    assert client.get(handle)["x"].sum() == 3


def test_a_put_to_the_same_sample_twice_is_refused(client: tq.Client) -> None:
    handle = client.put({"x": torch.zeros(3)})
    with pytest.raises(errors.DuplicateRows, match="4 rows but only 3 distinct"):
        client.put({"y": torch.zeros(4)}, handle=handle[[0, 1, 2, 0]])


def test_a_field_on_some_rows_only_is_counted_or_optional(client: tq.Client) -> None:
    handle = client.put({"x": torch.zeros(16)})
    client.put({"ref_log_prob": torch.ones(2), "o": ["a", "b"]}, handle=handle[[3, 5]])
    with pytest.raises(errors.FieldsMissing, match=r"'ref_log_prob' \(14 of 16 rows\)"):
        client.get(handle, fields=["ref_log_prob"])
    got = client.get_columns(handle, fields=["x"], optional=["ref_log_prob", "o", "never"])
    assert set(got) == {"x", "ref_log_prob", "ref_log_prob.present", "o", "o.present"}
    assert np.flatnonzero(got["ref_log_prob.present"]).tolist() == [3, 5]
    assert got["ref_log_prob"][[3, 5]].tolist() == [1, 1]
    assert got["o"].tolist() == [None] * 3 + ["a", None, "b"] + [None] * 10


def test_an_unknown_field_is_answered_with_near_names(client: tq.Client) -> None:
    handle = client.put({"rewards": torch.zeros(2)})
    with pytest.raises(errors.FieldsMissing, match="did you mean 'rewards'"):
        client.get(handle, fields=["rewardz"])


def test_cleared_rows_are_counted(client: tq.Client) -> None:
    handle = client.put({"x": torch.zeros(3)})
    assert client.clear(handle[1:2]) == 1
    assert client.clear(handle[1:2]) == 0
    with pytest.raises(errors.RowsGone, match="1 of 3 rows were cleared"):
        client.get(handle)
    assert len(client.get(handle[[0, 2]])) == 2
    with pytest.raises(errors.RowsGone):
        client.put({"y": torch.zeros(3)}, handle=handle)


def test_rows_of_different_shapes_are_refused_with_both_shapes(client: tq.Client) -> None:
    one = client.put({"x": torch.zeros(2, 3)})
    two = client.put({"x": torch.zeros(2, 4)})
    with pytest.raises(errors.FieldSpecMismatch, match=r"float32\[3\].*float32\[4\]"):
        client.get(tq.BatchHandle.concat([one, two]))


def test_a_handle_of_another_service_is_refused(client: tq.Client) -> None:
    foreign = tq.BatchHandle(service_id="0" * 16, partition="p", uids=[1, 2])
    for call in (
        lambda: client.get(foreign, fields=["x"]),
        lambda: client.clear(foreign),
        lambda: client.put({"x": torch.zeros(2)}, handle=foreign),
        lambda: client.wait(foreign, fields=["x"]),
    ):
        with pytest.raises(errors.WrongService, match="0000000000000000"):
            call()


@pytest.mark.parametrize("handle", [[1, 2], "train", np.arange(2), {"x": 1}], ids=type)
def test_what_is_no_handle_is_refused_by_its_type(client: tq.Client, handle: Any) -> None:
    for call in (
        lambda: client.get(handle, fields=["x"]),
        lambda: client.view(handle),
        lambda: client.clear(handle),
        lambda: client.put({"x": torch.zeros(2)}, handle=handle),
        lambda: client.wait(handle, fields=["x"]),
        lambda: client.update_tags(handle, {"x": 1}),
        lambda: client.claim(task="t", fields=["x"], handle=handle),
    ):
        with pytest.raises(errors.InvalidInput, match=f"BatchHandle.*{type(handle).__name__}"):
            call()


def test_an_argument_of_the_wrong_type_is_named_and_echoed(client: tq.Client) -> None:
    handle = client.put({"x": torch.zeros(2)})
    column = {"x": torch.zeros(2)}

    def claim(**options: Any) -> Any:
        return client.claim(task="t", fields=["x"], n=1, **options)

    for match, call in {
        "fields takes .*got a int": lambda: client.get(handle, fields=[3]),
        "optional takes .*got a int": lambda: client.get(handle, optional=7),
        "tags takes a dict": lambda: client.put(column, tags=["a"]),
        "meta_info takes a dict": lambda: client.put(column, meta_info=[1]),
        "timeout_s must be .*'5'": lambda: client.get(handle, timeout_s="5"),
        "timeout_s must be .*nan": lambda: client.get(handle, timeout_s=float("nan")),
        "timeout_s must be .*-1": lambda: client.wait(handle, timeout_s=-1),
        r"where takes .*tq\.tag.*'v > 1'": lambda: claim(where="v > 1"),
        r"sampler takes .*Fifo\(\).*'fifo'": lambda: claim(sampler="fifo"),
        r"sampler takes .*Fifo\(\).*class": lambda: claim(sampler=tq.samplers.Fifo),
        "publish takes a state dict": lambda: client.publish("m", None, version=1),
        "version must be an int.*'7'": lambda: client.publish("m", column, version="7"),
        "shards must be an int.*'2'": lambda: tq.serve(shards="2"),
        "budget_bytes must be an int.*'8GB'": lambda: tq.serve(budget_bytes="8GB"),
        "budget_bytes must be an int.*8000000000.0": lambda: tq.serve(budget_bytes=8e9),
    }.items():
        with pytest.raises((errors.InvalidInput, errors.ConfigError), match=match):
            call()
    assert client.get(handle, timeout_s=np.float32(5))["x"].tolist() == [0, 0]


def test_a_big_value_in_meta_info_is_refused_with_the_way_to_put_it(client: tq.Client) -> None:
    with pytest.raises(errors.MetaTooLarge, match="put it as a field"):
        client.put({"x": torch.zeros(2)}, meta_info={"big": torch.zeros(1 << 20)})


def test_meta_info_comes_with_the_handle(client: tq.Client) -> None:
    handle = client.put({"x": torch.zeros(2)}, meta_info={"temperature": 0.7})
    assert handle.meta_info == {"temperature": 0.7}
    assert tq.BatchHandle.from_bytes(handle.to_bytes()) == handle


def held_by_shards(client: tq.Client) -> list[tuple[int, int, int]]:
    """Slabs, and their bytes in memory and on the disk that they spill to."""
    shards = client.status()["shards"]
    on_disk = [shard["spill"]["used_bytes"] if shard["spill"] else 0 for shard in shards]
    return [
        (shard["slabs"], shard["used_bytes"], nbytes)
        for shard, nbytes in zip(shards, on_disk, strict=True)
    ]


def test_a_failed_put_over_two_shards_leaves_nothing(client: tq.Client) -> None:
    handle = client.put({"x": torch.zeros(64, 16 << 10)})
    client.put({"y": torch.zeros(1)}, handle=handle[63:])
    if client.status()["shards"][0]["spill"]:  # the small slab moves there, the large one cannot
        wait_until(lambda: any(on_disk for *_, on_disk in held_by_shards(client)))
    held = held_by_shards(client)
    with pytest.raises(errors.FieldExists):
        client.put({"y": torch.zeros(64)}, handle=handle)
    assert held_by_shards(client) == held
    assert client.status()["shards"][0]["puts_under_way"] == 0
    client.put({"y": torch.zeros(63)}, handle=handle[:63])
    client.clear(handle)


def test_a_slice_of_a_huge_tensor_moves_its_own_bytes_only(client: tq.Client) -> None:
    parent = torch.zeros(1000, 10_000)
    client.put({"x": parent[500:501]}, partition="slice")
    assert client.stats()["x"]["put_bytes"] == 40_000


def test_over_budget_a_put_waits_and_then_says_how_full_it_is(client: tq.Client) -> None:
    huge = torch.zeros(1, 20 << 20, dtype=torch.uint8)
    with pytest.raises(errors.StorageFull, match="20,971,520 bytes needed"):
        client.put({"x": huge})
    held = client.put({"x": torch.zeros(2, 7 << 20, dtype=torch.uint8)}, partition="full")
    more = torch.zeros(2, 10 << 20, dtype=torch.uint8)
    with pytest.raises(errors.StorageFull):
        client.put({"x": more}, partition="full", timeout_s=0.3)
    threading.Timer(0.3, lambda: client.clear(held)).start()
    client.put({"x": more}, partition="full", timeout_s=10)
    client.clear(partition="full")


def test_a_dead_address_is_unreachable_within_its_deadline() -> None:
    with pytest.raises(errors.ServiceUnreachable, match="no answer to hello"):
        tq.connect("ipc:///nowhere/at/all.sock", timeout_s=0.3)
    with pytest.raises(errors.ConfigError, match="starts with ipc:// or tcp://"):
        tq.connect("localhost:80")
    with pytest.raises(errors.ConfigError, match="no key"):
        tq.connect("tcp://127.0.0.1:9", timeout_s=0.3)


# -- claims ---------------------------------------------------------------------------------------


def test_a_claim_acks_when_its_block_ends_and_gives_back_when_it_fails(client: tq.Client) -> None:
    client.put({"x": torch.arange(4)}, partition="claims")

    def claim() -> tq.Claim:
        return client.claim(task="t", fields=["x"], n=4, partition="claims", timeout_s=10)

    with pytest.raises(KeyError, match="worker"), claim():
        raise KeyError("worker failed")
    with claim() as second:
        assert second.get()["x"].tolist() == [0, 1, 2, 3]
        assert second.deliveries.tolist() == [2] * 4
    with pytest.raises(errors.NotReady, match="0 of 4"):
        client.claim(task="t", fields=["x"], n=4, partition="claims", timeout_s=0.1)
    with client.claim(task="other", fields=["x"], n=4, partition="claims") as other:
        assert len(other) == 4


def test_a_claim_waits_for_its_own_fields_not_for_others(client: tq.Client) -> None:
    handle = client.put({"x": torch.arange(2)}, partition="own")
    got: list[int] = []
    claiming = threading.Thread(
        target=lambda: got.extend(
            client.claim(task="t", fields=["x", "y"], n=2, partition="own").handle.uids.tolist()
        )
    )
    claiming.start()
    with client.claim(task="t2", fields=["x"], n=2, partition="own"):
        pass
    client.put({"y": torch.arange(2)}, handle=handle)
    claiming.join()
    assert got == handle.uids.tolist()


def test_an_expired_lease_is_given_again(client: tq.Client) -> None:
    client.put({"x": torch.arange(2)}, partition="lease")
    first = client.claim(task="t", fields=["x"], n=2, partition="lease", lease_s=0.2)
    again = client.claim(task="t", fields=["x"], n=2, partition="lease", timeout_s=5)
    assert again.deliveries.tolist() == [2, 2]
    with pytest.raises(errors.LeaseExpired):
        first.ack()
    again.ack()


def test_groups_are_claimed_whole(client: tq.Client) -> None:
    for group, size in (("a", 4), ("b", 3), ("c", 4)):
        client.put({"x": torch.zeros(size)}, partition="groups", tags={"group": group})

    def claim(n: int, timeout_s: float) -> tq.Claim:
        return client.claim(
            task="t",
            fields=["x"],
            n=n,
            partition="groups",
            sampler=tq.samplers.Groups(size=4),
            timeout_s=timeout_s,
        )

    with claim(8, timeout_s=10) as two:
        assert sorted(two.tags["group"]) == ["a"] * 4 + ["c"] * 4
    with pytest.raises(errors.NotReady):
        claim(4, timeout_s=0.2)


def test_tags_choose_what_is_claimed(client: tq.Client) -> None:
    for version in (4, 5, 6):
        client.put(
            {"x": torch.full((2,), version)}, partition="tags", tags={"policy_version": version}
        )
    with client.claim(
        task="t", fields=["x"], n=4, partition="tags", where=tq.tag("policy_version") >= 5
    ) as claim:
        assert sorted(claim.get()["x"].tolist()) == [5, 5, 6, 6]


def test_consumed_samples_are_freed_when_every_task_has_acked(client: tq.Client) -> None:
    client.create_partition("once", tasks=["actor", "critic"], retention="consumed")
    handle = client.put({"x": torch.zeros(4)}, partition="once")
    for task in ("actor", "critic"):
        assert len(client.get(handle)) == 4
        with client.claim(task=task, fields=["x"], n=4, partition="once"):
            pass
    for _ in range(200):
        try:
            client.get(handle)
        except errors.RowsGone:
            break
        threading.Event().wait(0.01)
    with pytest.raises(errors.RowsGone):
        client.get(handle)


def test_weights_are_published_and_fetched_by_version(client: tq.Client) -> None:
    state = {"layer.weight": torch.randn(8, 8), "layer.bias": torch.randn(8)}
    client.publish("policy", state, version=1)
    got = client.fetch("policy")
    assert got.version == 1
    assert all(torch.equal(got.state_dict[name], state[name]) for name in state)
    with pytest.raises(errors.NotReady):
        client.fetch("policy", newer_than=1, timeout_s=0.2)
    waiting: list[int] = []
    fetching = threading.Thread(
        target=lambda: waiting.append(client.fetch("policy", newer_than=1).version)
    )
    fetching.start()
    for version in (2, 3, 4):
        client.publish("policy", state, version=version)
    fetching.join()
    assert waiting[0] >= 2
    assert client.fetch("policy", version=4).version == 4
    with pytest.raises(errors.NotReady):
        client.fetch("policy", version=1, timeout_s=0.2)


async def test_the_async_client_does_the_same(service: tq.Service) -> None:
    async with await tq.connect_async(service.address) as client:
        handle = await client.put({"x": torch.arange(4)}, partition="async")
        assert (await client.get(handle))["x"].tolist() == [0, 1, 2, 3]
        async with client.claim(task="t", fields=["x"], n=2, partition="async") as claim:
            assert (await claim.get())["x"].tolist() == [0, 1]
        seen = []
        async for streamed in client.stream(task="t", fields=["x"], n=1, partition="async"):
            seen.extend((await streamed.get())["x"].tolist())
            if len(seen) == 2:
                break
        assert seen == [2, 3]
