"""What of a service's facts is well, and what is not. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.errors import WireError
from transferqueue.service.doctor.check import Check, fail, ok, warn

if TYPE_CHECKING:
    from transferqueue.errors import TransferQueueError
    from transferqueue.service.doctor.service_facts import ServiceFacts

SKEW_S = 1.0
"""Leases and waits are spans of time and do not mind clocks; logs of several hosts do."""

NEARLY_FULL = 0.95
LONG_WAIT_S = 60.0
SLOW_ANSWER_S = 1.0


def check_service(facts: ServiceFacts) -> list[Check]:
    """Everything, in the order in which it is to be read."""
    return [
        _answer(facts),
        *_endpoints(facts),
        *_links(facts),
        _clocks(facts),
        _restarts(facts),
        _space(facts),
        _waits(facts),
        _strangers(facts),
    ]


def unreached(error: TransferQueueError, *, was_named: bool) -> Check:
    """The service could not be reached. ``was_named``: somebody said where it is."""
    advice = f"transferqueue explain {type(error).__name__}"
    return (fail if was_named else warn)("service", str(error), advice)


def _answer(facts: ServiceFacts) -> Check:
    status = facts.status
    found = (
        f"{status['service_id']} at {facts.address}: coordinator and {len(status['shards'])} "
        f"shards answered in {facts.answer_s * 1e3:.0f} ms"
    )
    if facts.answer_s > SLOW_ANSWER_S:
        return warn("service", found, "see what the hosts' cores do: a shard has one thread")
    return ok("service", found)


def _endpoints(facts: ServiceFacts) -> list[Check]:
    """Those that are not reached, as failures where the link needs them."""
    used = {link["endpoint"] for link in facts.links} | {facts.address}
    bad = [end for end in facts.endpoints if not end.is_reached]
    checks = []
    for end in bad:
        found = f"{end.peer} at {end.address}: {end.why}"
        if end.address in used:
            checks.append(fail("ports", found, "open the port, or see whether the process lives"))
        elif end.address.startswith("tcp://"):
            checks.append(
                warn("ports", found, "this process does not need it; those of other hosts do")
            )
    num = len(facts.endpoints) - len(bad)
    return [ok("ports", f"{num} of {len(facts.endpoints)} endpoints reached from here"), *checks]


def _links(facts: ServiceFacts) -> list[Check]:
    checks = []
    for link in facts.links:
        name, found = f"way to shard {link['slot']}", f"{link['way']}"
        if link.get("device"):
            found += f", tensors to {link['device']} by {link['rung']}"
        if link.get("beside"):
            found += f", those on its device by {link['beside']}"
        if link["why_not_better"]:
            found += f", not better: {link['why_not_better']}"
        if link["same_host"] and link["way"] == "tcp":
            checks.append(warn(name, found, "share the runtime and arena folders of containers"))
        else:
            checks.append(ok(name, found))
    return checks


def _clocks(facts: ServiceFacts) -> Check:
    worst = max(facts.clocks, key=lambda clock: abs(clock.skew_s))
    if abs(worst.skew_s) > SKEW_S:
        return warn(
            "clocks",
            f"{worst.peer} is {worst.skew_s:+.1f} s from here",
            "logs cannot be compared; run a time service (leases are not affected)",
        )
    return ok(
        "clocks", f"{len(facts.clocks)} processes within {facts.answer_s * 1e3:.0f} ms of here"
        if not worst.skew_s else f"at most {abs(worst.skew_s) * 1e3:.0f} ms apart",
    )  # fmt: skip


def _restarts(facts: ServiceFacts) -> Check:
    again = {shard["slot"]: shard["epoch"] for shard in facts.status["shards"] if shard["epoch"]}
    if not again:
        return ok("restarts", "no shard was started again")
    listed = ", ".join(f"shard {slot} {times} times" for slot, times in again.items())
    return warn("restarts", listed, "see shard-*.log in the service's runtime folder, and dmesg")


def _space(facts: ServiceFacts) -> Check:
    shares = {
        shard["slot"]: shard["used_bytes"] / shard["budget_bytes"]
        for shard in facts.status["shards"]
    }
    full = {slot: share for slot, share in shares.items() if share > NEARLY_FULL}
    if full:
        listed = ", ".join(f"shard {slot} {share:.0%}" for slot, share in full.items())
        return warn("space", f"nearly full: {listed}", "transferqueue held")
    return ok("space", f"shards are at most {max(shares.values(), default=0):.0%} full")


def _waits(facts: ServiceFacts) -> Check:
    entries = facts.waits["waits"]
    if entries and entries[0]["since_s"] > LONG_WAIT_S:
        first = entries[0]
        return warn(
            "waits",
            f"{first['kind']} {first['task']} waits since {first['since_s']:.0f} s: {first['why']}",
            "transferqueue waits",
        )
    return ok("waits", "nobody has waited for a minute")


def _strangers(facts: ServiceFacts) -> Check:
    reports = [facts.status, *facts.status["shards"]]
    num_keyless = sum(report["keys_refused"] for report in reports)
    num_foreign = sum(report["refusals"].get(WireError.__name__, 0) for report in reports)
    found = [
        *([f"{num_keyless} TCP connections came without the key"] if num_keyless else []),
        *([f"{num_foreign} TCP connections spoke another protocol"] if num_foreign else []),
    ]
    if found:
        return warn(
            "strangers",
            ", ".join(found),
            "a client with the key of an earlier start, or somebody who scans ports",
        )
    return ok("strangers", "nobody came without the key")
