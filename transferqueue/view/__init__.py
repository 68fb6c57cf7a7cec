"""The batch: ``DataProto``, and the functions that verl has around it."""

from __future__ import annotations

from transferqueue.view.auto_padding import DataProtoConfig
from transferqueue.view.batch_data import BatchData
from transferqueue.view.collate import collate_fn
from transferqueue.view.dataproto import DataProto
from transferqueue.view.folding import fold_batch_dim, unfold_batch_dim
from transferqueue.view.gather import all_gather_data_proto
from transferqueue.view.item import DataProtoItem
from transferqueue.view.padding import pad_dataproto_to_divisor, unpad_dataproto
from transferqueue.view.ray_future import DataProtoFuture
from transferqueue.view.serialization import (
    deserialize_single_tensor,
    deserialize_tensordict,
    serialize_single_tensor,
    serialize_tensordict,
)
from transferqueue.view.union import union_numpy_dict, union_tensor_dict

__all__ = [
    "BatchData",
    "DataProto",
    "DataProtoConfig",
    "DataProtoFuture",
    "DataProtoItem",
    "all_gather_data_proto",
    "collate_fn",
    "deserialize_single_tensor",
    "deserialize_tensordict",
    "fold_batch_dim",
    "pad_dataproto_to_divisor",
    "serialize_single_tensor",
    "serialize_tensordict",
    "unfold_batch_dim",
    "union_numpy_dict",
    "union_tensor_dict",
    "unpad_dataproto",
]
