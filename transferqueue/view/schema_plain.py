"""A `Schema` as plain values, so that a partition can carry it to every client."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from transferqueue.errors import InvalidInput, near_names
from transferqueue.view import derived, schema

if TYPE_CHECKING:
    from collections.abc import Mapping

_STORAGES: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (schema.Narrow, schema.Bits, schema.Ragged, schema.RaggedUnder)
}
_DERIVATIONS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        derived.NotValue,
        derived.Positions,
        derived.RunMask,
        derived.Padded,
        derived.PaddedWhere,
        derived.Tail,
        derived.Cast,
        derived.Unpacked,
    )
}


def to_plain(value: schema.Schema) -> dict[str, Any]:
    """``InvalidInput`` names a column whose storage or derivation is of the caller's own making:
    code does not travel, so such a schema is handed to both sides in code."""
    return {
        "store": {name: _plain(name, one, _STORAGES) for name, one in value.store.items()},
        "derive": {name: _plain(name, one, _DERIVATIONS) for name, one in value.derive.items()},
    }


def from_plain(plain: Mapping[str, Any]) -> schema.Schema:
    """Inverse of `to_plain`. ``InvalidInput`` for what it would not write."""
    unknown = set(plain) - {"store", "derive"}
    if unknown:
        raise InvalidInput(f"a schema has 'store' and 'derive', not {sorted(unknown)}")
    return schema.Schema(
        store={name: _value(name, one, _STORAGES) for name, one in plain.get("store", {}).items()},
        derive={
            name: _value(name, one, _DERIVATIONS) for name, one in plain.get("derive", {}).items()
        },
    )


def _plain(name: str, value: Any, kinds: Mapping[str, type[Any]]) -> list[Any]:
    kind = type(value)
    if kinds.get(kind.__name__) is not kind:
        raise InvalidInput(
            f"column {name!r}: a {kind.__name__} cannot be sent with a partition, only "
            f"{', '.join(kinds)} can; give the schema to both sides in code"
        )
    return [kind.__name__, asdict(value)]


def _value(name: str, plain: Any, kinds: Mapping[str, type[Any]]) -> Any:
    try:
        kind, settings = plain
        made = kinds[kind]
    except KeyError:
        near = near_names(str(plain[0]), kinds)
        raise InvalidInput(
            f"column {name!r}: unknown {plain[0]!r}"
            + (f"; did you mean {near[0]!r}?" if near else "")
        ) from None
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"column {name!r}: not [kind, settings] but {plain!r:.80}") from error
    try:
        return made(**settings)
    except TypeError as error:
        raise InvalidInput(f"column {name!r}: {error}") from error
