"""Holds the claims of a driver for as long as it lives.

Samples stay claimed from the update until a checkpoint has it, which may be long. A lease that long
would keep a dead driver's samples away from the next one as long; so leases are short, and a thread
extends them.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Self

from transferqueue.errors import ClaimError, DeadlineExceeded, RowsGone

if TYPE_CHECKING:
    from types import TracebackType

    import transferqueue as tq

log = logging.getLogger(__name__)


class LeaseKeeper:
    """A context manager; the thread ends with it."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._claims: dict[int, tq.Claim] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)

    def hold(self, claim: tq.Claim) -> None:
        with self._lock:
            self._claims[claim.claim_id] = claim

    def let_go(self, claim: tq.Claim) -> None:
        with self._lock:
            self._claims.pop(claim.claim_id, None)

    def _run(self) -> None:
        while not self._stop.wait(self._lease_s / 3):
            with self._lock:
                claims = list(self._claims.values())
            for claim in claims:
                try:
                    claim.extend(self._lease_s)
                except (ClaimError, RowsGone, DeadlineExceeded) as error:
                    log.warning("a claim of %d samples was not extended: %s", len(claim), error)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
