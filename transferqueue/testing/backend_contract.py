"""The backend contract as checks that any implementation can run.

::

    from transferqueue.testing.backend_contract import check_backend

    def test_my_backend() -> None:
        check_backend(MyBackend.open)

Each check opens backends of its own through ``maker`` and closes them. With pytest,
``@pytest.mark.parametrize("check", CHECKS)`` makes each a test of its own. Some faults of what
lies under a backend only its author can cause: pass `Faults`.
"""

from __future__ import annotations

from transferqueue.backends.checked import checked
from transferqueue.testing.backend_checks import LIFE_CHECKS
from transferqueue.testing.backend_faults import FAILURE_CHECKS, Faults
from transferqueue.testing.backend_probe import Check, Maker
from transferqueue.testing.broken import ContractBroken
from transferqueue.testing.leaks import Leaked, no_leaks

__all__ = ["CHECKS", "Check", "Faults", "Maker", "check_backend"]

CHECKS: list[Check] = [*LIFE_CHECKS, *FAILURE_CHECKS]


def check_backend(maker: Maker, faults: Faults | None = None) -> None:
    """Run every check. `ContractBroken` names the first that fails.

    ``maker`` is called with configurations whose budgets are at most 8 MiB; a service id and slot
    come again only to recover what an earlier backend of that name kept. It may be called in a
    forked child that is then killed. What says ``leaves_process`` is checked with the checks of
    bytes that a shard puts around it. ``faults``: what its author can break under it.
    """
    of_faults = () if faults is None else faults.checks()
    for check in (*CHECKS, *of_faults):
        try:
            with no_leaks():
                check(lambda config: checked(maker(config)))
        except (ContractBroken, Leaked) as broken:
            raise ContractBroken(f"{check.__name__}: {broken}") from broken
