"""Random batches and sequences of operations on both sides, then each correction by itself.

Collected by ``test_against_verl.py``, which runs it with the interpreter that has verl. The number
of random examples an operation is ``$TQ_VERL_EXAMPLES``; they are the same in every run.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest
import torch
import verl.protocol as verl_side
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import transferqueue.view as our_side
from against_verl.corrections import CORRECTIONS, Case
from against_verl.frozen import frozen
from against_verl.operations import IN_PLACE, MAKERS, Operation
from against_verl.recipes import recipes

torch.set_num_threads(1)

MAX_ROWS = 40
NUM_EXAMPLES = int(os.environ.get("TQ_VERL_EXAMPLES", "40"))

random_examples = settings(
    max_examples=NUM_EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


def outcome(side: Any, operation: Operation, batch: Any) -> tuple[Any, Any]:
    """The result to go on with, and what to compare."""
    try:
        result = operation.run(side, batch)
    except Exception as error:  # noqa: BLE001
        return None, error
    return result, (frozen(result), frozen(batch))


def first_batch(result: Any, before: Any) -> Any:
    while isinstance(result, list | tuple) and result:
        result = result[0]
    return result if isinstance(result, type(before)) else before


def run_on_both(operation: Operation, theirs: Any, ours: Any) -> tuple[Case, Any, Any]:
    before = copy.deepcopy(ours)
    was = frozen(ours)
    their_result, their_outcome = outcome(verl_side, operation, theirs)
    our_result, our_outcome = outcome(our_side, operation, ours)
    if isinstance(our_outcome, Exception) or operation.name not in IN_PLACE:
        assert frozen(ours) == was, f"{operation} changed the batch it was given"
    case = Case(operation=operation, before=before, verl=their_outcome, ours=our_outcome)
    return case, their_result, our_result


def check(case: Case) -> None:
    if not case.agrees:
        known = [correction.__name__ for correction in CORRECTIONS if correction(case)]
        outcomes = f"verl: {case.verl!r}\nours: {case.ours!r}"
        assert known, f"{case.operation}\non {case.before}\n{outcomes}"


@pytest.mark.parametrize("name", MAKERS)
@random_examples
@given(st.data())
def test_ours_does_what_verl_does(name: str, data: st.DataObject) -> None:
    """Up to three operations bring both sides to some state; then the one under test."""
    recipe = data.draw(recipes())
    theirs, ours = recipe.build(verl_side.DataProto), recipe.build(our_side.DataProto)
    lead_up = data.draw(st.lists(st.sampled_from(sorted(MAKERS)), max_size=3))
    for maker in (*lead_up, name):
        operation = data.draw(MAKERS[maker](ours))
        case, their_result, our_result = run_on_both(operation, theirs, ours)
        check(case)
        if not case.agrees or isinstance(case.ours, Exception):
            return  # from here on the two differ, or verl's is half changed
        theirs = first_batch(their_result, theirs)
        ours = first_batch(our_result, ours)
        if len(ours) > MAX_ROWS:
            return


@random_examples
@given(recipes())
def test_a_batch_goes_to_verl_and_back(recipe: Any) -> None:
    ours = recipe.build(our_side.DataProto)
    theirs = recipe.build(verl_side.DataProto)
    assert isinstance(ours.to_verl(), verl_side.DataProto)
    assert frozen(ours.to_verl()) == frozen(theirs)
    assert frozen(our_side.DataProto.from_verl(theirs)) == frozen(ours)


@random_examples
@given(recipes(ragged=False))
def test_each_side_reads_the_tensors_that_the_other_wrote(recipe: Any) -> None:
    batch = recipe.build(our_side.DataProto).batch
    if batch is None or not all(column.numel() for column in batch.values()):
        return  # verl reads no empty tensor
    batch = batch.apply(lambda column: column.clone(memory_format=torch.contiguous_format))
    for written, reader in ((our_side, verl_side), (verl_side, our_side)):
        read = reader.deserialize_tensordict(written.serialize_tensordict(batch))
        assert frozen(read) == frozen(batch)
