"""The plain values that travel with a handle."""

from __future__ import annotations

import copy
import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from transferqueue.errors import InvalidInput, Malformed, MetaConflict, MetaTooLarge
from transferqueue.handle import BatchHandle
from transferqueue.meta import (
    META_MAX_BYTES,
    decode_meta,
    encode_meta,
    merge_meta,
    same_value,
)


def handle_with(meta: dict[str, Any]) -> BatchHandle:
    return BatchHandle(service_id="s", partition="train", uids=[1], meta_info=meta)


def merged(*metas: dict[str, object]) -> dict[str, object]:
    return decode_meta(merge_meta([encode_meta(meta) for meta in metas]))


def test_plain_values_come_back_as_they_were() -> None:
    meta = {"eos": (1, 2), "temperature": 0.7, "nested": {"a": [None, {3: b"x"}]}, "big": 2**70}
    back = decode_meta(encode_meta(meta))
    assert back == meta
    assert type(back["eos"]) is tuple


def test_no_values_take_no_bytes() -> None:
    assert encode_meta({}) == b""
    assert decode_meta(b"") == {}


@pytest.mark.parametrize("value", [np.zeros(25_000_000, np.float32), torch.zeros(25_000_000)])
def test_a_hundred_megabytes_are_refused_with_their_size_and_the_way_out(value: object) -> None:
    with pytest.raises(MetaTooLarge) as caught:
        encode_meta({"temperature": 1.0, "pixels": {"first": [value]}})
    assert "meta_info['pixels'] takes 100,000,000 bytes" in str(caught.value)
    assert "client.put({'pixels': value}" in str(caught.value)


def test_a_long_plain_value_is_refused_with_its_size() -> None:
    with pytest.raises(MetaTooLarge, match=r"meta_info\['ids'\]"):
        encode_meta({"ids": list(range(META_MAX_BYTES))})


def test_many_small_values_are_refused_together_naming_the_largest() -> None:
    meta = {f"key{i}": "x" * (i + 10_000) for i in range(30)}
    with pytest.raises(InvalidInput, match=r"'key29' \(10,032 bytes\)"):
        encode_meta(meta)


@pytest.mark.parametrize("value", [torch.ones(2), np.ones(2), object(), {1: bytearray()}])
def test_values_that_are_not_plain_are_refused_with_the_key(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"meta_info\['k'\] holds a .*as a field"):
        encode_meta({"k": value})


def test_keys_are_strings() -> None:
    with pytest.raises(InvalidInput, match="str keys, got 3"):
        encode_meta({3: 1})  # type: ignore[dict-item]


@pytest.mark.parametrize("data", [b"\xc1", b"\x90", b"\x81\x01\x02", b"\x80\x80", bytes(1 << 20)])
def test_bytes_that_are_no_meta_are_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_meta(data)


def test_a_merge_has_the_keys_of_all() -> None:
    assert merged({"a": 1}, {}, {"b": 2, "a": 1}) == {"a": 1, "b": 2}


def test_timing_never_conflicts_and_keeps_the_slowest() -> None:
    assert merged({"timing": 73.94637}, {"timing": 73.94638}) == {"timing": 73.94638}
    left = {"timing": {"gen": 2.0, "old": 1, "deep": {"x": 1.0}}}
    right = {"timing": {"gen": 3.5, "ref": 4.0, "deep": {"x": 0.5}}}
    timing = {"gen": 3.5, "old": 1, "ref": 4.0, "deep": {"x": 1.0}}
    assert merged(left, right) == {"timing": timing}


@pytest.mark.parametrize(
    ("left", "right"),
    [([], ["acc"]), (0.7, 0.70001), (1, True), ((1,), [1]), ({"a": 1}, {"b": 1}), (None, 0)],
)
def test_a_real_conflict_names_the_key_and_both_values(left: object, right: object) -> None:
    with pytest.raises(MetaConflict) as caught:
        merged({"reward_extra_keys": left}, {"reward_extra_keys": right})
    for part in ("'reward_extra_keys'", repr(left), repr(right)):
        assert part in str(caught.value)


def test_a_timing_of_another_type_is_a_real_conflict() -> None:
    with pytest.raises(MetaConflict):
        merged({"timing": 1.0}, {"timing": "fast"})


def test_equal_content_does_not_conflict() -> None:
    nan = {"x": [math.nan, {"y": (math.nan,)}], "o": np.array([None, math.nan], dtype=object)}
    again = {"o": np.array([None, math.nan], dtype=object), "x": [math.nan, {"y": (math.nan,)}]}
    assert merged(nan, again).keys() == {"x", "o"}
    assert same_value(nan, again)
    assert not same_value(nan, {**again, "x": []})


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(MetaConflict) as caught:
        merged({"a": "x" * 10_000}, {"a": "y" * 10_000})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta.__setitem__("step", 2),
        lambda meta: meta.__delitem__("step"),
        lambda meta: meta.update(step=2),
        lambda meta: meta.pop("step"),
        lambda meta: meta.popitem(),
        lambda meta: meta.clear(),
        lambda meta: meta.setdefault("new", 1),
        lambda meta: meta.__ior__({"step": 2}),
        lambda meta: meta["timing"].__setitem__("gen", 2.0),
        lambda meta: meta["timing"]["deep"].__setitem__("gen", 2.0),
    ],
)
def test_a_change_of_a_handles_meta_that_would_be_lost_is_refused(change: Any) -> None:
    handle = handle_with({"step": 1, "timing": {"gen": 1.0, "deep": {}}})
    with pytest.raises(InvalidInput, match=r"handle = handle\.with_meta"):
        change(handle.meta_info)
    assert handle.with_meta(step=2).meta_info["step"] == 2


def test_a_handles_meta_is_a_dict_and_its_copies_are_your_own() -> None:
    meta = {"step": 1, "timing": {"gen": 1.0}, "ids": [1, (2,)]}
    handle = handle_with(meta)
    assert handle.meta_info == meta
    assert isinstance(handle.meta_info, dict)
    for copied in (
        handle.meta_info.copy(),
        copy.copy(handle.meta_info),
        copy.deepcopy(handle.meta_info),
        pickle.loads(pickle.dumps(handle.meta_info)),
        handle.meta_info | {},
    ):
        assert type(copied) is type(copied["timing"]) is dict
        copied["timing"]["gen"] = 2.0
    again = handle_with(handle.meta_info)
    assert again == handle
    assert handle.with_meta(**handle.meta_info) == handle
    assert handle_with({"was": handle.meta_info}).meta_info == {"was": meta}
    assert json.loads(json.dumps({**handle.meta_info, "ids": 0}))["timing"] == {"gen": 1.0}
