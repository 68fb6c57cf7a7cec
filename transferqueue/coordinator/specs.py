"""Field specs as the coordinator sees them: opaque tuples, a byte each in the table.

A shard reports how the rows of one field of one put look. Most fields have one spec, a few have a
handful, so a cell keeps one byte: 0 not ready, 1 released early, 2 to 254 a spec's number, 255 one
of the specs past the 253rd, of which only the merged form is kept.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from transferqueue.errors import FieldSpecMismatch, InvalidInput
from transferqueue.fields import FieldSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

Spec: TypeAlias = tuple[str, tuple[int, ...], int | None, str]
"""dtype name, per-sample shape (-1 where it varies), per-sample ragged dim or None, kind."""

NOT_READY = 0
RELEASED = 1
FIRST_SPEC = 2
MIXED = 255


def spec_from_plain(field: str, value: Any) -> Spec:
    """A spec from its wire form (lists for tuples); InvalidInput names the field."""
    try:
        dtype, shape, ragged_dim, kind = value
        spec = (str(dtype), tuple(int(d) for d in shape), ragged_dim, str(kind))
    except (TypeError, ValueError) as err:
        raise InvalidInput(f"field {field!r}: not a field spec: {value!r}") from err
    if ragged_dim is not None and not isinstance(ragged_dim, int):
        raise InvalidInput(f"field {field!r}: ragged_dim must be an int or None: {ragged_dim!r}")
    return spec


def merge_specs(field: str, specs: Iterable[Spec]) -> Spec:
    """One spec for rows of several, by the rules of `FieldSpec.merge`; FieldSpecMismatch."""
    distinct = list(dict.fromkeys(specs))
    if len(distinct) == 1:
        return distinct[0]
    merged, *rest = (FieldSpec.from_wire(spec) for spec in distinct)
    for spec in rest:
        merged = merged.merge(spec, field=field)
    return merged.dtype, merged.shape, merged.ragged_dim, merged.kind.value


class SpecCodes:
    """The specs of one field of one partition, by their one-byte code."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._specs: list[Spec] = []
        self._code_of: dict[Spec, int] = {}
        self._mixed: list[Spec] = []  # merged; more than one only where they cannot be merged

    def code(self, spec: Spec) -> int:
        """The code of this spec, a new one while there are any."""
        code = self._code_of.get(spec)
        if code is not None:
            return code
        if len(self._specs) < MIXED - FIRST_SPEC:
            code = FIRST_SPEC + len(self._specs)
            self._specs.append(spec)
            self._code_of[spec] = code
            return code
        self._merge_into_mixed(spec)
        return MIXED

    def _merge_into_mixed(self, spec: Spec) -> None:
        for i, mixed in enumerate(self._mixed):
            with contextlib.suppress(FieldSpecMismatch):
                self._mixed[i] = merge_specs(self._field, (mixed, spec))
                return
        self._mixed.append(spec)

    def merged(self, codes: NDArray[np.uint8]) -> Spec:
        """One spec for ready cells with these codes. There has to be at least one."""
        first = int(codes[0])
        if first != MIXED and bool((codes == first).all()):
            return self._specs[first - FIRST_SPEC]
        present = np.flatnonzero(np.bincount(codes, minlength=MIXED + 1))
        specs = [self._specs[code - FIRST_SPEC] for code in present.tolist() if code != MIXED]
        return merge_specs(self._field, specs + (self._mixed if present[-1] == MIXED else []))
