"""The control plane under any sequence of calls, with each kind of limit."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.coordinator.plane_machine import ControlPlaneMachine
from transferqueue.coordinator.policy import SamplesPerInsert


class QuotaMachine(ControlPlaneMachine):
    """One task, room for 7 rows, puts of up to 5 and claims of up to 6."""

    tasks = ("a",)
    max_rows = 7


class TwoTaskQuotaMachine(ControlPlaneMachine):
    """Rows are freed by two tasks, each of which can hold them."""

    max_rows = 8


class BytesMachine(ControlPlaneMachine):
    """Room for 14 cells, whichever rows and fields they are of."""

    max_bytes = 14 * 32


class RatioMachine(ControlPlaneMachine):
    """Two tasks, so that each row is handed out twice."""

    ratio = SamplesPerInsert(ratio=2.0, slack_rows=5.0, min_rows=2)


class EverythingMachine(ControlPlaneMachine):
    """All limits at once, and rows that are given up on after two deliveries."""

    max_rows = 8
    max_bytes = 20 * 32
    ratio = SamplesPerInsert(ratio=2.0, slack_rows=4.0)
    max_deliveries = 2


class DeadLetterMachine(ControlPlaneMachine):
    """Rows that are given up on after one delivery, under a quota that they use up."""

    max_rows = 7
    max_deliveries = 1


_SETTINGS = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestControlPlane = ControlPlaneMachine.TestCase
TestQuota = QuotaMachine.TestCase
TestTwoTaskQuota = TwoTaskQuotaMachine.TestCase
TestBytes = BytesMachine.TestCase
TestRatio = RatioMachine.TestCase
TestEverything = EverythingMachine.TestCase
TestDeadLetters = DeadLetterMachine.TestCase
TestControlPlane.settings = _SETTINGS
TestQuota.settings = _SETTINGS
TestTwoTaskQuota.settings = _SETTINGS
TestBytes.settings = _SETTINGS
TestRatio.settings = _SETTINGS
TestEverything.settings = _SETTINGS
TestDeadLetters.settings = _SETTINGS
