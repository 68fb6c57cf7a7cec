"""What is wrong with a driver's settings.

::

    TransferQueueError
    └── ConfigError
        └── DataflowError   a table of stages that cannot run
"""

from __future__ import annotations

from transferqueue.errors import ConfigError


class DataflowError(ConfigError):
    """A table that cannot run. ``args``: the message."""
