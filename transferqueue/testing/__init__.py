"""Contract suites that any backend can run, and ways to see that nothing was left open."""

from transferqueue.testing.backend_contract import CHECKS, ContractBroken, check_backend
from transferqueue.testing.leaks import Leaked, no_leaks

__all__ = ["CHECKS", "ContractBroken", "Leaked", "check_backend", "no_leaks"]
