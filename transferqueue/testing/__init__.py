"""Contract suites for backends, devices and samplers, and ways to see what was left open."""

from transferqueue.testing.backend_contract import CHECKS, Faults, check_backend
from transferqueue.testing.broken import ContractBroken
from transferqueue.testing.device_contract import DEVICE_CHECKS, check_device
from transferqueue.testing.leaks import Leaked, no_leaks
from transferqueue.testing.sampler_contract import SAMPLER_CHECKS, check_sampler

__all__ = [
    "CHECKS",
    "DEVICE_CHECKS",
    "SAMPLER_CHECKS",
    "ContractBroken",
    "Faults",
    "Leaked",
    "check_backend",
    "check_device",
    "check_sampler",
    "no_leaks",
]
