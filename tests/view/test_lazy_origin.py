"""A view of a handle makes its columns when somebody looks, and is then like any other."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.view.lazy_fakes import FakeClient, objects
from transferqueue.errors import UnknownColumn

if TYPE_CHECKING:
    from transferqueue.view.lazy_dataproto import LazyDataProto


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def view(client: FakeClient) -> LazyDataProto:
    return client.view(client.put({"ids": torch.arange(6), "uid": objects(*"abcdef")}))


def is_unlooked_at(view: LazyDataProto) -> bool:
    return not {"_batch", "non_tensor_batch", "_samples", "meta_info"} & set(vars(view))


def test_nothing_is_made_of_a_view_that_nobody_looks_at(view: LazyDataProto) -> None:
    assert is_unlooked_at(view)
    assert not view.fetches
    assert len(view) == 6
    assert not is_unlooked_at(view)


def test_a_read_that_is_not_there_is_told_at_once(client: FakeClient) -> None:
    handle = client.put({"ids": torch.arange(2)})
    with pytest.raises(UnknownColumn):
        client.view(handle, reads=["idz"])


def test_what_is_assigned_before_anybody_has_looked_stays(view: LazyDataProto) -> None:
    view.non_tensor_batch = {"mine": np.arange(6)}
    assert sorted(view.batch.keys()) == ["ids"]
    assert sorted(view.non_tensor_batch) == ["mine"]
    view.meta_info = {"step": 1}
    assert view.meta_info == {"step": 1}


def test_a_batch_that_is_assigned_first_stays_beside_the_arrays(view: LazyDataProto) -> None:
    view.batch = None
    assert view.non_tensor_batch["uid"].tolist() == [*"abcdef"]
    assert view.batch is None


def test_meta_info_is_the_views_own(client: FakeClient) -> None:
    handle = client.put({"ids": torch.arange(2)}).with_meta(step=1)
    view = client.view(handle)
    view.meta_info["step"] = 2
    assert view.meta_info == {"step": 2}
    assert client.view(handle).meta_info == {"step": 1}


def test_a_pickle_of_an_unlooked_at_view_has_its_columns(view: LazyDataProto) -> None:
    there = pickle.loads(pickle.dumps(view))
    assert there.handle == view.handle


def test_a_column_that_is_let_go_of_is_gone(view: LazyDataProto) -> None:
    column = weakref.ref(view.batch["ids"])
    assert column() is not None
    view.pop(batch_keys=["ids"])
    gc.collect()
    assert column() is None
