"""Copy-on-write views against a model: any order of puts, views, edits and ends."""

from __future__ import annotations

import gc
import tempfile

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from transferqueue.backends.arena_address import ArenaAddress
from transferqueue.backends.mapping import Access, ArenaMapping
from transferqueue.backends.private_views import PrivateViews, View
from transferqueue.backends.segments import SegmentFiles
from transferqueue.memory.allocator import PAGE_BYTES as PAGE

CELL = PAGE // 4
CELLS = 12


class ViewsAgainstModel(RuleBasedStateMachine):
    """Puts, views, edits and ends in any order over a few pages; every array is checked always."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.address = ArenaAddress(
            directory=self.directory.name,
            service_id="model",
            slot=0,
            token="0" * 16,
            segment_bytes=2 * PAGE,
            capacity_bytes=CELLS * CELL,
            boot_id="",
        )
        assert SegmentFiles(self.address).back(CELLS * CELL)
        self.arena = ArenaMapping(self.address, Access.WRITE).array(0, CELLS * CELL)
        self.views = PrivateViews(self.address)
        self.live: list[tuple[np.ndarray, View, np.ndarray]] = []  # array, view, what it shows
        self.generation = 0

    @rule()
    def put(self) -> None:
        """Write everything that no live view looks at."""
        self.generation = self.generation % 250 + 1
        free = np.ones(CELLS * CELL, np.bool_)
        for _, view, _ in self.live:
            free[view.address : view.address + view.nbytes] = False
        self.arena[free] = self.generation

    @rule(first=st.integers(0, CELLS - 1), cells=st.integers(1, 7))
    def view_anything(self, first: int, cells: int) -> None:
        self.view(first, cells)

    def view(self, first: int, cells: int) -> None:
        low, high = first * CELL, min(first + cells, CELLS) * CELL
        array, view = self.views.view(low, high - low)
        self.live.append((array, view, self.arena[low:high].copy()))

    @rule(data=st.data())
    def view_beside_others(self, data: st.DataObject) -> None:
        """A view of cells that no live view covers, often in a page that one does."""
        covered = {
            cell
            for _, view, _ in self.live
            for cell in range(view.address // CELL, (view.address + view.nbytes) // CELL)
        }
        free = [cell for cell in range(CELLS) if cell not in covered]
        if free:
            first = data.draw(st.sampled_from(free))
            second_too = first + 1 in free and data.draw(st.booleans())
            self.view(first, 1 + second_too)

    @rule(data=st.data())
    def edit(self, data: st.DataObject) -> None:
        if self.live:
            array, _, shown = data.draw(st.sampled_from(self.live))
            array[:] = shown[:] = data.draw(st.integers(251, 255))

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.live:
            _, view, _ = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
            self.views.end([view])

    @invariant()
    def every_view_shows_its_bytes_and_its_own_edits(self) -> None:
        for array, _, shown in self.live:
            assert (array == shown).all()

    def teardown(self) -> None:
        self.live.clear()
        self.views.close()
        del self.arena
        gc.collect()
        self.directory.cleanup()


ViewsAgainstModel.TestCase.settings = settings(
    max_examples=30, stateful_step_count=40, deadline=None
)
TestViewsAgainstModel = ViewsAgainstModel.TestCase


class ViewsWithoutPageMap(ViewsAgainstModel):
    """The same where the kernel hides which pages were written."""

    def __init__(self) -> None:
        super().__init__()
        self.views._page_map._hidden = True


ViewsWithoutPageMap.TestCase.settings = ViewsAgainstModel.TestCase.settings
TestViewsWithoutPageMap = ViewsWithoutPageMap.TestCase
