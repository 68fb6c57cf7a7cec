"""A run written down in a TOML file, for ``python -m examples.async_ppo --config FILE``.

::

    [recipe]                # fields of `examples.tiny.recipe.Recipe`
    task = "addition"
    batch_rows = 256

    [recipe.task_options]   # parameters of the task
    digits = 3

    [driver]                # fields of `controller.driver_config.DriverConfig`
    num_steps = 200
    mode = "sync"
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from controller.plain_settings import check_names
from transferqueue.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """What a file says; keys inside the tables are checked by those whose settings they are."""

    recipe: Mapping[str, Any] = field(default_factory=dict)
    driver: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> RunFile:
        """``ConfigError`` for a file that cannot be read, is no TOML, or has another table."""
        try:
            tables = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{path}: {error}") from error
        check_names(f"table of {path}", tables, ("recipe", "driver"))
        for name, table in tables.items():
            if not isinstance(table, dict):
                raise ConfigError(f"{path}: {name!r} is a table, write [{name}] above its settings")
        return cls(**tables)
