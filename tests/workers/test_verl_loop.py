"""A loop written as verl's ``fit()`` is gives the same with views as with whole batches.

Prompts are repeated, responses to them become samples of their own, and every later stage reads
columns of both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import transferqueue as tq
from transferqueue.dispatch import Padding
from transferqueue.errors import DuplicateRows, FieldsMissing, InvalidInput
from workers import Dispatch, LocalWorkerGroup, Worker, WorkerFailed, register

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Make = Callable[[dict[str, Any]], tq.DataProto]

NUM_PROMPTS, REPEATS = 5, 3


class Actor(Worker):
    @register(Dispatch.HANDLE, reads=["prompts"], writes=["responses", "response_mask"])
    def generate_sequences(self, data: tq.DataProto) -> dict[str, torch.Tensor]:
        """Each row of a repeated prompt gets an answer of its own."""
        first = data.batch["prompts"][:, 0]
        same = first[:, None] == first[None, :]
        number = torch.tril(same).sum(1)
        responses = data.batch["prompts"] * 10 + number[:, None]
        return {"responses": responses, "response_mask": torch.ones_like(responses)}

    @register(Dispatch.HANDLE, reads=["prompts", "responses"], writes=["old_log_probs"])
    def compute_log_prob(self, data: tq.DataProto) -> tq.DataProto:
        logs = -(data.batch["prompts"] + data.batch["responses"]).float() / 100
        return tq.DataProto.from_dict(tensors={"old_log_probs": logs})

    @register(
        Dispatch.HANDLE,
        reads=["responses", "response_mask", "old_log_probs", "advantages"],
        optional=["uid"],
    )
    def update_actor(self, data: tq.DataProto) -> tq.DataProto:
        loss = (data.batch["advantages"] * data.batch["old_log_probs"]).mean()
        seen = sorted({*data.batch.keys(), *data.non_tensor_batch})
        return tq.DataProto(meta_info={"metrics": {"loss": loss.item(), "seen": seen}})


class Reward(Worker):
    @register(Dispatch.HANDLE, reads=["responses", "question"], writes=["token_level_scores"])
    def compute_rm_score(self, data: tq.DataProto) -> dict[str, torch.Tensor]:
        truth = torch.tensor([float(text[1:]) for text in data.non_tensor_batch["question"]])
        return {"token_level_scores": data.batch["responses"].float() / 50 + truth[:, None]}

    @register(Dispatch.HANDLE, reads=["responses"])
    def best(self, data: tq.DataProto) -> Any:
        """Some of the rows that it got."""
        return data[data.batch["responses"][:, 0].numpy() % 2 == 0]

    @register(Dispatch.HANDLE.padded(Padding.EQUAL), reads=["responses"])
    def best_of_padded(self, data: tq.DataProto) -> Any:
        return data[data.batch["responses"][:, 0].numpy() % 2 == 0]

    @register(Dispatch.ONE_TO_ALL, blocking=False)
    def number(self) -> int:
        return 5

    @register(Dispatch.HANDLE, reads=["prompts"])
    def new_samples(self, data: tq.DataProto) -> Any:
        put = self.client.put({"doubled": data.batch["prompts"] * 2}, partition="made")
        return self.client.view(put)


def compute_advantage(batch: tq.DataProto) -> tq.DataProto:
    scores = batch.batch["token_level_scores"].sum(-1)
    groups = batch.non_tensor_batch["uid"]
    advantages = torch.empty_like(scores)
    for group in set(groups):
        of_group = torch.from_numpy(groups == group)
        advantages[of_group] = scores[of_group] - scores[of_group].mean()
    batch.batch["advantages"] = advantages[:, None] * batch.batch["response_mask"]
    return batch


def fit(make: Make, actor: Any, reward: Any) -> tuple[tq.DataProto, Any]:
    """The lines of verl's trainer. It does not know what kind of batch it has."""
    questions = np.array([f"q{k}" for k in range(NUM_PROMPTS)], dtype=object)
    prompts = torch.arange(NUM_PROMPTS * 4).reshape(NUM_PROMPTS, 4)
    batch = make({"prompts": prompts, "question": questions})
    batch.non_tensor_batch["uid"] = np.array([f"u{k}" for k in range(NUM_PROMPTS)], dtype=object)
    gen_batch = batch.pop(batch_keys=["prompts"])
    gen_batch = gen_batch.repeat(repeat_times=REPEATS, interleave=True)
    gen_output = actor.generate_sequences(gen_batch)
    batch = batch.repeat(repeat_times=REPEATS, interleave=True)
    batch = batch.union(gen_batch).union(gen_output)
    batch = batch.union(reward.compute_rm_score(batch))
    batch = batch.union(actor.compute_log_prob(batch))
    batch = compute_advantage(batch)
    return batch, actor.update_actor(batch)


