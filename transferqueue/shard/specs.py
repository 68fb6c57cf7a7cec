"""Numbers for field specs, so that a slab can name its own with an int."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from transferqueue.fields import FieldSpec


class SpecTable:
    """Every spec once, in the order they came."""

    def __init__(self) -> None:
        self._ids: dict[FieldSpec, int] = {}
        self._specs: list[FieldSpec] = []

    def id_of(self, spec: FieldSpec) -> int:
        spec_id = self._ids.setdefault(spec, len(self._specs))
        if spec_id == len(self._specs):
            self._specs.append(spec)
        return spec_id

    def __getitem__(self, spec_id: int) -> FieldSpec:
        return self._specs[spec_id]

    def distinct(self, spec_ids: np.ndarray) -> tuple[list[FieldSpec], np.ndarray | None]:
        """The specs of some slabs, each once, and the index of each slab's own among them, int64;
        ``None`` where all have the same."""
        if len(spec_ids) == 0:
            return [], None
        first = int(spec_ids[0])
        if (spec_ids == first).all():
            return [self._specs[first]], None
        distinct, inverse = np.unique(spec_ids, return_inverse=True)
        return [self._specs[spec_id] for spec_id in distinct.tolist()], inverse
