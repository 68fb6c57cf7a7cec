"""The table of a training step, and what is wrong with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.advantage_stage import AdvantageStage, Algorithm
from controller.dataflow import Dataflow, Stage, fields_before
from controller.errors import DataflowError
from controller.ppo_settings import KlPlace, PpoSettings
from controller.score_summary import ScoreSummary
from transferqueue.errors import ConfigError
from workers.roles import Actor, Critic, MethodFields, Reference, Reward, declared_methods
from workers.roles.minibatches import MinibatchPlan

ROLLOUT = Stage(
    name="rollout",
    role="rollout",
    method="generate",
    reads=("prompt",),
    writes=("responses",),
    streams=True,
    generates=True,
)
REWARD = Stage(
    name="reward",
    role="reward",
    method="score",
    reads=("responses",),
    writes=("rewards",),
    streams=True,
)
UPDATE = Stage(name="update", role="actor", method="update", reads=("responses", "rewards"))

DECLARED = {
    "rollout": {"generate": MethodFields(reads=("prompt",), writes=("responses",))},
    "reward": {"score": MethodFields(reads=("responses",), writes=("rewards",))},
    "actor": {"update": MethodFields(reads=("responses", "rewards"), optional_reads=("values",))},
}


def table(*stages: Stage, inputs: tuple[str, ...] = ("prompt",)) -> Dataflow:
    return Dataflow(inputs=inputs, stages=stages)


def test_a_table_that_holds_passes_both_checks() -> None:
    table(ROLLOUT, REWARD, UPDATE).check(DECLARED)


def test_a_field_that_no_earlier_stage_writes_is_named_with_near_ones() -> None:
    misspelt = replace(UPDATE, reads=("responses", "reward"))
    with pytest.raises(
        DataflowError,
        match=r"'update' reads 'reward', which no earlier stage writes; did you mean 'rewards'",
    ):
        table(ROLLOUT, REWARD, misspelt)


def test_a_field_that_a_later_stage_writes_says_which_to_put_first() -> None:
    with pytest.raises(DataflowError, match="stage 'reward' writes it: put that first"):
        table(ROLLOUT, UPDATE, REWARD)


def test_a_field_is_written_once() -> None:
    with pytest.raises(DataflowError, match="writes 'rewards', which stage 'reward' has written"):
        table(ROLLOUT, REWARD, replace(REWARD, name="again"))


def test_names_are_of_one_stage() -> None:
    with pytest.raises(DataflowError, match="two stages are called 'rollout'"):
        table(ROLLOUT, replace(ROLLOUT, writes=("others",)))


def test_one_stage_generates() -> None:
    with pytest.raises(DataflowError, match="exactly one stage generates"):
        table(replace(ROLLOUT, generates=False))


def test_a_stage_that_streams_cannot_wait_for_one_that_needs_the_whole_batch() -> None:
    whole = replace(REWARD, streams=False)
    late = replace(REWARD, name="late", reads=("rewards",), writes=("late",))
    with pytest.raises(DataflowError, match="'late' streams, but reads 'rewards'"):
        table(ROLLOUT, whole, late)


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (replace(REWARD, role="rewards"), "no role of stage 'reward': 'rewards'; did you mean"),
        (replace(REWARD, method="scores"), "no method of role 'reward'.*did you mean 'score'"),
        (replace(REWARD, reads=()), "needs 'responses', which the table does not list"),
        (replace(REWARD, reads=("responses", "prompt")), "does not read 'prompt'"),
        (replace(REWARD, writes=("rewards", "more")), "the table says"),
    ],
)
def test_a_table_that_the_roles_contradict_is_refused(stage: Stage, message: str) -> None:
    rest = () if stage.role == "rewards" else (UPDATE,)
    with pytest.raises(DataflowError, match=message):
        table(ROLLOUT, stage, *rest).check(DECLARED)


def test_a_read_that_the_settings_of_a_role_leave_unread_is_refused() -> None:
    flow = table(
        ROLLOUT,
        REWARD,
        replace(UPDATE, reads=(*UPDATE.reads, "values")),
        inputs=("prompt", "values"),
    )
    with pytest.raises(DataflowError, match="can read 'values', but its settings leave it unread"):
        flow.check(DECLARED)


def test_what_must_be_there_before_some_stages_is_what_they_do_not_write_themselves() -> None:
    wanted = fields_before(PpoSettings().dataflow().on_batches)
    assert {"rm_scores", "ref_log_prob", "values", "rollout_log_probs"} <= {*wanted}
    assert "advantages" not in wanted
    assert "raw_prompt" not in wanted


def roles_of(settings: PpoSettings) -> dict[str, Any]:
    """Roles as the settings make them; models are never called."""
    plan, nothing = MinibatchPlan(), object()
    actor = Actor(nothing, nothing, settings.actor_config(plan))  # type: ignore[arg-type]
    critic = Critic(nothing, nothing, settings.critic_config(plan))  # type: ignore[arg-type]
    return {
        "actor": actor,
        "critic": critic,
        "reward": Reward,
        "reference": Reference,
        "scores": ScoreSummary(),
        "advantages": AdvantageStage(settings.advantage_config()),
    }


@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize("place", list(KlPlace))
@pytest.mark.parametrize("cap", [None, 2.0])
def test_the_table_of_every_setting_fits_the_roles_of_the_same_setting(
    algorithm: Algorithm, place: KlPlace, cap: float | None
) -> None:
    settings = PpoSettings(
        algorithm=algorithm,
        kl_place=place,
        kl_coefficient=0.0 if place is KlPlace.NOWHERE else 0.1,
        importance_cap=cap,
    )
    flow = settings.dataflow()
    declared = {name: declared_methods(role) for name, role in roles_of(settings).items()}
    generating = flow.rollout
    declared["rollout"] = {
        generating.method: MethodFields(reads=generating.reads, writes=generating.writes)
    }
    flow.check(declared)


def test_a_kl_without_a_place_is_refused() -> None:
    with pytest.raises(ConfigError, match="a coefficient above 0 needs a place"):
        PpoSettings(kl_place=KlPlace.NOWHERE, kl_coefficient=0.1)
