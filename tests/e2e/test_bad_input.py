"""What is asked in vain is refused with what may have been meant: by real processes."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

import transferqueue as tq
from transferqueue import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module")
def service() -> Iterator[tq.Service]:
    with tq.serve(shards=2, budget_bytes=64 << 20) as service:
        with tq.connect(service.address, timeout_s=15) as client:
            client.create_partition("train", tasks=["actor", "critic"], fields=["x", "rewards"])
            handle = client.put(
                {"x": torch.arange(4), "rewards": torch.zeros(4)},
                partition="train",
                tags={"policy_version": 3, "kind": "a"},
            )
            client.wait(handle)
        yield service


@pytest.fixture
def client(service: tq.Service) -> Iterator[tq.Client]:
    with tq.connect(service.address, timeout_s=15) as client:
        yield client


def claim(client: tq.Client, **arguments: Any) -> None:
    client.claim(**{"task": "actor", "fields": ["x"], "n": 1, "partition": "train", **arguments})


PARTITION = (errors.UnknownPartition, "no partition 'trian'; did you mean 'train'")
UNKNOWN: dict[str, tuple[Callable[[tq.Client], Any], type[Exception], str]] = {
    "held": (lambda c: c.held(partition="trian"), *PARTITION),
    "drop": (lambda c: c.drop_partition("trian"), *PARTITION),
    "dead letters": (lambda c: c.dead_letters("actor", "trian"), *PARTITION),
    "redrive": (lambda c: c.redrive("actor", partition="trian"), *PARTITION),
    "advance": (lambda c: c.advance_policy(4, partition="trian"), *PARTITION),
    "task": (
        lambda c: claim(c, task="acto"),
        errors.UnknownTask,
        "no task 'acto' in partition 'train'; did you mean 'actor'",
    ),
    "task of dead letters": (
        lambda c: c.dead_letters("critc", "train"),
        errors.UnknownTask,
        "did you mean 'critic'",
    ),
    "field of a claim": (
        lambda c: claim(c, fields=["rewardz"]),
        errors.UnknownField,
        "no field 'rewardz' in partition 'train'; did you mean 'rewards'",
    ),
    "field of a select": (
        lambda c: c.select("train", fields=["rewrds"]),
        errors.UnknownField,
        "did you mean 'rewards'",
    ),
    "tag of a condition": (
        lambda c: claim(c, where=tq.tag("policy_versoin") >= 3),
        errors.UnknownTag,
        "no tag 'policy_versoin' in partition 'train'; did you mean 'policy_version'",
    ),
    "tag of a sampler": (
        lambda c: claim(c, sampler=tq.samplers.FreshestFirst("policy_versio")),
        errors.UnknownTag,
        "did you mean 'policy_version'",
    ),
    "tag of an order": (
        lambda c: c.select("train", order_by="knd"),
        errors.UnknownTag,
        "did you mean 'kind'",
    ),
    "tag of another type": (
        lambda c: claim(c, where=tq.tag("kind") >= 3),
        errors.TagTypeMismatch,
        "'kind' is str",
    ),
    "sampler's tag is text": (
        lambda c: claim(c, sampler=tq.samplers.Weighted("kind")),
        errors.SamplerFailed,
        "tag 'kind' is str, not a number",
    ),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_a_name_that_is_not_known_is_refused_at_once_with_one_that_is(
    client: tq.Client, what: str
) -> None:
    call, error, message = UNKNOWN[what]
    before = client.status()["partitions"]["train"]
    started_s = time.monotonic()
    with pytest.raises(error, match=message):
        call(client)
    assert time.monotonic() - started_s < 10, "it waited for its deadline"
    after = client.status()["partitions"]
    assert after["train"]["tasks"] == before["tasks"]
    assert after["train"]["rows_handed_out"] == before["rows_handed_out"]
    assert "trian" not in after


def test_a_field_of_a_handle_that_is_not_known_names_near_ones(client: tq.Client) -> None:
    handle = client.select("train", fields=["x", "rewards"])
    with pytest.raises(errors.FieldsMissing, match=r"\(4 of 4 rows\).*did you mean 'rewards'"):
        client.get(handle, fields=["rewarsd"])


def test_what_may_still_come_is_waited_for_and_the_deadline_says_what_may_be_wrong(
    client: tq.Client,
) -> None:
    """A partition, field or tag that nobody declared may be another producer's, who is late."""
    client.wait(client.put({"score": torch.zeros(1)}, partition="open"))
    with pytest.raises(errors.NotReady, match="has had 'scroe', did you mean 'score'"):
        client.claim(task="t", fields=["scroe"], n=1, partition="open", timeout_s=0.2)
    with pytest.raises(errors.NotReady, match="partition 'opne', did you mean 'open'"):
        client.claim(task="t", fields=["score"], n=1, partition="opne", timeout_s=0.2)
    assert "opne" not in client.status()["partitions"], "nobody waits there any more"