@pytest.fixture(scope="module")
def service() -> Iterator[tq.Service]:
    with tq.serve(shards=2, budget_bytes=64 << 20) as service:
        yield service


@pytest.fixture
def client(service: tq.Service) -> Iterator[tq.Client]:
    with tq.connect(service.address) as client:
        yield client


Groups = tuple[LocalWorkerGroup, LocalWorkerGroup]


def groups(service: tq.Service, *, fat: bool = False, processes: bool = False) -> Iterator[Groups]:
    with (
        LocalWorkerGroup(Actor, 2, service=service, fat=fat, processes=processes) as actor,
        LocalWorkerGroup(Reward, 2, service=service, fat=fat, processes=processes) as reward,
    ):
        yield actor, reward


@pytest.fixture
def by_handle(service: tq.Service) -> Iterator[Groups]:
    yield from groups(service)


def viewed(client: tq.Client) -> Make:
    return lambda columns: client.view(client.put(columns, partition="train"))


@pytest.mark.parametrize("processes", [False, True])
def test_the_loop_is_the_same_on_views(
    client: tq.Client, service: tq.Service, *, processes: bool
) -> None:
    for whole in groups(service, fat=True):
        eager, eager_out = fit(tq.DataProto.from_single_dict, *whole)
    for by_handle in groups(service, processes=processes):
        batch, out = fit(viewed(client), *by_handle)
    assert isinstance(batch, tq.LazyDataProto)
    assert len(batch) == len(eager) == NUM_PROMPTS * REPEATS
    for name, column in eager.batch.items():
        assert torch.equal(batch.batch[name], column), name
    for name, column in eager.non_tensor_batch.items():
        assert batch.non_tensor_batch[name].tolist() == column.tolist(), name
    assert out.meta_info["metrics"]["loss"] == eager_out.meta_info["metrics"]["loss"]
    assert "question" in out.meta_info["metrics"]["seen"][0], "columns of both samples are there"


def test_responses_are_samples_of_their_own_and_prompts_are_stored_once(
    client: tq.Client, by_handle: Groups
) -> None:
    batch, _ = fit(viewed(client), *by_handle)
    made, prompts = batch.handle, batch.beside[0]
    assert len(set(made.uids.tolist())) == NUM_PROMPTS * REPEATS
    assert len(set(prompts.uids.tolist())) == NUM_PROMPTS
    assert {"responses", "advantages", "old_log_probs"} <= set(made.fields)
    assert {"prompts", "question", "uid"} <= {*prompts.fields, *made.fields}
    assert made.partition == "train"


