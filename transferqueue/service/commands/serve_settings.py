"""What ``transferqueue serve`` is told, as the arguments of `serve` or `join`: a file, then flags.

A file is TOML and has every argument by its name::

    shards = 2
    budget_bytes = 8_589_934_592

    [backends.disk]                 # for create_partition(backend={"pixels": "disk"})
    budget_bytes = 68_719_476_736
    arena_dir = "/data"

    [transports.sockets]

    [read_keys]
    dashboard = ["train"]           # or "*": all partitions

A flag counts more than the file, entry by entry where there are several. `FLAGS` says which flag is
which argument.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from transferqueue.errors import ConfigError, near_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

MIB = 1 << 20

FLAGS: Mapping[str, str] = {
    "shards": "--shards",
    "budget_bytes": "--budget-mib",
    "backend": "--backend",
    "backend_options": "--backend-option",
    "arena_dir": "--arena-dir",
    "backends": "--also",
    "transports": "--transport",
    "spill_dir": "--spill-dir",
    "spill_bytes": "--spill-mib",
    "spill_high": "--spill-high",
    "spill_low": "--spill-low",
    "host": "--host",
    "encrypt": "--no-encryption",
    "read_keys": "--read-key",
    "prefault": "--prefault",
    "replicas": "--replicas",
    "copy_bytes_per_s": "--copy-mib-per-s",
    "takeover_s": "--takeover-s",
    "guard_silence_s": "--guard-silence-s",
    "restart": "--no-restart",
    "samplers": "--sampler",
    "tracing": "--tracing",
    "start_timeout_s": "--start-timeout-s",
    "restore": "--restore",
}
"""By argument of `serve`. ``in_process`` has none: nobody could connect."""


def arguments(
    flags: Mapping[str, Any], path: Path | None, allowed: Iterable[str], what: str
) -> dict[str, Any]:
    """``flags``: values by argument, as click gives them; ``None``, empty or false: not given.
    ``allowed``: arguments of ``what`` is to be called. `ConfigError` for one that it does not
    have."""
    names = list(allowed)
    given = {} if path is None else _from_file(path, names)
    for argument, value in flags.items():
        if value is None or value is False or value == ():
            continue
        if argument not in names:
            raise ConfigError(f"{FLAGS[argument]} is not for {what}")
        value = _READERS.get(argument, _as_it_is)(value)
        given[argument] = {**given.get(argument, {}), **value} if type(value) is dict else value
    return given


def _from_file(path: Path, names: list[str]) -> dict[str, Any]:
    import tomllib

    try:
        given = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    for name in given:
        if name not in names:
            near = near_names(name, names)
            meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise ConfigError(f"{path}: no setting {name!r}{meant}; there are {sorted(names)}")
    keys = given.get("read_keys")
    if isinstance(keys, dict):
        given["read_keys"] = {key: None if what == "*" else what for key, what in keys.items()}
    return given


def _as_it_is(value: Any) -> Any:
    return value


def _mib(value: float) -> int:
    return int(value * MIB)


def _not(value: bool) -> bool:  # noqa: FBT001 - a flag that says no
    return not value


def _options(pairs: Iterable[str]) -> dict[str, Any]:
    """Of ``KEY=VALUE`` each. A value is JSON, or else the text as it is."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not (key and equals):
            raise ConfigError(f"KEY=VALUE expected, got {pair!r}")
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found


def _named(given: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Of ``NAME:KEY=VALUE,KEY=VALUE`` each, or ``NAME`` alone."""
    found = {}
    for one in given:
        name, _, rest = one.partition(":")
        found[name] = _options(pair for pair in rest.split(",") if pair)
    return found


def _backends(given: Iterable[str]) -> dict[str, dict[str, Any]]:
    """``budget_mib``, ``backend`` and ``arena_dir`` are the backend's own; what else there is are
    its options."""
    found = {}
    for name, pairs in _named(given).items():
        settings: dict[str, Any] = {k: pairs.pop(k) for k in _OF_A_BACKEND if k in pairs}
        if "budget_mib" in pairs:
            settings["budget_bytes"] = _mib(pairs.pop("budget_mib"))
        found[name] = {**settings, "options": pairs} if pairs else settings
    return found


_OF_A_BACKEND = ("backend", "arena_dir")


def _read_keys(given: Iterable[str]) -> dict[str, list[str] | None]:
    """Of ``NAME=PARTITION,PARTITION`` each, or ``NAME`` alone for all of them."""
    found: dict[str, list[str] | None] = {}
    for one in given:
        name, equals, partitions = one.partition("=")
        found[name] = partitions.split(",") if equals else None
    return found


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "budget_bytes": _mib,
    "spill_bytes": _mib,
    "copy_bytes_per_s": _mib,
    "encrypt": _not,
    "restart": _not,
    "backend_options": _options,
    "backends": _backends,
    "transports": _named,
    "read_keys": _read_keys,
}
