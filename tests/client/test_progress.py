"""Bars for long moves."""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

import numpy as np
import pytest

import transferqueue as tq
from transferqueue.client import counted_copies, part_puts, progress
from transferqueue.client.progress import AFTER_S, Progress, is_notebook
from transferqueue.net.calls import Flow
from transferqueue.wire import ops
from transferqueue.wire.chunks import CHUNK_BYTES


class Drawn:
    """What would be on the screen."""

    def __init__(self) -> None:
        self.made: list[tuple[str, int | None]] = []
        self.shown: list[int] = []
        self.num_closed = 0

    def __call__(self, label: str, num_bytes: int | None) -> Drawn:
        self.made.append((label, num_bytes))
        return self

    def show(self, num_bytes: int) -> None:
        self.shown.append(num_bytes)

    def close(self) -> None:
        self.num_closed += 1


def flow(taken: list[Any]) -> Flow:
    return Flow(
        endpoint="ipc://x", op=ops.WRITE, calls=iter(()), num_calls=3, window=2,
        take=lambda call, answer: taken.append(call),
    )  # fmt: skip


def test_a_bar_appears_when_a_move_takes_long() -> None:
    now_s, drawn, taken = [0.0], Drawn(), []  # type: ignore[var-annotated]
    with Progress(drawn, clock=lambda: now_s[0]).of([flow(taken)]) as (counted,):
        counted.take("first", None)  # type: ignore[arg-type]
        assert drawn.made == []
        now_s[0] = AFTER_S
        counted.take("second", None)  # type: ignore[arg-type]
        assert drawn.num_closed == 0
    assert taken == ["first", "second"]
    assert drawn.made == [("put", 3 * CHUNK_BYTES)]
    assert (drawn.shown, drawn.num_closed) == ([2 * CHUNK_BYTES], 1)


def test_a_bar_goes_when_the_move_fails() -> None:
    drawn = Drawn()
    with (
        pytest.raises(RuntimeError),
        Progress(drawn, clock=iter(range(9)).__next__).of([flow([])]) as (one,),
    ):
        one.take("call", None)  # type: ignore[arg-type]
        raise RuntimeError
    assert drawn.num_closed == 1


def test_puts_and_gets_over_a_socket_are_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    drawn = Drawn()
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    monkeypatch.setattr(progress, "RichBar", drawn)
    columns = {"x": np.zeros((4, 2 << 20), dtype=np.uint8)}
    with (
        tq.serve(budget_bytes=64 << 20) as service,
        tq.connect(service.address, transport="ipc", progress=True) as client,
        tq.connect(service.address, transport="ipc") as quiet,
    ):
        handle = client.put(columns)
        client.get_columns(handle)
        assert [label for label, _ in drawn.made] == ["put", "get"]
        assert max(drawn.shown) == 8 << 20
        held_bytes = sum(shard["used_bytes"] for shard in client.status()["shards"])
        client.checkpoint(tmp_path)
        assert drawn.made[-1] == ("checkpoint", held_bytes)
        made = list(drawn.made)
        quiet.get_columns(quiet.put(columns))
        assert drawn.made == made
    assert drawn.num_closed == len(drawn.made)


def test_puts_and_gets_over_mapped_memory_are_counted_where_they_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = Drawn()
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    monkeypatch.setattr(progress, "RichBar", drawn)
    for module in (counted_copies, part_puts):
        monkeypatch.setattr(module, "STEP_BYTES", 1 << 20)
    x = np.random.default_rng(0).integers(0, 256, (64, 64 << 10), np.uint8)
    with (
        tq.serve(budget_bytes=64 << 20) as service,
        tq.connect(service.address, progress=True) as client,
    ):
        handle = client.put({"x": x, "ragged": [f"{i}" * i for i in range(64)]})
        assert drawn.made == [("put", max(drawn.shown))]
        assert len(drawn.shown) >= 4
        assert max(drawn.shown) >= x.nbytes
        drawn.shown.clear()
        order = np.random.default_rng(1).permutation(64)
        got = client.get_columns(handle[order])
        assert (got["x"] == x[order]).all()
        assert drawn.made[1:] == [("get", x.nbytes)]
        assert drawn.shown == [n << 20 for n in (1, 2, 3, 4)]
        whole = client.get_columns(handle)
        assert (whole["x"] == x).all()
        assert len(drawn.made) == 2, "a view copies nothing, so nothing is shown"
        scattered = client.put({"y": x[order]}, handle=handle[order])
        assert (client.get_columns(scattered, fields=["y"])["y"] == x[order]).all()
    assert drawn.num_closed == len(drawn.made)


def test_a_bar_is_told_how_far_others_are_until_they_are_done() -> None:
    drawn, looked = Drawn(), threading.Event()

    def look() -> int:
        looked.set()
        return 700

    with Progress(drawn).watching("checkpoint", 500, look):
        assert looked.wait(5)
    assert drawn.made == [("checkpoint", 500)]
    assert set(drawn.shown) <= {500}
    assert drawn.num_closed == 1


def test_a_notebook_is_known_by_its_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = type("ZMQInteractiveShell", (), {})()
    fake = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", fake)
    assert is_notebook()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))
    assert not is_notebook()


def test_a_bar_is_drawn_and_wiped(capsys: pytest.CaptureFixture[str]) -> None:
    bar = progress.RichBar("put", 10 << 20)
    bar.show(5 << 20)
    bar.close()
    assert "Traceback" not in capsys.readouterr().err
