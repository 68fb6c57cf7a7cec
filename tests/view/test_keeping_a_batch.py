"""Pickles, files and the plain-array form of tensors."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from transferqueue.errors import UnsupportedTensor
from transferqueue.view import (
    DataProto,
    deserialize_single_tensor,
    deserialize_tensordict,
    serialize_single_tensor,
    serialize_tensordict,
)

if TYPE_CHECKING:
    from pathlib import Path

Make = Callable[..., DataProto]


def copied(data: Any, protocol: int = 5) -> Any:
    return pickle.loads(pickle.dumps(data, protocol))


def tensors_of(**columns: torch.Tensor) -> DataProto:
    rows = next(iter(columns.values())).shape[0]
    return DataProto(TensorDict(dict(columns), [rows]))


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_every_kind_of_column_survives(batch: DataProto, protocol: int) -> None:
    back = copied(batch, protocol)
    assert back == batch
    assert type(back) is DataProto
    assert list(back.batch.keys()) == list(batch.batch.keys())
    assert back.batch["response"].layout == torch.jagged


@pytest.mark.parametrize(
    "data",
    [
        DataProto(),
        DataProto(meta_info={"m": [1, (2,)]}),
        DataProto(None, {"o": np.arange(3)}),
        DataProto(TensorDict({}, [3])),
        DataProto(TensorDict({}, [0])),
        DataProto(TensorDict({}, [3], device="cpu"), {"o": np.arange(3)}),
        tensors_of(x=torch.zeros(0, 4)),
        tensors_of(x=torch.zeros(3, 0)),
        tensors_of(x=torch.zeros(0, 2, dtype=torch.bfloat16), y=torch.zeros(0)),
        tensors_of(x=torch.arange(12.0).view(3, 4).t()),
        tensors_of(x=torch.arange(12.0).view(3, 4)[:, ::2]),
        tensors_of(x=torch.arange(3).expand(2, 3)),
        tensors_of(x=torch.zeros(2, 4)[:, 1:2][:1]),
        tensors_of(x=torch.tensor([1 + 2j]).conj()),
        tensors_of(x=torch.tensor([1 + 2j]).conj().imag),
    ],
)
def test_every_batch_survives(data: DataProto) -> None:
    back = copied(data)
    assert back == data
    assert len(back) == len(data)
    assert (back.batch is None) == (data.batch is None)
    if data.batch is not None:
        assert back.batch.device == data.batch.device
        assert back.batch.batch_size == data.batch.batch_size


DTYPES = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16",
    "bfloat16", "float32", "float64", "complex32", "complex64", "complex128", "float8_e4m3fn",
    "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (0,), (2, 0, 3)])
def test_every_dtype_and_shape_survives(name: str, shape: tuple[int, ...]) -> None:
    dtype = getattr(torch, name)
    size = int(np.prod(shape)) * dtype.itemsize
    tensor = torch.arange(size, dtype=torch.uint8).clamp(max=1).view(-1).view(dtype).view(shape)
    encoded = serialize_single_tensor(tensor)
    assert encoded[:2] == (name, shape)
    assert encoded[2].dtype == np.uint8
    assert encoded[2].nbytes == size
    for data in (encoded[2], encoded[2].tobytes(), bytearray(encoded[2]), memoryview(encoded[2])):
        back = deserialize_single_tensor((name, shape, data))
        assert (back.dtype, tuple(back.shape)) == (dtype, shape)
        assert back.flatten().view(torch.uint8).tolist() == encoded[2].tolist()


def test_one_cell_with_a_stride_survives() -> None:
    tensor = torch.arange(4.0)[::2][1:]
    assert tensor.stride() == (2,)
    assert deserialize_single_tensor(serialize_single_tensor(tensor)).tolist() == [2.0]


def test_a_slice_carries_its_own_rows_only() -> None:
    parent = DataProto(
        TensorDict({"x": torch.zeros(10_000, 100), "y": torch.zeros(10_000, 8)[:, 4:]}, [10_000]),
        {"a": np.zeros((10_000, 100))},
    )
    for part in (parent[:1], parent[[7]], parent[5:6], parent.chunk(10_000)[3]):
        assert len(pickle.dumps(part)) < 4_000
        assert copied(part) == part


def test_a_slice_of_a_jagged_column_carries_its_own_rows_only(
    jagged: Callable[..., torch.Tensor],
) -> None:
    data = tensors_of(x=jagged(*[[float(row)] * 1000 for row in range(100)]))
    assert len(pickle.dumps(data)) > 400_000
    assert len(pickle.dumps(data[3:4])) < 8_000
    assert copied(data[3:4]) == data[3:4]


def big_and_its_slice() -> tuple[torch.Tensor, torch.Tensor]:
    big = torch.zeros(100_000)
    return big, big[10:20]


def test_tensors_inside_objects_and_meta_info_carry_themselves_only(
    objects: Callable[..., np.ndarray], jagged: Callable[..., torch.Tensor]
) -> None:
    _, part = big_and_its_slice()
    ragged = tensors_of(x=jagged(*[[1.0] * 1000] * 100))[:1].batch["x"]
    nested = objects({"a": [part], "b": (part, "x")}, objects(part))
    data = DataProto(
        None,
        {"o": nested, "j": objects(ragged, TensorDict({"t": part}, [10]))},
        {"m": {"k": [part]}, "plain": [1, "x"]},
    )
    assert len(pickle.dumps(data)) < 20_000
    back = copied(data)
    assert back == data
    assert type(back.non_tensor_batch["o"][0]["b"]) is tuple


def test_a_row_taken_by_its_number_does_not_carry_the_batch(
    objects: Callable[..., np.ndarray],
) -> None:
    cells = torch.arange(10_000)
    parent = DataProto.from_dict(
        tensors={"x": torch.zeros(100, 1000), "ids": torch.arange(100)},
        non_tensors={"o": objects(*({"t": cells[i : i + 1]} for i in range(100)))},
        meta_info={"first": cells[:1]},
    )
    row = parent[7]
    assert len(pickle.dumps(row)) < 10_000
    back = copied(row)
    assert back.batch.batch_size == torch.Size([])
    assert int(back.batch["ids"]) == 7
    assert back.non_tensor_batch["o"] == {"t": torch.tensor([7])}
    assert back.meta_info == {"first": torch.tensor([0])}
    shared = copy.copy(row)
    shared.batch["ids"].fill_(-1)
    assert int(parent.batch["ids"][7]) == -1


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_each_row_of_every_kind_survives(batch: DataProto, protocol: int) -> None:
    for row in batch:
        back = copied(row, protocol)
        assert back.meta_info.keys() == row.meta_info.keys()
        assert back.batch.keys() == row.batch.keys()
        for name, value in row.batch.items():
            if isinstance(value, torch.Tensor):
                assert back.batch[name].dtype == value.dtype
                assert torch.equal(back.batch[name], value)


def test_what_has_no_parent_is_pickled_as_it_is(objects: Callable[..., np.ndarray]) -> None:
    whole = torch.zeros(10)
    cells = objects({"a": whole}, {"a": whole})
    data = DataProto(None, {"o": cells, "s": objects("x", None)}, {"m": [whole]})
    state = data.__getstate__()
    assert state["non_tensor_batch"] is data.non_tensor_batch
    assert state["meta_info"] is data.meta_info
    back = copied(data)
    assert back.non_tensor_batch["o"][0]["a"] is back.non_tensor_batch["o"][1]["a"]


def test_pickling_changes_nothing(objects: Callable[..., np.ndarray]) -> None:
    _, part = big_and_its_slice()
    cell = {"a": part}
    data = DataProto(None, {"o": objects(cell)})
    pickle.dumps(data)
    assert data.non_tensor_batch["o"][0] is cell
    assert cell["a"] is part


def test_values_that_contain_themselves_pickle(objects: Callable[..., np.ndarray]) -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    back = copied(DataProto(None, {"o": objects(loop)}, {"m": loop}))
    assert back.meta_info["m"][1] is back.meta_info["m"]


def test_out_of_band_buffers_move_no_bytes_and_are_never_written_to() -> None:
    data = tensors_of(x=torch.arange(1000.0), y=torch.arange(6).view(3, 2).repeat(334, 1)[:1000])
    buffers: list[pickle.PickleBuffer] = []
    small = pickle.dumps(data, protocol=5, buffer_callback=buffers.append)
    assert len(small) < 1500
    assert len(buffers) == 2
    sent = buffers[0].raw()
    assert np.frombuffer(sent, np.uint8).ctypes.data == data.batch["x"].data_ptr()
    read_only = [bytes(buffer.raw()) for buffer in buffers]
    received = pickle.loads(small, buffers=read_only)
    received.batch["x"].add_(1)
    assert received.batch["x"][0] == 1
    assert np.frombuffer(read_only[0], np.float32)[0] == 0
    writable = [bytearray(one) for one in read_only]
    received = pickle.loads(small, buffers=writable)
    received.batch["x"].add_(1)
    assert np.frombuffer(writable[0], np.float32)[0] == 1


def test_a_copy_can_be_edited_in_place(batch: DataProto, make: Make) -> None:
    back = copied(batch)
    back.batch["ids"].add_(1)
    back.non_tensor_batch["length"] += 1
    assert back.batch["ids"][0, 0] == 1
    assert batch == make()


def test_a_batch_may_hold_batches_and_plain_objects() -> None:
    inner = TensorDict(
        {"x": torch.ones(100, 2)[:2], "deep": TensorDict({"y": torch.ones(2)}, [2])}, [2]
    )
    stack = NonTensorStack.from_list([NonTensorData("a"), NonTensorData([1])])
    data = DataProto(TensorDict({"inner": inner, "s": stack, "one": NonTensorData("k")}, [2]))
    back = copied(data)
    assert back == data
    assert back.batch["inner", "deep", "y"].tolist() == [1, 1]
    assert back.batch.get("s").tolist() == ["a", [1]]
    assert back.batch.get("one").data == "k"


def test_a_subclass_and_its_name_survive(batch: DataProto) -> None:
    back = copied(Kept(batch.batch, batch.non_tensor_batch, batch.meta_info))
    assert type(back) is Kept
    assert back == batch


class Kept(DataProto):
    pass


def test_a_batch_from_a_gpu_that_is_not_here_comes_to_the_cpu() -> None:
    encoded = serialize_tensordict(TensorDict({"x": torch.ones(2)}, [2], device="cpu"))
    for name in ("cuda:7", "cuda:99", "xpu"):
        back = deserialize_tensordict((encoded[0], name, encoded[2]))
        assert back.device == torch.device("cpu")
        assert back["x"].device == torch.device("cpu")


# ---- files


def test_a_file_gives_the_batch_back(batch: DataProto, tmp_path: Path) -> None:
    for path in (tmp_path / "batch.pkl", str(tmp_path / "other.pkl")):
        batch.save_to_disk(path)
        assert DataProto.load_from_disk(path) == batch


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.pkl"
    path.write_bytes(pickle.dumps({"batch": 1}))
    with pytest.raises(TypeError, match="holds a dict"):
        DataProto.load_from_disk(path)
    with pytest.raises(FileNotFoundError):
        DataProto.load_from_disk(tmp_path / "nowhere")


# ---- plain arrays


def test_the_encoded_array_is_the_tensors_own_memory() -> None:
    tensor = torch.arange(4.0)
    assert serialize_single_tensor(tensor)[2].ctypes.data == tensor.data_ptr()


def test_what_is_read_has_memory_of_its_own(jagged: Callable[..., torch.Tensor]) -> None:
    batch = TensorDict({"x": torch.zeros(2), "j": jagged([1.0], [2.0])}, [2])
    encoded = serialize_tensordict(batch)
    back = deserialize_tensordict(encoded)
    back["x"].add_(1)
    back["j"].values().add_(1)
    back["j"].offsets().add_(1)
    assert batch["x"].sum() == 0
    assert batch["j"].values().tolist() == [1.0, 2.0]
    assert batch["j"].offsets().tolist() == [0, 1, 2]
    data = bytearray(4)
    deserialize_single_tensor(("float32", (1,), data)).add_(1)
    assert data == bytearray(4)


@pytest.mark.parametrize(
    "encoded",
    [
        ("nope", (1,), b"1"),
        ("nn", (1,), b"1"),
        ("float32", (1,), b"123"),
        ("float32", (2,), b"1234"),
        ("float32", (1,), b"12345678"),
        ("float32", (), b""),
        ("float32", (0,), b"1"),
    ],
)
def test_what_does_not_add_up_is_a_value_error(encoded: Any) -> None:
    with pytest.raises(ValueError, match=encoded[0]):
        deserialize_single_tensor(encoded)


@pytest.mark.parametrize("parts", [0, 1, 5])
def test_an_encoded_column_has_a_known_form(parts: int) -> None:
    with pytest.raises(ValueError, match=f"got {parts}"):
        deserialize_tensordict(((1,), None, {"x": (1,) * parts}))


def test_verls_form_of_a_jagged_column_is_read() -> None:
    rows = [serialize_single_tensor(torch.arange(n)) for n in (1, 2)]
    back = deserialize_tensordict(((2,), None, {"x": ("jagged", rows)}))
    assert [row.tolist() for row in back["x"].unbind()] == [[0], [0, 1]]


def test_layouts_without_plain_cells_are_refused() -> None:
    with pytest.raises(UnsupportedTensor, match="dense"):
        serialize_single_tensor(torch.zeros(2, 2).to_sparse())
    with pytest.raises(UnsupportedTensor, match="'ids'"):
        pickle.dumps(tensors_of(ids=torch.zeros(2, 2).to_sparse()))


def test_gradients_are_left_behind() -> None:
    tensor = torch.ones(2, requires_grad=True) * 2
    assert not deserialize_single_tensor(serialize_single_tensor(tensor)).requires_grad


def test_tensors_of_other_layouts_inside_objects_are_pickled_as_they_are(
    objects: Callable[..., np.ndarray],
) -> None:
    sparse = torch.eye(3).to_sparse()
    data = DataProto(None, {"o": objects([sparse])})
    assert data.__getstate__()["non_tensor_batch"]["o"][0][0] is sparse
    assert copied(data) == data
