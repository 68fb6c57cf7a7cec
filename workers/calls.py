"""What passes between a group and its ranks, as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transferqueue.dispatch import Declaration, HandlePart, SplitCall

if TYPE_CHECKING:
    from transferqueue.handle import BatchHandle
    from workers.mesh import Placement
    from workers.pending import Pending


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCall:
    """The arguments of one rank."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    part: HandlePart | Pending | None = None
    """This rank's part of a handle, or what becomes it. The method gets a view of it."""
    place: int | str = 0
    """Where the view goes: a position, or the name of a keyword argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite:
    """What a dispatch mode may know of the call: the group behind it and the method called."""

    method: str
    """As messages name it: ``role.method``."""
    world_size: int
    """Ranks that are called."""
    placement: Placement
    declaration: Declaration = field(default_factory=Declaration)
    rank_zero_only: bool = False
    """Only rank zero runs the method: arguments go to it as they are, its answer is the answer."""
    group: Any = None
    """The group itself, for modes that users bring."""


Collect = Callable[[Sequence[Any]], Any]
"""Makes the answer of a call from what its ranks answered, by rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """A call, split: what each rank gets and how their answers become one."""

    calls: Sequence[RankCall]
    """By rank, for ``world_size`` ranks."""
    collect: Collect
    concat_ranks: tuple[int, ...] | None = None
    """When the answer is the answers of these ranks, concatenated; ``None`` for any other."""
    handle: BatchHandle | None = None
    """When the answer is this handle with what the ranks stored: its rows are known at once."""
    split: SplitCall | None = None
    """How that handle was split."""
    history: tuple[Any, ...] = ()
    """The answers that ``handle`` waits for itself, see `workers.futures.HandleFuture`."""
    is_portable: bool = True
    """Whether ``collect`` can run in another process."""


def to_all(site: CallSite, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[RankCall]:
    """The same arguments for every rank."""
    return [RankCall(args=tuple(args), kwargs=dict(kwargs))] * site.world_size


def by_rank(
    site: CallSite, args: Sequence[Sequence[Any]], kwargs: Mapping[str, Sequence[Any]]
) -> list[RankCall]:
    """Arguments that are lists with one entry a rank."""
    return [
        RankCall(
            args=tuple(arg[rank] for arg in args),
            kwargs={name: value[rank] for name, value in kwargs.items()},
        )
        for rank in range(site.world_size)
    ]


def all_answers(site: CallSite) -> Collect:
    """The answers of all ranks, or of the only one."""
    return _only if site.rank_zero_only else list


def _only(answers: Sequence[Any]) -> Any:
    return answers[0]
