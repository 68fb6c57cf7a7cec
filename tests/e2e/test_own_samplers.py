"""Samplers that users bring: installed by entry point, or named to the service by class."""

from __future__ import annotations

import textwrap
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

import transferqueue as tq
from tests.waiting import wait_until
from transferqueue import errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODULE = """
    import sys
    import time
    from dataclasses import dataclass
    from typing import ClassVar

    import numpy as np

    from transferqueue.coordinator.samplers import BlockSampler, Sampler


    @dataclass(frozen=True, slots=True)
    class Latest(Sampler):
        \"\"\"The rows that came last.\"\"\"

        name: ClassVar[str] = "latest"

        def window(self, n):
            return None

        def choose(self, candidates, n, rng):
            rows = len(candidates)
            return np.arange(rows - n, rows)[::-1] if rows >= n else None


    @dataclass(frozen=True, slots=True)
    class Lowest(BlockSampler):
        \"\"\"A row of the block with the least.\"\"\"

        tag: str = "score"
        name: ClassVar[str] = "lowest"

        def pick(self, blocks, n, rng):
            rows = blocks.rows(np.flatnonzero(blocks.counts))
            return rows[np.argsort(blocks.values(rows))[:n]]


    @dataclass(frozen=True, slots=True)
    class Odd(Sampler):
        \"\"\"Breaks the contract as it is told.\"\"\"

        how: str
        name: ClassVar[str] = "odd"

        def __post_init__(self):
            if self.how == "cannot be made":
                raise RuntimeError("no such thing")

        @property
        def tags(self):
            return 7 if self.how == "strange tags" else ()

        @property
        def exclusive(self):
            if self.how == "no property":
                raise AttributeError("gone")
            return True

        def window(self, n):
            return "wide" if self.how == "strange window" else n

        def check(self, n):
            if self.how == "bad check":
                raise ZeroDivisionError("n")

        def choose(self, candidates, n, rng):
            if self.how == "raises":
                raise RuntimeError("oops")
            if self.how == "exits":
                sys.exit("bye")
            if self.how == "sleeps":
                time.sleep(60)
            if self.how == "spins":
                while True:
                    try:
                        while True:
                            pass
                    except Exception:
                        pass
            return {
                "not ready": np.arange(n) + len(candidates),
                "duplicates": np.zeros(n, dtype=np.int64),
                "wrong shape": np.zeros((n, 1), dtype=np.int64),
                "wrong type": "abc",
                "ragged": [[1], [2, 3]],
                "floats": np.arange(n) * 1.0,
                "too many": np.arange(n + 1),
            }[self.how]


    class Other:
        \"\"\"No sampler.\"\"\"


    @dataclass(frozen=True, slots=True)
    class Fifo2(Latest):
        name: ClassVar[str] = "fifo"
"""

ENTRY_POINTS = """
    [transferqueue.samplers]
    latest = odd_samplers:Latest
    lowest = odd_samplers:Lowest
    odd = odd_samplers:Odd
    other = odd_samplers:Other
    misnamed = odd_samplers:Latest
    lost = odd_samplers:Gone
"""


def write_module(folder: Path) -> None:
    (folder / "odd_samplers.py").write_text(textwrap.dedent(MODULE))


def write_distribution(folder: Path) -> None:
    """A package as an installer leaves it."""
    write_module(folder)
    info = folder / "odd_samplers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-samplers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(textwrap.dedent(ENTRY_POINTS))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The package's module, of a distribution on PYTHONPATH."""
    folder = tmp_path_factory.mktemp("installed")
    write_distribution(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=":")
        patch.syspath_prepend(str(folder))
        import odd_samplers

        yield odd_samplers
        patch.delitem(__import__("sys").modules, "odd_samplers")


@pytest.fixture(scope="module")
def service(installed: Any) -> Iterator[tq.Service]:
    del installed
    with tq.serve(budget_bytes=64 << 20) as service:
        yield service


@pytest.fixture
def client(service: tq.Service) -> Iterator[tq.Client]:
    with tq.connect(service.address, timeout_s=15) as client:
        yield client


def rows(count: int) -> dict[str, torch.Tensor]:
    return {"x": torch.arange(count)}


def take(client: tq.Client, n: int, partition: str, sampler: Any) -> list[int]:
    with client.claim(
        task="t", fields=["x"], n=n, partition=partition, sampler=sampler, timeout_s=5
    ) as claim:
        taken: list[int] = claim.get()["x"].tolist()
    return taken


def test_a_sampler_of_an_installed_package_is_found_by_its_entry_point(
    client: tq.Client, installed: Any
) -> None:
    client.put({**rows(6)}, partition="latest", tags={"score": [3, 1, 2, 0, 5, 4]})
    assert take(client, 2, "latest", installed.Latest()) == [5, 4]
    assert take(client, 2, "latest", installed.Lowest()) == [3, 1]
    assert take(client, 2, "latest", None) == [0, 2]


