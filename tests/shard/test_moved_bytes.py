"""Bytes by field and way."""

from __future__ import annotations

from transferqueue.shard.moved_bytes import MAX_FIELDS, OTHERS, WIDE, MovedBytes, Way


def test_bytes_add_up_by_field_and_by_way() -> None:
    moved = MovedBytes()
    moved.got("train", {"a": 3, "b": 4}, Way.MAPPED)
    moved.got("val", {"a": 1}, Way.INLINE)
    report = moved.report()
    assert report["got_bytes"] == {"a": 4, "b": 4}
    assert report["got_bytes_by_way"] == {"inline": 1, "mapped": 7, "streamed": 0}
    assert report["put_bytes"] == {}


def test_many_fields_at_once_count_for_their_partition() -> None:
    moved = MovedBytes()
    moved.got("weights/policy", {f"layer.{i}": 2 for i in range(WIDE)}, Way.MAPPED)
    assert moved.report()["got_bytes"] == {"weights/policy": 2 * WIDE}


def test_names_without_end_do_not_grow_it_without_end() -> None:
    moved = MovedBytes()
    for i in range(MAX_FIELDS + 50):
        moved.got("train", {f"step-{i}": 1}, Way.INLINE)
    got = moved.report()["got_bytes"]
    assert (len(got), got[OTHERS], sum(got.values())) == (MAX_FIELDS + 1, 50, MAX_FIELDS + 50)
