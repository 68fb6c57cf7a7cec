"""Contract suites for backends, devices, samplers and transports, and what sees open ends."""

from transferqueue.testing.backend_contract import CHECKS, Faults, check_backend
from transferqueue.testing.broken import ContractBroken
from transferqueue.testing.device_contract import DEVICE_CHECKS, check_device
from transferqueue.testing.leaks import Leaked, no_leaks
from transferqueue.testing.sampler_contract import SAMPLER_CHECKS, check_sampler
from transferqueue.testing.transport_contract import TRANSPORT_CHECKS, check_transport

__all__ = [
    "CHECKS",
    "DEVICE_CHECKS",
    "SAMPLER_CHECKS",
    "TRANSPORT_CHECKS",
    "ContractBroken",
    "Faults",
    "Leaked",
    "check_backend",
    "check_device",
    "check_sampler",
    "check_transport",
    "no_leaks",
]
