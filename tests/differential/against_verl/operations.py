"""Operations on a batch, drawn with arguments good and bad, and carried out on either side.

An operation is a function of the module that is asked (verl's or ours) and a batch. What it needs
beside the batch it was given as plain data, and builds for that side.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from against_verl.recipes import TENSOR_NAMES, Recipe, recipes


@dataclass(frozen=True)
class Operation:
    name: str
    args: dict[str, Any]
    run: Callable[[Any, Any], Any]
    """Of the module and the batch; the result is what the next operation may go on with."""

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.args.items())})"


def _call(name: str, **args: Any) -> Operation:
    def run(_: Any, batch: Any) -> Any:
        result = getattr(batch, name)(**args)
        return batch if result is None else result

    return Operation(name, args, run)


def _function(name: str, **args: Any) -> Operation:
    return Operation(name, args, lambda module, batch: getattr(module, name)(batch, **args))


def names_of(batch: Any) -> tuple[list[str], list[str], list[str]]:
    tensors = [] if batch.batch is None else sorted(batch.batch.keys())
    return tensors, sorted(batch.non_tensor_batch), sorted(batch.meta_info)


def _subset(names: list[str], *, missing: bool = True) -> st.SearchStrategy[list[str]]:
    unknown = ["nowhere"] if missing else []
    pool = names * 8 + unknown
    if not pool:
        return st.just([])
    return st.lists(st.sampled_from(pool), max_size=3, unique=True)


@st.composite
def _select(draw: st.DrawFn, batch: Any) -> Operation:
    keys = [draw(st.one_of(st.none(), _subset(names))) for names in names_of(batch)]
    return _call(
        "select",
        batch_keys=keys[0],
        non_tensor_batch_keys=keys[1],
        meta_info_keys=keys[2],
        deepcopy=draw(st.booleans()),
    )


@st.composite
def _pop(draw: st.DrawFn, batch: Any) -> Operation:
    keys = [draw(st.one_of(st.none(), _subset(names))) for names in names_of(batch)]
    args = dict(zip(["batch_keys", "non_tensor_batch_keys", "meta_info_keys"], keys, strict=True))

    def run(_: Any, data: Any) -> Any:
        return [data.pop(**args), data]

    return Operation("pop", args, run)


@st.composite
def _rename(draw: st.DrawFn, batch: Any) -> Operation:
    old = draw(st.sampled_from([*names_of(batch)[0], "nowhere"]))
    new = draw(st.sampled_from(["fresh", "fresher", *TENSOR_NAMES]))
    as_list = draw(st.booleans())
    wrap = (lambda name: [name]) if as_list else (lambda name: name)
    return _call("rename", old_keys=wrap(old), new_keys=wrap(new))


@st.composite
def _rename_badly(draw: st.DrawFn, batch: Any) -> Operation:
    old, new = draw(st.sampled_from([(("ids",), "x"), (None, "x"), (["ids"], ["x", "y"])]))
    return _call("rename", old_keys=old, new_keys=new)


@st.composite
def _slice(draw: st.DrawFn, batch: Any) -> Operation:
    bound = st.one_of(st.none(), st.integers(-8, 8))
    step = st.sampled_from([None, None, 1, 2, 3, 0, -1])
    args = {"start": draw(bound), "end": draw(bound), "step": draw(step)}
    if draw(st.booleans()):
        return _call("slice", **args)
    return Operation("[slice]", args, lambda _, data: data[slice(*args.values())])


def _row_lists(num_rows: int) -> st.SearchStrategy[list[Any]]:
    inside = st.integers(-num_rows, num_rows - 1) if num_rows else st.nothing()
    good = st.lists(inside, max_size=6) if num_rows else st.just([])
    mask = st.lists(st.booleans(), min_size=num_rows, max_size=num_rows)
    bad = st.sampled_from([[num_rows], [-num_rows - 1], [True] * (num_rows + 1)])
    return st.one_of(good, good, good, mask, bad)


@st.composite
def _rows(draw: st.DrawFn, batch: Any) -> Operation:
    rows = draw(_row_lists(len(batch)))
    form = draw(st.sampled_from(["list", "numpy", "torch", "int32"]))
    is_mask = bool(rows) and isinstance(rows[0], bool)
    dtype = bool if is_mask else np.int32 if form == "int32" else np.int64
    as_array = np.array(rows, dtype=dtype)
    index: Any = {
        "list": rows,
        "numpy": as_array,
        "int32": as_array,
        "torch": torch.from_numpy(as_array.copy()),
    }[form]
    call = draw(st.sampled_from(["select_idxs", "[]", "reorder"]))
    if call == "[]":
        return Operation("[rows]", {"item": index}, lambda _, data: data[index])
    if call == "select_idxs":
        return _call("select_idxs", idxs=index)
    return _call("reorder", indices=torch.from_numpy(as_array.copy()))


@st.composite
def _item(draw: st.DrawFn, batch: Any) -> Operation:
    item = draw(
        st.one_of(
            st.integers(-len(batch) - 1, len(batch)),
            st.sampled_from(["name", (1,), None, 1.5, ..., np.int64(0), np.bool_(True)]),
        )
    )
    return Operation("[item]", {"item": item}, lambda _, data: [data[item], data])


@st.composite
def _repeat(draw: st.DrawFn, batch: Any) -> Operation:
    times = draw(st.sampled_from([0, 1, 2, 3, -1]))
    return _call("repeat", repeat_times=times, interleave=draw(st.booleans()))


@st.composite
def _sample_level_repeat(draw: st.DrawFn, batch: Any) -> Operation:
    size = draw(st.sampled_from([len(batch), len(batch), len(batch), len(batch) + 1]))
    counts = draw(st.lists(st.sampled_from([0, 1, 2, 1, 3]), min_size=size, max_size=size))
    form = draw(st.sampled_from([list, tuple, np.array, torch.tensor]))
    given = 3 if draw(st.integers(0, 9)) == 0 else form(counts)
    if form in {np.array, torch.tensor} and not counts:
        given = np.zeros(0, np.int64)
    return _call("sample_level_repeat", repeat_times=given)


@st.composite
def _chunk(draw: st.DrawFn, batch: Any) -> Operation:
    divisors = [n for n in range(1, 7) if len(batch) % n == 0]
    return _call("chunk", chunks=draw(st.sampled_from([*divisors * 2, 4, 0, -1])))


@st.composite
def _split(draw: st.DrawFn, batch: Any) -> Operation:
    return _call("split", split_size=draw(st.sampled_from([1, 2, 3, 5, 0])))


@st.composite
def _concat(draw: st.DrawFn, batch: Any) -> Operation:
    """Parts made of the batch itself, at times with other columns, and of others alike."""
    cuts = draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=3))
    dropped = draw(st.sampled_from([None, None, None, "tensors", "arrays"]))
    metrics = draw(st.sampled_from([None, {"loss": 3.0}, [{"loss": 4.0}], {"loss": 1.0, "x": 2}]))
    meta = draw(st.sampled_from([None, None, None, {"step": 1}, {"step": 5, "new": 1}]))

    def run(module: Any, data: Any) -> Any:
        parts = [data]
        for start, stop in cuts:
            part = module.DataProto(
                batch=None if data.batch is None else data.batch[start:stop],
                non_tensor_batch={k: v[start:stop] for k, v in data.non_tensor_batch.items()},
                meta_info={**data.meta_info, **(meta or {})},
            )
            if metrics is not None:
                part.meta_info["metrics"] = metrics
            parts.append(part)
        if dropped == "tensors" and cuts and data.batch is not None:
            parts[-1].batch = parts[-1].batch.select(*sorted(data.batch.keys())[1:])
        if dropped == "arrays" and cuts:
            names = sorted(data.non_tensor_batch)[1:]
            parts[-1].non_tensor_batch = {k: parts[-1].non_tensor_batch[k] for k in names}
        return module.DataProto.concat(parts)

    args = {"cuts": cuts, "dropped": dropped, "metrics": metrics, "meta": meta}
    return Operation("concat", args, run)


@st.composite
def _union(draw: st.DrawFn, batch: Any) -> Operation:
    """With a batch of other columns, and with parts of itself, equal or changed."""
    rows = draw(st.sampled_from([len(batch)] * 5 + [len(batch) + 1]))
    other: Recipe = draw(recipes(rows, ragged=False))
    shared = draw(st.sampled_from(["nothing", "equal", "changed"]))

    def run(module: Any, data: Any) -> Any:
        theirs = other.build(module.DataProto)
        tensors = set() if theirs.batch is None else set(theirs.batch.keys())
        if shared != "nothing" and len(data) == rows:
            for name in tensors & set(names_of(data)[0]):
                column = data.batch[name].clone()
                change = shared == "changed" and column.dtype != torch.bool
                theirs.batch[name] = column.neg() if change else column
            for name in set(theirs.non_tensor_batch) & set(names_of(data)[1]):
                theirs.non_tensor_batch[name] = data.non_tensor_batch[name].copy()
        if shared == "equal":
            theirs.meta_info.update(data.meta_info)
        return data.union(theirs)

    return Operation("union", {"other": other, "shared": shared}, run)


@st.composite
def _padding(draw: st.DrawFn, batch: Any) -> Operation:
    candidate = draw(st.sampled_from(["", "first", "last", "other"]))
    return _call(
        "padding", padding_size=draw(st.sampled_from([0, 1, 3, -1])), padding_candidate=candidate
    )


@st.composite
def _pad(draw: st.DrawFn, batch: Any) -> Operation:
    return _function(
        "pad_dataproto_to_divisor", size_divisor=draw(st.sampled_from([1, 2, 3, 4, 7, 11, 0]))
    )


@st.composite
def _unpad(draw: st.DrawFn, batch: Any) -> Operation:
    return _function("unpad_dataproto", pad_size=draw(st.sampled_from([0, 1, 2, 9])))


@st.composite
def _unfold_columns(draw: st.DrawFn, batch: Any) -> Operation:
    tensors, arrays, _ = names_of(batch)
    keys = draw(st.one_of(st.none(), _subset([*tensors, *arrays])))
    return _call(
        "unfold_column_chunks", n_split=draw(st.sampled_from([1, 2, 3, 0])), split_keys=keys
    )


@st.composite
def _fold(draw: st.DrawFn, batch: Any) -> Operation:
    groups = draw(st.sampled_from([n for n in range(1, 7) if len(batch) % n == 0] * 2 + [4, 0]))
    back = draw(st.booleans())

    def run(module: Any, data: Any) -> Any:
        folded = module.fold_batch_dim(data, groups)
        return module.unfold_batch_dim(folded) if back else folded

    return Operation("fold_batch_dim", {"groups": groups, "back": back}, run)


@st.composite
def _iterate(draw: st.DrawFn, batch: Any) -> Operation:
    args = {
        "mini_batch_size": draw(st.sampled_from([1, 2, 3, 4, 0])),
        "epochs": draw(st.sampled_from([1, 2])),
        "seed": draw(st.sampled_from([None, 3])),
        "dataloader_kwargs": draw(st.sampled_from([None, {"drop_last": True}, {"shuffle": True}])),
    }
    if args["seed"] is None:
        args["dataloader_kwargs"] = None

    def run(_: Any, data: Any) -> Any:
        return list(data.make_iterator(**args))

    return Operation("make_iterator", args, run)


def _plain(name: str, run: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    return lambda batch: st.just(Operation(name, {}, run))


def _printed(_: Any, data: Any) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        data.print_size("here")
    return text.getvalue()


Maker = Callable[[Any], st.SearchStrategy[Operation]]

MAKERS: dict[str, Maker] = {
    "select": _select,
    "pop": _pop,
    "rename": _rename,
    "rename badly": _rename_badly,
    "slice": _slice,
    "rows": _rows,
    "item": _item,
    "repeat": _repeat,
    "sample_level_repeat": _sample_level_repeat,
    "chunk": _chunk,
    "split": _split,
    "concat": _concat,
    "union": _union,
    "padding": _padding,
    "pad": _pad,
    "unpad": _unpad,
    "unfold_column_chunks": _unfold_columns,
    "fold": _fold,
    "make_iterator": _iterate,
    "to": _plain("to", lambda _, data: data.to("cpu")),
    "len": _plain("len", lambda _, data: len(data)),
    # Bounded: without columns verl's rows never end.
    "iter": _plain("iter", lambda _, data: list(itertools.islice(data, len(data) + 1))),
    "pickle": _plain("pickle", lambda _, data: pickle.loads(pickle.dumps(data))),
    "to_tensordict": _plain("to_tensordict", lambda _, data: data.to_tensordict()),
    "from_tensordict": _plain(
        "from_tensordict",
        lambda module, data: module.DataProto.from_tensordict(data.to_tensordict()),
    ),
    "get_data_info": _plain("get_data_info", lambda _, data: data.get_data_info()),
    "print_size": _plain("print_size", _printed),
    "is_padding_enabled": _plain("is_padding_enabled", lambda _, data: data.is_padding_enabled()),
    "collate_fn": _plain(
        "collate_fn",
        lambda module, data: module.collate_fn([data[row] for row in range(len(data))]),
    ),
    "serialize_tensordict": _plain(
        "serialize_tensordict",
        lambda module, data: module.deserialize_tensordict(module.serialize_tensordict(data.batch)),
    ),
    "check_consistency": _plain("check_consistency", lambda _, data: data.check_consistency()),
    "from_dict": _plain(
        "from_dict",
        lambda module, data: module.DataProto.from_dict(
            dict(data.batch.items()), dict(data.non_tensor_batch), dict(data.meta_info)
        ),
    ),
    "from_single_dict": _plain(
        "from_single_dict",
        lambda module, data: module.DataProto.from_single_dict(
            {**dict(data.batch.items()), **data.non_tensor_batch}, auto_padding=True
        ),
    ),
    "BatchData": _plain(
        "BatchData",
        lambda module, data: module.BatchData(module.BatchData(data).chunk(1)).concat(),
    ),
}

IN_PLACE = {"pop", "rename", "union", "reorder", "padding", "to"}
"""Operations that may change the batch they are given."""
