"""A declaration that cannot be is refused where it is written."""

from __future__ import annotations

import pytest

from transferqueue.dispatch import Declaration
from transferqueue.errors import ConfigError, InvalidInput


def test_names_are_kept_in_order() -> None:
    declared = Declaration.of(reads=["b", "a"], optional=["c"], writes=["d"])
    assert (declared.reads, declared.optional, declared.writes) == (("b", "a"), ("c",), ("d",))


@pytest.mark.parametrize("argument", ["reads", "optional", "writes"])
def test_a_bare_name_is_not_a_list_of_letters(argument: str) -> None:
    with pytest.raises(ConfigError, match=r"did you mean \['values'\]"):
        Declaration.of(**{argument: "values"})  # type: ignore[arg-type]


def test_a_field_cannot_be_read_and_written() -> None:
    with pytest.raises(ConfigError, match="a cell is written once"):
        Declaration.of(reads=["values"], writes=["values"])
    with pytest.raises(ConfigError, match="a cell is written once"):
        Declaration.of(optional=["values"], writes=["values"])


def test_what_is_overwritten_may_be_read() -> None:
    assert Declaration.of(reads=["a"], writes=["a"], overwrite=True).writes == ("a",)


def test_a_read_is_either_needed_or_optional() -> None:
    with pytest.raises(ConfigError, match="choose one"):
        Declaration.of(reads=["a"], optional=["a"])


def test_names_are_named_once_and_are_names() -> None:
    with pytest.raises(ConfigError, match="twice"):
        Declaration.of(reads=["a", "a"])
    with pytest.raises(InvalidInput, match="a name in writes"):
        Declaration.of(writes=[""])
