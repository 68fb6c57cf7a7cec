"""A rank of those that share reads which fails before it comes to them."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from transferqueue.dispatch.opening import open_view
from transferqueue.errors import ServiceUnreachable
from transferqueue.fields import FieldSpec
from transferqueue.handle import BatchHandle
from transferqueue.reads import on


def handle() -> BatchHandle:
    return BatchHandle(
        service_id="s", partition="p", uids=[1, 2], fields={"x": FieldSpec(dtype="float32")}
    )


@pytest.mark.parametrize(
    ("reads", "is_told"), [(["x"], True), (["late"], True), ([on("cpu", "x")], False), ([], False)]
)
def test_the_others_are_told_where_they_wait(reads: list[str], *, is_told: bool) -> None:
    client, shared = Mock(), Mock()
    error = ServiceUnreachable("tcp://nowhere", "hello", 1.0)
    client.wait.side_effect = client.view.side_effect = error
    with pytest.raises(ServiceUnreachable):
        open_view(client, handle(), reads=reads, optional=["unknown"], shared=shared)
    assert shared.stay_out.call_args_list == ([((error,),)] if is_told else [])
    assert not shared.fetch.called
