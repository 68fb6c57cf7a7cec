"""Every error survives a pickle and the wire, and says something."""

from __future__ import annotations

import inspect
import pickle
import re
from importlib import import_module

import pytest

from transferqueue.errors import (
    PAGES,
    DeadlineExceeded,
    FieldsMissing,
    RowsGone,
    TransferQueueError,
    UndeclaredWrite,
    near_names,
)
from transferqueue.wire.format import decode_error, encode_error


def classes_of(module: str) -> list[type[TransferQueueError]]:
    return [
        cls
        for name, cls in vars(import_module(module)).items()
        if isinstance(cls, type)
        and issubclass(cls, TransferQueueError)
        and cls.__module__ == module
        and not name.startswith("_")
    ]


ALL = [cls for module in PAGES for cls in classes_of(module)]
"""Of every package."""


EXAMPLES = {
    "str": "name",
    "int": 3,
    "float": 1.5,
    "dict[str, int]": {"field": 2},
    "dict[str, float]": {"CPU": 2.0},
    "Sequence[int]": [1, 2],
    "Sequence[str]": ["near"],
}


def example(cls: type[TransferQueueError]) -> TransferQueueError:
    """An instance with a value of the right type for each argument."""
    owner = next((c for c in cls.__mro__ if "__init__" in vars(c)), Exception)
    if owner is DeadlineExceeded or not issubclass(owner, TransferQueueError):
        return cls("what happened")
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    return cls(*(EXAMPLES[parameter.annotation] for parameter in parameters))


@pytest.mark.parametrize("cls", ALL)
def test_an_error_is_the_same_after_pickle_and_wire(cls: type[TransferQueueError]) -> None:
    error = example(cls)
    assert str(error)
    copies = [pickle.loads(pickle.dumps(error))]
    if cls in classes_of("transferqueue.errors"):  # others never go over the wire
        copies.append(decode_error(encode_error(error)))
    for copy in copies:
        assert type(copy) is cls
        assert copy.args == error.args
        assert str(copy) == str(error)


@pytest.mark.parametrize("cls", ALL)
def test_the_tree_in_the_docstring_names_every_class(cls: type[TransferQueueError]) -> None:
    assert cls.__name__ in (import_module(cls.__module__).__doc__ or "")


def test_near_names_come_best_first() -> None:
    assert near_names("rewardz", ["values", "reward", "regards"]) == ["reward", "regards"]
    assert near_names("zzz", ["values"]) == []


@pytest.mark.parametrize("num_uids", [4, 5, 6])
def test_a_message_says_that_there_are_more_uids_only_if_there_are(num_uids: int) -> None:
    text = str(RowsGone(num_uids, 9, list(range(1, num_uids + 1))))
    assert text.count("0x") == min(num_uids, 5)
    assert ("…" in text) is (num_uids > 5)


def test_a_hint_does_not_stumble_over_its_punctuation() -> None:
    for error in (
        UndeclaredWrite("W.m", 0, "advantage", ["advantages"]),
        UndeclaredWrite("W.m", 0, "zzz", ["advantages"]),
        FieldsMissing({"a": 1}, 2, [1], ["ab"]),
        FieldsMissing({"a": 1}, 2, [1]),
    ):
        assert not re.search(r"\?;|\?\.|;\.|x1 Wait|\) Add", str(error)), str(error)
