"""A schema that goes with its partition, so that every client stores and reads columns alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch

import transferqueue as tq
from transferqueue.errors import InvalidInput, UnknownPartition
from transferqueue.view.schema_plain import from_plain, to_plain

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS, PROMPT, RESPONSE = 8, 6, 10

SCHEMA = tq.schema.Schema(
    store={
        "input_ids": tq.schema.Narrow(shown="int64", stored="int32"),
        "attention_mask": tq.schema.Bits(length=PROMPT + RESPONSE),
        "responses": tq.schema.Ragged(mask="response_mask", length=RESPONSE, stored="int32"),
        "values": tq.schema.RaggedUnder(mask="attention_mask"),
    },
    derive={"position_ids": tq.derived.Positions("attention_mask")},
)


@pytest.fixture(scope="module")
def service() -> Iterator[tq.Service]:
    with tq.serve(budget_bytes=16 << 20) as service:
        yield service


def batch() -> tq.DataProto:
    lengths = torch.arange(1, ROWS + 1).unsqueeze(1)
    mask = (torch.arange(RESPONSE) < lengths).long()
    attention = torch.cat([torch.ones(ROWS, PROMPT, dtype=torch.int64), mask], dim=1)
    ids = torch.randint(1, 50_000, attention.shape) * attention
    return tq.DataProto.from_dict(
        {
            "input_ids": ids,
            "attention_mask": attention,
            "position_ids": (attention.cumsum(-1) - 1).clamp(min=0),
            "responses": ids[:, PROMPT:],
            "response_mask": mask,
            "values": torch.randn(attention.shape) * attention,
        }
    )


def test_another_client_finds_the_schema_with_the_partition(service: tq.Service) -> None:
    whole = batch()
    with tq.connect(service.address) as writer, tq.connect(service.address) as reader:
        writer.create_partition("train", schema=SCHEMA)
        schema = writer.schema("train")
        handle = writer.put(schema.shrink(whole), partition="train")
        assert set(handle.fields) == {"input_ids", "attention_mask", "responses", "values"}

        assert reader.schema("train") == SCHEMA
        seen = reader.schema("train").grow(reader.view(handle))
        for name in whole.batch.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
            assert torch.equal(seen.batch[name], whole.batch[name]), name
        got = sum(field["got_bytes"] for field in reader.stats().values())
        assert got < sum(column.nbytes for column in whole.batch.values()) / 3


async def test_it_comes_by_the_asynchronous_face_too(service: tq.Service) -> None:
    async with await tq.connect_async(service.address) as client:
        await client.create_partition("async", schema=SCHEMA)
        assert await client.schema("async") == SCHEMA


def test_a_partition_without_one_has_none(service: tq.Service) -> None:
    with tq.connect(service.address) as client:
        client.create_partition("plain")
        assert client.schema("plain") is None
        with pytest.raises(UnknownPartition):
            client.schema("nowhere")


def test_the_same_partition_with_another_schema_is_refused(service: tq.Service) -> None:
    with tq.connect(service.address) as client:
        client.create_partition("once", schema=SCHEMA)
        client.create_partition("once", schema=SCHEMA)
        with pytest.raises(InvalidInput, match="schema"):
            client.create_partition("once", schema=tq.schema.Schema())


def test_a_schema_comes_back_from_plain_values_as_it_was() -> None:
    assert from_plain(to_plain(SCHEMA)) == SCHEMA


@dataclass(frozen=True, slots=True)
class Doubled:
    of: str

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.of,)

    def compute(self, *columns: torch.Tensor) -> torch.Tensor:
        return columns[0] * 2


def test_code_of_the_callers_own_is_not_sent() -> None:
    with pytest.raises(InvalidInput, match=r"'twice'.*Doubled"):
        to_plain(tq.schema.Schema(derive={"twice": Doubled("once")}))


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        ({"stor": {}}, "stor"),
        ({"store": {"x": ["Narow", {}]}}, "Narrow"),
        ({"store": {"x": ["Narrow", {"shown": "int64"}]}}, "'x'.*stored"),
        ({"store": {"x": 3}}, "'x'"),
    ],
)
def test_plain_values_that_are_no_schema_are_refused_by_column(plain: object, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        from_plain(plain)
