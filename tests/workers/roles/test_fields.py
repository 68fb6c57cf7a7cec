from __future__ import annotations

import inspect
from typing import Any

import pytest

from controller.advantage_stage import AdvantageStage
from workers import roles
from workers.roles import MethodFields, declared_fields, stage

ROLES: tuple[type[Any], ...] = (
    roles.Rollout,
    roles.Reward,
    roles.Reference,
    roles.Critic,
    roles.Actor,
    AdvantageStage,
)


def declarations() -> dict[str, MethodFields]:
    return {
        name: declared_fields(method)
        for role in ROLES
        for name, method in inspect.getmembers(role, inspect.isfunction)
        if hasattr(method, "__stage_fields__")
    }


def test_a_declaration_leaves_the_method_as_it_was() -> None:
    @stage(reads=("a",), writes=("b",), optional_reads=("c",))
    def method(data: dict[str, int]) -> dict[str, int]:
        return {"b": data["a"] + 1}

    assert method({"a": 1}) == {"b": 2}
    assert declared_fields(method) == MethodFields(
        reads=("a",), writes=("b",), optional_reads=("c",)
    )


def test_an_undeclared_method_is_named() -> None:
    def update_nothing() -> None: ...

    with pytest.raises(TypeError, match=r"update_nothing declares no columns"):
        declared_fields(update_nothing)


def test_every_stage_of_the_loop_is_declared_once() -> None:
    assert set(declarations()) == {
        "generate_sequences",
        "compute_scores",
        "compute_ref_log_prob",
        "compute_values",
        "update_critic",
        "compute_log_prob",
        "update_actor",
        "compute_advantages",
    }


def test_every_column_read_is_written_by_one_stage_or_comes_from_the_dataset() -> None:
    dataset = {"raw_prompt", "reward_model", "uid", "is_greedy"}
    fields = declarations().values()
    written = [name for method in fields for name in method.writes]
    read = {name for method in fields for name in (*method.reads, *method.optional_reads)}

    assert len(written) == len(set(written))
    assert read - dataset <= set(written)