def test_rows_do_not_divide_and_parts_are_empty(client: tq.Client, by_handle: Groups) -> None:
    actor, reward = by_handle
    question = np.array(["q7"], dtype=object)
    view = viewed(client)({"prompts": torch.arange(4).reshape(1, 4), "question": question})
    for times in (2, 3):
        repeated = view.repeat(times)
        answered = repeated.union(actor.generate_sequences(repeated))
        scored = answered.union(reward.compute_rm_score(answered))
        responses = scored.batch["responses"]
        assert (responses // 10).tolist() == [[0, 1, 2, 3]] * times
        assert torch.equal(scored.batch["token_level_scores"], responses.float() / 50 + 7)
    once = view.repeat(1)  # rows that do not repeat are the samples themselves
    assert actor.generate_sequences(once).handle.uids.tolist() == view.handle.uids.tolist()


def test_an_answer_that_is_still_to_come_goes_into_the_next_call(
    client: tq.Client, service: tq.Service
) -> None:
    class Later(Actor):
        @register(Dispatch.HANDLE, blocking=False, reads=["prompts"], writes=["responses"])
        def generate_later(self, data: tq.DataProto) -> dict[str, torch.Tensor]:
            return {"responses": data.batch["prompts"] + 1}

        @register(Dispatch.HANDLE, blocking=False, reads=["prompts", "responses"], writes=["sums"])
        def sum_later(self, data: tq.DataProto) -> dict[str, torch.Tensor]:
            return {"sums": data.batch["prompts"] + data.batch["responses"]}

        @register(Dispatch.HANDLE, reads=["prompts", "sums"], writes=["more"])
        def more(self, data: tq.DataProto) -> dict[str, torch.Tensor]:
            return {"more": data.batch["prompts"] + data.batch["sums"]}

    with LocalWorkerGroup(Later, 2, service=service) as group:
        view = viewed(client)({"prompts": torch.arange(6).reshape(3, 2)}).repeat(2)
        generated = group.generate_later(view)
        sums = group.sum_later(generated)
        generated.get().reorder(torch.arange(5, -1, -1))  # of the caller, and no other's
        last = group.more(sums)
        assert set(last.batch.keys()) == {"prompts", "responses", "sums", "more"}
    assert torch.equal(last.batch["more"], view.batch["prompts"] * 3 + 1)


def test_a_view_of_other_rows_that_a_method_returns_is_the_answer(
    client: tq.Client, by_handle: Groups
) -> None:
    _, reward = by_handle
    prompts = torch.arange(12).reshape(6, 2)
    view = viewed(client)({"prompts": prompts, "responses": prompts})
    assert reward.best(view).batch["responses"].tolist() == prompts.tolist()  # all are even
    odd = viewed(client)({"responses": torch.tensor([[1], [2], [3], [4]])})
    assert reward.best(odd).batch["responses"].tolist() == [[2], [4]]
    mixed = viewed(client)({"responses": torch.tensor([[2], [4], [3], [4]])})
    assert reward.best(mixed).batch["responses"].tolist() == [[2], [4], [4]]  # all of one rank
    made = reward.new_samples(view)
    assert made.handle.partition == "made"
    assert torch.equal(made.batch["doubled"], prompts * 2)


def test_padding_rows_that_a_method_gives_back_are_nobody_s(
    client: tq.Client, by_handle: Groups
) -> None:
    _, reward = by_handle
    for values, kept in (
        ([2, 1, 3, 4, 6], [2, 4, 6]),  # the padded rank gives all back,
        ([2, 1, 3, 4, 5], [2, 4]),  # some of it, its padding row among it,
        ([2, 1, 3, 5, 4], [2, 4]),  # or some of it without
        ([2, 4, 6], [2, 4, 6]),
        ([4], [4]),
    ):
        handle = client.put({"responses": torch.tensor(values)[:, None]}, partition="train")
        best = reward.best_of_padded(handle)
        assert client.get(best)["responses"][:, 0].tolist() == kept
        assert best.meta_info == {}


def test_an_answer_that_is_no_batch_is_refused_by_name(
    client: tq.Client, by_handle: Groups
) -> None:
    _, reward = by_handle
    for call in (lambda: reward.best(reward.number()), lambda: reward.best(data=reward.number())):
        with pytest.raises(InvalidInput, match=r"Reward.best .* takes a handle, got \['list'\]"):
            call()


def test_what_differs_between_rows_of_one_sample_cannot_be_stored_with_it(
    client: tq.Client, by_handle: Groups
) -> None:
    actor, _ = by_handle
    view = viewed(client)({"prompts": torch.arange(4).reshape(2, 2)}).repeat(2)
    view.batch["seed"] = torch.arange(4)
    with pytest.raises(DuplicateRows, match=r"'seed' differs .* client\.view\(client\.put\(view"):
        actor.generate_sequences(view)
    whole = client.view(client.put(view, partition="train"))
    assert torch.equal(actor.generate_sequences(whole).batch["seed"], torch.arange(4))


def test_a_handle_is_of_one_set_of_samples(client: tq.Client, by_handle: Groups) -> None:
    handle = client.put({"prompts": torch.arange(4).reshape(2, 2)}, partition="train")
    with pytest.raises(DuplicateRows) as raised:
        by_handle[0].generate_sequences(handle.repeat(2))
    assert "client.view(handle)" in raised.value.__notes__[0]


def test_a_column_that_nobody_has_is_still_missing(client: tq.Client, by_handle: Groups) -> None:
    actor, reward = by_handle
    view = viewed(client)({"prompts": torch.arange(4).reshape(2, 2)}).repeat(2)
    with pytest.raises((WorkerFailed, FieldsMissing), match="question"):
        reward.compute_rm_score(view.union(actor.generate_sequences(view)))
