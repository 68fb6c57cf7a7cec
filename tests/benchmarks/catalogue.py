"""Every workload, in the order in which they run and are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.benchmarks.workloads.backends import Backends
from tests.benchmarks.workloads.batches import Batches
from tests.benchmarks.workloads.claiming import ClaimCrowd, Samplers, Streams
from tests.benchmarks.workloads.complex_columns import ComplexColumns
from tests.benchmarks.workloads.coordinator import Coordinator, Wake
from tests.benchmarks.workloads.dispatch import Dispatch
from tests.benchmarks.workloads.durability import Checkpoint, JournalCost, Recovery, ReplicaCost
from tests.benchmarks.workloads.handle_algebra import HandleAlgebra
from tests.benchmarks.workloads.loopback import Loopback
from tests.benchmarks.workloads.many_clients import Crowd, ManyClients
from tests.benchmarks.workloads.memory import Memory
from tests.benchmarks.workloads.one_sample import OneSample
from tests.benchmarks.workloads.parts import OneField, RandomRows
from tests.benchmarks.workloads.same_host import SameHost
from tests.benchmarks.workloads.service_backends import ServiceBackends
from tests.benchmarks.workloads.start_up import StartUp

if TYPE_CHECKING:
    from tests.benchmarks.stage import Workload

WORKLOADS: tuple[Workload, ...] = (
    SameHost(),
    ComplexColumns(),
    Loopback(),
    OneSample(),
    OneField(),
    RandomRows(),
    ManyClients(),
    Crowd(),
    Memory(),
    StartUp(),
    HandleAlgebra(),
    Batches(),
    Dispatch(),
    Coordinator(),
    Samplers(),
    Wake(),
    ClaimCrowd(),
    Streams(),
    JournalCost(),
    ReplicaCost(),
    Recovery(),
    Checkpoint(),
    Backends(),
    ServiceBackends(),
)
