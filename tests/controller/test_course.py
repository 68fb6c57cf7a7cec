"""The order of stages over one batch."""

from __future__ import annotations

import pytest

from controller.course import Course, Lines
from controller.dataflow import Stage
from controller.ppo_settings import PpoSettings
from workers.roles import MethodFields


def followed(course: Course) -> list[str]:
    """What begins, in brackets, and what is waited for, until all have ended."""
    events = []
    while True:
        events += [f"({stage.name})" for stage in course.begin()]
        stage = course.next_to_end()
        if stage is None:
            return events
        events.append(stage.name)


def test_a_stage_begins_when_its_inputs_are_there_and_those_that_others_need_end_first() -> None:
    flow = PpoSettings(values_stream=False).dataflow()
    preparing = [stage for stage in flow.on_batches if stage.writes]
    assert followed(Course(preparing)) == [
        "(values)",
        "(old_log_prob)",
        "values",
        "(advantages)",
        "old_log_prob",
        "advantages",
    ]


def test_every_stage_of_a_table_begins_once_and_ends_once() -> None:
    flow = PpoSettings().dataflow()
    events = followed(Course(flow.stages))
    names = [stage.name for stage in flow.stages]
    assert sorted(events) == sorted([*names, *(f"({name})" for name in names)])
    assert events[:2] == ["(rollout)", "rollout"]
    assert events.index("rollout") < events.index("(reward)") < events.index("reward")
    assert events.index("advantages") < events.index("(update_actor)")


def test_a_course_without_stages_is_over() -> None:
    assert followed(Course([])) == []


SETTINGS = PpoSettings(values_stream=False)


def lines(*, reads_what_is_there: bool = False, processes: tuple[str, ...] = ("critic",)) -> Lines:
    """As the example's: the critic's process has the advantages and the scores."""
    flow = SETTINGS.dataflow()
    places = {"advantages": processes, "scores": processes, "rollout": ("rollout-0", "rollout-1")}
    declared: dict[str, dict[str, MethodFields]] = {}
    for stage in flow.stages:
        there = reads_what_is_there and stage.name == "advantages"
        declared.setdefault(stage.role, {})[stage.method] = MethodFields(
            reads=("rm_scores",) if there else stage.reads,
            optional_reads=("values",) if there else (),
            reads_what_is_there=there,
        )
    return Lines.of(flow, lambda role: places.get(role, (role,)), declared)


def on_batches() -> list[Stage]:
    return list(SETTINGS.dataflow().on_batches)


def test_a_stage_is_given_to_the_process_that_is_still_to_write_what_it_reads() -> None:
    assert followed(Course(on_batches(), lines())) == [
        "(values)",
        "(old_log_prob)",
        "(advantages)",
        "(update_critic)",
        "(scores)",
        "old_log_prob",
        "values",
        "advantages",
        "(update_actor)",
        "update_critic",
        "scores",
        "update_actor",
    ]


def test_updates_may_be_held_until_what_is_before_them_is_done() -> None:
    course = Course(on_batches(), lines())
    begun = course.begin(updates=False)
    assert [stage.name for stage in begun] == ["values", "old_log_prob", "advantages"]
    assert course.begin(updates=False) == []
    assert [stage.name for stage in course.begin()] == ["update_critic", "scores"]
    assert not course.has_all_begun()


@pytest.mark.parametrize(
    "apart",
    [
        lines(processes=("elsewhere",)),
        lines(processes=("critic", "critic-1")),
        lines(reads_what_is_there=True),
        Lines(),
    ],
    ids=["another process", "several processes", "would do without it", "whole batches"],
)
def test_elsewhere_it_waits_for_the_answer(apart: Lines) -> None:
    course = Course(on_batches(), apart)
    assert [stage.name for stage in course.begin()] == ["values", "old_log_prob"]


def test_an_update_waits_until_every_stage_that_writes_has_begun() -> None:
    """One of the same role could see what the update changed."""
    late = Stage(name="late", role="actor", method="m", reads=("advantages",), writes=("x",))
    eager = Stage(name="eager", role="actor", method="u", reads=("old_log_probs",))
    events = followed(Course([*on_batches()[:3], eager, late], lines()))
    assert events.index("(late)") < events.index("(eager)")


def test_a_failure_is_looked_for_where_it_comes_first() -> None:
    course = Course(on_batches(), lines())
    course.begin()
    ended = [course.next_to_end() for _ in range(3)]
    assert [stage.name for stage in ended if stage] == ["old_log_prob", "values", "advantages"]
