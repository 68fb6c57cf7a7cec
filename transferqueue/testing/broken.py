"""What every contract suite raises."""

from __future__ import annotations


class ContractBroken(AssertionError):
    """Something does not do what its contract says. ``args``: the message."""


def expect(condition: object, message: str) -> None:
    """`ContractBroken` with the message unless the condition holds."""
    if not condition:
        raise ContractBroken(message)
