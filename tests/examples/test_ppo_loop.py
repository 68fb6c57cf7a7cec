"""The loop on eager batches and on views, in a short form, as a user runs it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples import ppo_loop

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_both_kinds_of_batch_give_the_same_numbers_and_views_pass_names_only() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.ppo_loop", "--steps", "2", "--prompts", "32"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    pairs = re.findall(r"│\s*\d\s*│ \S+\s*│\s*(\S+) │\s*(\S+) │", done.stdout)
    assert len(pairs) > 10
    assert all(eager == lazy for eager, lazy in pairs)
    assert any(float(eager) != 0 for eager, _ in pairs)
    total = re.search(r"│ all\s*│\s*([\d,.]+) │\s*([\d,.]+) │", done.stdout)
    assert total is not None
    eager_kib, lazy_kib = (float(number.replace(",", "")) for number in total.groups())
    assert lazy_kib < eager_kib / 8


def test_the_loop_does_not_ask_what_kind_of_batch_it_has() -> None:
    source = inspect.getsource(ppo_loop.fit)
    assert "isinstance" not in source
    assert "LazyDataProto" not in source
    assert source.count("make_batch") == 2  # the parameter, and its one use
