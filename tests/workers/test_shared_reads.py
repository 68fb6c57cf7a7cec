"""One rank fetches for all that share its part, and sends the columns to them."""

from __future__ import annotations

from multiprocessing import resource_tracker
from typing import TYPE_CHECKING

import pytest
import torch

import transferqueue as tq
from tests.workers.stage_workers import Replica
from transferqueue.errors import FieldsMissing
from workers import LocalWorkerGroup, Mesh, WorkerFailed

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", autouse=True)
def _resource_tracker() -> None:
    """A process that multiprocessing starts with the first child and keeps."""
    resource_tracker.ensure_running()


@pytest.fixture
def client() -> Iterator[tq.Client]:
    with tq.serve(budget_bytes=64 << 20) as service, tq.connect(service.address) as client:
        yield client


@pytest.mark.slow
def test_the_columns_are_fetched_once_and_are_every_ranks_own(client: tq.Client) -> None:
    ragged = [torch.arange(float(length)) for length in (1, 3, 2)]
    handle = client.put(
        {
            "ids": torch.arange(6).reshape(3, 2),
            "ragged": torch.nested.nested_tensor(ragged, layout=torch.jagged),
            "small": torch.tensor([0.5, 1.5, 2.5], dtype=torch.bfloat16),
            "text": ["a", {"b": (1, None)}, "c"],
        }
    )
    with LocalWorkerGroup(Replica, mesh=Mesh.of(tp=2), processes=True) as group:
        group.join()
        first, second = group.read(handle)
        assert first == second
        assert first == (
            [[0, 1], [2, 3], [4, 5]],
            [row.tolist() for row in ragged],
            [0.5, 1.5, 2.5],
            ["a", {"b": (1, None)}, "c"],
        )
        assert group.read(handle)[1] == second, "an edit in place is its rank's own"
        assert group.read_alone(handle) == [0.5, 1.5, 2.5], "nobody else is at it"
        assert group.report().of_method("read")["ids"].read_bytes == 2 * 3 * 2 * 8

        with pytest.raises(WorkerFailed) as error:
            group.read_what_is_not_there(handle)
        assert isinstance(error.value.cause, FieldsMissing)
        assert "rank 1 failed too" in error.value.__notes__[0]
        with pytest.raises(WorkerFailed, match="MemoryError: no room") as error:
            group.fetch_without_room()
        assert "rank 1 failed too" in error.value.__notes__[0]
        assert "no room (on the rank that fetches for this one)" in error.value.__notes__[0]
        for rank in (0, 1):
            with pytest.raises(WorkerFailed, match=f"rank {rank}.*OSError: no way") as error:
                group.fail_before(rank)
            has_told = "rank 1 failed too" in "".join(getattr(error.value, "__notes__", ()))
            assert has_told == (rank == 0), "the other one waits for nobody"
        assert len(group.read(handle[:0])) == 2
        group.leave()
