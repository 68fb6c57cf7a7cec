"""Which device the columns of a view are fetched on to, and in how many requests."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

import transferqueue as tq
from tests.view.lazy_fakes import FakeClient
from transferqueue.errors import DeviceMissing
from transferqueue.reads import FieldOn
from transferqueue.view.devices import place_of


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


def handle_of(client: FakeClient) -> tq.BatchHandle:
    return client.put(
        {
            "a": torch.arange(4),
            "b": torch.arange(4.0),
            "text": np.array(["p", "q", "r", "s"], object),
        }
    )


def test_a_view_that_was_moved_fetches_to_there_in_one_request(client: FakeClient) -> None:
    view = client.view(handle_of(client), ["a", "b", "text"]).to("cpu")
    assert view.batch["a"].tolist() == [0, 1, 2, 3]
    assert (client.devices, client.gets) == (["cpu"], [(4, ["a", "b", "text"])])
    assert view.batch.device == torch.device("cpu")


def test_without_a_word_it_is_the_clients_own_device(client: FakeClient) -> None:
    view = client.view(handle_of(client), ["a", "b", "text"])
    view.prefetch()
    assert (client.devices, len(client.gets)) == ([], 1)


def test_reads_on_a_device_come_apart_from_the_others_and_arrays_with_either(
    client: FakeClient,
) -> None:
    view = client.view(handle_of(client), [tq.on("cpu", "a"), "b", "text"])
    assert view.batch["a"].tolist() == [0, 1, 2, 3]
    assert client.gets == [(4, ["a", "text"]), (4, ["b"])]
    assert client.devices == ["cpu"]


def test_rows_of_it_and_joins_stay_on_the_device(client: FakeClient) -> None:
    view = client.view(handle_of(client), [tq.on("fake:somewhere:0", "a")])
    first, second = view.chunk(2)
    joined = tq.LazyDataProto.concat([second, first])
    assert joined.batch["a"].tolist() == [2, 3, 0, 1]
    assert client.devices == ["fake:somewhere:0"]


def test_to_a_device_that_only_torch_knows_torch_moves_what_came_to_the_host(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = client.get_columns

    def without(*arguments: Any, device: str | None = None, **options: Any) -> dict[str, Any]:
        if device not in (None, "cpu"):
            raise DeviceMissing(device, "nothing here drives it")
        return get(*arguments, device=device, **options)

    monkeypatch.setattr(client, "get_columns", without)
    view = client.view(handle_of(client), ["a"]).to("meta")
    assert view.batch["a"].device.type == "meta"
    assert client.devices == ["cpu"]
    other = client.view(handle_of(client), [tq.on("fake:somewhere:0", "a")])
    with pytest.raises(DeviceMissing):
        _ = other.batch["a"]


def test_places_are_torchs_devices_or_names_of_others() -> None:
    assert place_of("cpu") == torch.device("cpu")
    assert place_of(torch.device("meta")) == torch.device("meta")
    assert place_of("fake:/folder:1") == "fake:/folder:1"
    with pytest.raises(RuntimeError, match="nonsense"):
        place_of("nonsense:0")


def test_a_field_on_a_device_is_a_name_like_others() -> None:
    name = tq.on(torch.device("cuda", 1), "values")
    assert (name, name.device) == ("values", "cuda:1")
    again = pickle.loads(pickle.dumps(name))
    assert isinstance(again, FieldOn)
    assert (again, again.device) == ("values", "cuda:1")
    assert repr(name) == "on('cuda:1', 'values')"
    with pytest.raises(TypeError, match="name of a field"):
        tq.on("cuda", 3)  # type: ignore[arg-type]
