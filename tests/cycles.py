"""What an act leaves behind that only a search for cycles finds, and memory that it still holds."""

from __future__ import annotations

import asyncio
import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import transferqueue as tq

OURS = ("transferqueue", "controller", "workers")


@contextmanager
def left_to_the_collector() -> Iterator[list[str]]:
    """The list that it gives holds, after the block, what of ours, and which tensors and arrays,
    only a search for cycles finds."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    gc.freeze()  # the search is for what is new: half a second less
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += sorted({what for value in gc.garbage if (what := name_of(value))})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.collect()  # what was found is still in its cycle
        gc.unfreeze()
        gc.enable()


def name_of(value: object) -> str:
    """Nothing for what is neither ours nor holds the memory of a batch."""
    if isinstance(value, BaseException):
        return f"exception {type(value).__name__}"
    if isinstance(value, torch.Tensor | np.ndarray):
        return type(value).__name__
    owner = getattr(value, "__self__", value)  # of a method
    module = str(getattr(type(owner), "__module__", ""))
    return f"{type(owner).__qualname__}" if module.split(".")[0] in OURS else ""


def num_leases(status: dict[str, Any]) -> int:
    return sum(shard["leases"] for shard in status["shards"])


def expect_nothing_kept(client: tq.Client, act: Callable[[], object]) -> None:
    """Of what ``act`` gets, whose results are gone when it returns. It has run before: what is
    imported and made once has been by now."""
    with left_to_the_collector() as found:
        wait_until(lambda: num_leases(client.status()) == 0)
        act()
        wait_until(lambda: num_leases(client.status()) == 0)
    assert found == []


async def expect_nothing_kept_async(client: tq.AsyncClient, act: Callable[[], Any]) -> None:
    """As `expect_nothing_kept`."""

    async def until_none_is_held() -> None:
        async with asyncio.timeout(5.0):
            while num_leases(await client.status()):
                await asyncio.sleep(0.01)

    with left_to_the_collector() as found:
        await until_none_is_held()
        await act()
        await until_none_is_held()
    assert found == []
