"""Training drivers: what a single controller decides, and in which order."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from controller.advantage_stage import Algorithm
    from controller.checkpoints import CheckpointFolder
    from controller.dataflow import Dataflow, Stage
    from controller.driver import PpoDriver
    from controller.driver_config import DriverConfig, Mode, Transport
    from controller.errors import DataflowError
    from controller.ppo_settings import PpoSettings
    from controller.step_report import StepReport

_HOME = {
    "Algorithm": "controller.advantage_stage",
    "CheckpointFolder": "controller.checkpoints",
    "Dataflow": "controller.dataflow",
    "DataflowError": "controller.errors",
    "DriverConfig": "controller.driver_config",
    "Mode": "controller.driver_config",
    "PpoDriver": "controller.driver",
    "PpoSettings": "controller.ppo_settings",
    "Stage": "controller.dataflow",
    "StepReport": "controller.step_report",
    "Transport": "controller.driver_config",
}
"""Where each public name is defined."""

__all__ = [
    "Algorithm",
    "CheckpointFolder",
    "Dataflow",
    "DataflowError",
    "DriverConfig",
    "Mode",
    "PpoDriver",
    "PpoSettings",
    "Stage",
    "StepReport",
    "Transport",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