# -- the end of a claim ---------------------------------------------------------------------------


def test_whoever_ends_a_claim_too_late_is_told_how_late(client: tq.Client) -> None:
    client.put({"x": torch.arange(3)}, partition="late")
    claim = client.claim(task="t", fields=["x"], n=3, partition="late", lease_s=0.3)
    deadline_s = time.monotonic() + 0.3
    time.sleep(1.0)
    calls: list[Callable[[], Any]] = [claim.ack, claim.give_back, lambda: claim.extend(10)]
    for call in calls:
        asked_s = time.monotonic()
        with pytest.raises(errors.LeaseExpired, match=r"ended \d+\.\d s ago") as caught:
            call()
        answered_s = time.monotonic()
        claim_id, late_s = caught.value.args
        assert claim_id == claim.claim_id
        assert asked_s - deadline_s - 0.1 <= late_s <= answered_s - deadline_s + 0.5


def test_a_claim_ends_once(client: tq.Client) -> None:
    client.put({"x": torch.arange(2)}, partition="once")
    acked = client.claim(task="t", fields=["x"], n=1, partition="once")
    acked.ack()
    given_back = client.claim(task="t", fields=["x"], n=1, partition="once")
    given_back.give_back()
    for claim in (acked, given_back):
        for call in (claim.ack, claim.give_back):
            with pytest.raises(errors.AlreadyAcked, match=f"claim {claim.claim_id} was already"):
                call()
    counts = client.status()["partitions"]["once"]["tasks"]["t"]
    assert (counts["acked"], counts["free"]) == (1, 1)


# -- more than can ever be ready ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_rows": 8}, "a claim of 9 rows, but max_rows lets in 8 at once"),
        (
            {"samples_per_insert": {"ratio": 1.0, "slack_rows": 4.0}},
            "a claim of 9 rows, but samples_per_insert has 2 x slack_rows = 8",
        ),
    ],
    ids=["rows", "ratio"],
)
def test_more_than_the_quota_ever_lets_be_ready_is_refused_at_once(
    client: tq.Client, settings: dict[str, Any], message: str
) -> None:
    name = f"too many {next(iter(settings))}"
    client.create_partition(name, **settings)
    started_s = time.monotonic()
    with pytest.raises(errors.ClaimTooLarge, match=message):
        client.claim(task="t", fields=["x"], n=9, partition=name, timeout_s=60)
    assert time.monotonic() - started_s < 10


def test_more_bytes_than_the_quota_ever_holds_are_refused_when_it_is_full(
    service: tq.Service, client: tq.Client
) -> None:
    """How many bytes n rows will have is known when rows are there and no more fit."""
    client.create_partition("bytes", max_bytes=4 * 800)
    failed: list[Exception] = []

    def claim() -> None:
        with tq.connect(service.address) as other:
            try:
                other.claim(task="t", fields=["x"], n=5, partition="bytes", timeout_s=60)
            except errors.ClaimTooLarge as error:
                failed.append(error)

    claiming = threading.Thread(target=claim)
    claiming.start()
    for _ in range(4):
        client.put({"x": torch.zeros(1, 100, dtype=torch.int64)}, partition="bytes")
    with pytest.raises(errors.QuotaExceeded):
        client.put({"x": torch.zeros(1, 100, dtype=torch.int64)}, partition="bytes", timeout_s=1.0)
    claiming.join(10)
    assert "5 rows of 800 bytes is 4,000 bytes, but max_bytes is 3,200" in str(failed[0])


@pytest.mark.parametrize(
    ("sampler", "n", "message"),
    [
        (tq.samplers.Groups(4), 6, "n=6 is no multiple of group size 4; ask for 4 or 8"),
        (tq.samplers.LengthBalanced(4), 6, "no multiple of dp_size=4; ask for 8"),
        (tq.samplers.RankAware(2, 2), 4, "which rank claims"),
        (None, 0, "n must be an int of at least 1"),
        (None, -3, "n must be an int of at least 1"),
    ],
)
def test_a_size_that_no_rows_could_satisfy_is_refused_at_once(
    client: tq.Client, sampler: Any, n: int, message: str
) -> None:
    tags = {"group": 1, "length": 1}
    client.wait(client.put({"x": torch.arange(8)}, partition="sizes", tags=tags))
    with pytest.raises(errors.InvalidInput, match=message):
        client.claim(task="t", fields=["x"], n=n, partition="sizes", sampler=sampler)