BROKEN = {
    "raises": "RuntimeError: oops",
    "exits": "SystemExit: bye",
    "not ready": "positions outside its 4 candidates",
    "duplicates": "returned a candidate twice",
    "wrong shape": r"returned int64\[4, 1\], not positions",
    "wrong type": "not positions",
    "ragged": "ValueError: ",
    "floats": r"returned float64\[4\], not positions",
    "too many": "returned 5 positions for a claim of 4",
    "strange tags": "tags is 7",
    "no property": "AttributeError: gone",
    "strange window": "window is 'wide'",
    "bad check": "ZeroDivisionError: n",
    "cannot be made": "RuntimeError: no such thing",
    "sleeps": "choose took longer than 1 s",
    "spins": "choose took longer than 1 s",
}


@pytest.mark.parametrize("how", BROKEN)
def test_one_that_breaks_the_contract_fails_its_claim_and_nothing_else(
    client: tq.Client, installed: Any, how: str
) -> None:
    client.put(rows(4), partition=how)
    if how == "cannot be made":
        sampler = object.__new__(installed.Odd)
        object.__setattr__(sampler, "how", how)
    else:
        sampler = installed.Odd(how)
    start_s = time.monotonic()
    with pytest.raises(errors.SamplerFailed, match=f"sampler odd: .*{BROKEN[how]}"):
        client.claim(task="t", fields=["x"], n=4, partition=how, sampler=sampler)
    assert time.monotonic() - start_s < 10
    assert take(client, 4, how, None) == [0, 1, 2, 3], "its rows are there for others"


def test_one_that_waits_is_failed_by_the_put_that_it_chokes_on_and_the_put_is_not(
    client: tq.Client, service: tq.Service, installed: Any
) -> None:
    failed: list[Exception] = []

    def claim() -> None:
        with tq.connect(service.address, timeout_s=15) as other:
            try:
                other.claim(
                    task="t", fields=["x"], n=4, partition="late", sampler=installed.Odd("sleeps")
                )
            except errors.SamplerFailed as error:
                failed.append(error)

    import threading

    claiming = threading.Thread(target=claim)
    claiming.start()

    def waits() -> bool:
        partitions = client.status()["partitions"]
        return "late" in partitions and partitions["late"]["waiting"]["claims"] == 1

    wait_until(waits, timeout_s=15)
    client.wait(client.put(rows(4), partition="late"))
    claiming.join(10)
    assert len(failed) == 1
    assert take(client, 4, "late", None) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("latst", errors.InvalidInput, "no sampler 'latst'; did you mean 'latest'"),
        ("other", errors.SamplerFailed, "not a Sampler class"),
        ("misnamed", errors.SamplerFailed, "whose name is 'latest'"),
        ("lost", errors.SamplerFailed, "Gone"),
    ],
)
def test_an_entry_point_that_is_no_sampler_is_named(
    client: tq.Client, name: str, error: type[Exception], message: str
) -> None:
    class Named(tq.samplers.Fifo):
        def to_plain(self) -> dict[str, Any]:
            return {"name": name, "args": {}}

    client.put(rows(1), partition="names")
    with pytest.raises(error, match=message):
        client.claim(task="t", fields=["x"], n=1, partition="names", sampler=Named())


# -- by class -------------------------------------------------------------------------------------


def test_a_service_is_told_of_a_class_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = textwrap.dedent(MODULE).replace('"latest"', '"mine"').replace('"odd"', '"unnamed"')
    (tmp_path / "own_samplers.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))  # of this process only: no PYTHONPATH
    import own_samplers

    with (
        tq.serve(budget_bytes=64 << 20, samplers=[own_samplers.Latest]) as service,
        tq.connect(service.address, timeout_s=15) as client,
    ):
        client.put(rows(4))
        assert take(client, 2, "default", own_samplers.Latest()) == [3, 2]
        with pytest.raises(errors.InvalidInput, match=r"no sampler 'unnamed'.*serve\(samplers"):
            client.claim(task="t", fields=["x"], n=1, sampler=own_samplers.Odd("raises"))
    with tq.serve(budget_bytes=64 << 20, samplers=["own_samplers:Latest"]):
        pass


def test_a_class_that_no_coordinator_can_import_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "more_samplers.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))

    class Local(tq.samplers.Fifo):
        """Of a function."""

    cases: list[tuple[Any, str]] = [
        (Local, "cannot be imported by the coordinator"),
        ("no_such_module:Sampler", "no_such_module"),
        ("more_samplers:Gone", "cannot be imported"),
        ("more_samplers:Other", "not a Sampler class"),
        ("more_samplers:Fifo2", "has the name of a built-in one, 'fifo'"),
        ("more_samplers", "'module:Class' expected"),
        (7, "samplers takes Sampler classes"),
    ]
    for sampler, message in cases:
        with pytest.raises(errors.ConfigError, match=message):
            tq.serve(budget_bytes=64 << 20, samplers=[sampler])
