"""Conditions on tags as a person types them."""

from __future__ import annotations

import click
import pytest

from transferqueue.coordinator.predicate import tag
from transferqueue.service.commands.where import parse_where

v, s = tag("policy_version"), tag("source")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("policy_version < 3", v < 3),
        ("3 > policy_version", v < 3),
        ("3 == policy_version", v == 3),
        ("policy_version != 2.5", v != 2.5),
        ("source == 'web' and not policy_version >= -1", (s == "web") & ~(v >= -1)),
        ("source in ['a', 'b'] or policy_version <= 4", s.isin(["a", "b"]) | (v <= 4)),
        ("source not in ('a',)", ~s.isin(["a"])),
        ("exists(source) and done == True", s.exists() & (tag("done") == True)),  # noqa: E712
    ],
)
def test_what_is_typed_is_what_is_meant(text: str, expected: object) -> None:
    assert parse_where(text).to_plain() == expected.to_plain()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text",
    [
        "", "policy_version", "policy_version <", "1 < 2", "a < b", "a.b < 3", "1 < a < 3", "f(a)",
        "a in 3", "a is None", "__import__('os')", "a < open('x')", "a + 1 < 3", "exists(a, b)",
        "'x' in a", "(" * 500,
    ],
)  # fmt: skip
def test_anything_else_is_wrong_usage(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"e\.g\. policy_version"):
        parse_where(text)
