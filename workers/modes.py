"""How the arguments of a call reach the ranks, and how their answers become one: `Dispatch`.

A mode is an object with `dispatch`; there is one for every attribute of `Dispatch`. Modes of your
own: `register_dispatch_mode` for a name, or a pair of functions given to ``register`` directly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Self

from transferqueue.dispatch import ByTokens, Padding
from transferqueue.errors import ConfigError, InvalidInput, near_names
from transferqueue.handle import BatchHandle
from transferqueue.view.lazy_dataproto import LazyDataProto
from workers.batches import cut, joining, padded
from workers.calls import CallSite, Dispatched, RankCall, all_answers, by_rank, to_all
from workers.handle_mode import dispatch_handle

DispatchFunction = Callable[..., tuple[Sequence[Any], Mapping[str, Any]]]
"""``(group, *args, **kwargs)`` -> lists of arguments with one entry a rank, or plain arguments
that every rank gets."""

CollectFunction = Callable[[Any, list[Any]], Any]
"""``(group, answers by rank)`` -> the answer."""


class DispatchMode(ABC):
    """One way. A value: it may be shared by any number of methods and groups."""

    mesh: str | None = None
    """The mesh of the group by which parts go to ranks; ``None``: the group's own."""

    @abstractmethod
    def dispatch(
        self, site: CallSite, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Dispatched:
        """Split a call. Raises ``InvalidInput`` for arguments that the mode cannot split."""


@dataclass(frozen=True, slots=True)
class RankZero(DispatchMode):
    """Rank zero alone gets the arguments, and its answer is the answer."""

    def dispatch(
        self, site: CallSite, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Dispatched:
        return Dispatched(calls=to_all(site, args, kwargs), collect=all_answers(site))


@dataclass(frozen=True, slots=True)
class OneToAll(DispatchMode):
    """Every rank gets the same arguments; the answer is a list, one a rank."""

    def dispatch(
        self, site: CallSite, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Dispatched:
        return Dispatched(calls=to_all(site, args, kwargs), collect=all_answers(site))


@dataclass(frozen=True, slots=True)
class AllToAll(DispatchMode):
    """Arguments that are all lists with one entry a rank go one to each; any others to all."""

    def dispatch(
        self, site: CallSite, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Dispatched:
        calls = as_given(site, args, kwargs)
        return Dispatched(calls=calls, collect=all_answers(site))


def as_given(site: CallSite, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[RankCall]:
    """One entry to each rank where all arguments are lists of as many, else all to all."""
    values = [*args, *kwargs.values()]
    is_split = all(isinstance(v, list | tuple) and len(v) == site.world_size for v in values)
    if values and is_split and not site.rank_zero_only:
        return by_rank(site, args, kwargs)
    return to_all(site, args, kwargs)


@dataclass(frozen=True, slots=True)
class Compute(DispatchMode):
    """Every argument is a list with one entry a rank; so is the answer."""

    def dispatch(
        self, site: CallSite, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Dispatched:
        for what, value in _named(args, kwargs):
            if not isinstance(value, list | tuple) or len(value) != site.world_size:
                got = f"{len(value)} entries" if isinstance(value, list | tuple) else repr(value)
                raise InvalidInput(
                    f"{site.method}: DP_COMPUTE takes lists with one entry for each of "
                    f"{site.world_size} ranks, {what} has {got:.80}"
                )
        return Dispatched(calls=by_rank(site, args, kwargs), collect=all_answers(site))


@dataclass(frozen=True, slots=True)
class ComputeProto(DispatchMode):
    """Batches are cut over the data-parallel ranks, columns and all, and the answers joined.

    Uneven: 10 rows on 4 ranks are 3, 3, 2, 2. Where auto padding is on for a DataProto every rank
    gets as many rows; what the padding rows give is dropped again.
    """

    mesh: str | None = None
    with_function: bool = False
    """The first argument is a function, which every rank gets."""
    metrics: bool = False
    """The answer is a list with what each rank returned, not one batch."""
    batches_or_values: bool = False
    """The answer is one batch when the ranks return batches, else such a list."""

    def on(self, mesh: str) -> Self:
        """By another mesh of the group."""
        return replace(self, mesh=mesh)

    def dispatch(
        self, site: CallSite, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Dispatched:
        whole = args[:1] if self.with_function else ()
        if self.with_function and not (args and callable(args[0])):
            raise InvalidInput(f"{site.method} takes a function as its first argument")
        num_parts = site.placement.num_parts
        batches = {
            what: padded(value, num_parts) for what, value in _named(args[len(whole) :], kwargs)
        }
        parts = {
            what: cut(batch, num_parts, what=f"{site.method}: {what}")
            for what, (batch, _) in batches.items()
        }
        _check_padding(site, batches)
        num_args = len(args) - len(whole)
        spread = {
            what: [values[part] for part in site.placement.part_of_rank]
            for what, values in parts.items()
        }
        by_name = list(spread.values())
        calls = by_rank(
            site,
            [*([value] * site.world_size for value in whole), *by_name[:num_args]],
            dict(zip(kwargs, by_name[num_args:], strict=True)),
        )
        if self.metrics:
            return Dispatched(calls=calls, collect=all_answers(site))
        return self._joined(site, calls, batches)

    def _joined(
        self, site: CallSite, calls: Sequence[RankCall], batches: Mapping[str, tuple[Any, int]]
    ) -> Dispatched:
        ranks = tuple(site.placement.answering_ranks)
        batch, num_padding = max(batches.values(), key=lambda pair: pair[1], default=((), 0))
        num_rows = len(batch) if num_padding else 0
        return Dispatched(
            calls=calls,
            collect=joining(
                method=site.method,
                ranks=ranks,
                num_rows=num_rows,
                num_padding=num_padding,
                must_join=not self.batches_or_values,
            ),
            concat_ranks=None if num_padding else ranks,
        )


def _named(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    positional = [(f"argument {number + 1}", value) for number, value in enumerate(args)]
    return positional + [(f"argument {name}", value) for name, value in kwargs.items()]


def _check_padding(site: CallSite, batches: Mapping[str, tuple[Any, int]]) -> None:
    """Batches of different lengths cannot be padded together: their rows would not line up."""
    lengths = {what: len(batch) for what, (batch, added) in batches.items() if added}
    if lengths and len(set(lengths.values())) > 1:
        raise InvalidInput(f"{site.method}: padded batches of different lengths: {lengths}")


@dataclass(frozen=True, slots=True)
class Handle(DispatchMode):
    """A handle is split over the data-parallel ranks; columns go from and to the service.

    The one argument that is a handle (or a lazy view, `by_tokens` of either, or a future) is split;
    others go to every rank. A rank gets a lazy view of its rows, with the declared ``reads``
    there. What it returns for the declared ``writes`` is put by one rank of those that share a
    part, and the call gives back the handle with those fields. See
    `transferqueue.dispatch.join` for what else a call gives back.

    Uneven: 10 rows on 4 ranks are 3, 3, 2, 2. A rank that would get no row gets a virtual one,
    which ``meta_info["num_padding_rows"]`` tells, and of which nothing is stored.
    """

    mesh: str | None = None
    padding: Padding = Padding.ONE_ROW

    def on(self, mesh: str) -> Self:
        """By another mesh of the group."""
        return replace(self, mesh=mesh)

    def padded(self, padding: Padding = Padding.EQUAL) -> Self:
        """Every rank gets as many rows, for methods that run collectives a row or a step; or, with
        ``Padding.NONE``, some none at all."""
        return replace(self, padding=padding)

    def dispatch(
        self, site: CallSite, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Dispatched:
        return dispatch_handle(site, args, kwargs, padding=self.padding)


@dataclass(frozen=True, slots=True)
class WholeBatch(ComputeProto):
    """Columns are shipped where `Handle` ships a handle: the caller fetches all of a view."""

    batches_or_values: bool = True

    def dispatch(
        self, site: CallSite, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Dispatched:
        whole = {name: _fetched(site, value) for name, value in kwargs.items()}
        # Not super(): a dataclass with slots is made anew, and that knows the first one only.
        return ComputeProto.dispatch(self, site, [_fetched(site, value) for value in args], whole)


def _fetched(site: CallSite, value: Any) -> Any:
    if isinstance(value, ByTokens):  # which rank gets which rows is the mode's own affair
        value = value.batch
    if isinstance(value, BatchHandle):
        raise InvalidInput(
            f"{site.method} got a handle, and its group ships whole batches (fat=True): give it "
            f"client.view(handle), of which the caller then fetches every column"
        )
    return value.materialize() if isinstance(value, LazyDataProto) else value


def fat_mode(mode: Handle) -> WholeBatch:
    """The mode that ships the columns where ``mode`` ships a handle, to compare the two."""
    return WholeBatch(mesh=mode.mesh)


@dataclass(frozen=True, slots=True)
class FunctionPair(DispatchMode):
    """A mode made of two functions, with the signatures that verl's have."""

    dispatch_fn: DispatchFunction
    collect_fn: CollectFunction

    @classmethod
    def of(cls, pair: Any) -> FunctionPair:
        """A pair, or a dict with ``dispatch_fn`` and ``collect_fn``. ``ConfigError`` else."""
        if isinstance(pair, Mapping):
            missing = {"dispatch_fn", "collect_fn"} - pair.keys()
            if missing:
                raise ConfigError(f"a dispatch mode as a dict lacks {sorted(missing)}")
            pair = (pair["dispatch_fn"], pair["collect_fn"])
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(map(callable, pair)):
            raise ConfigError(
                f"dispatch_mode is one of Dispatch, a pair (dispatch_fn, collect_fn) or a dict of "
                f"both, got {pair!r:.80}"
            )
        return cls(*pair)

    def dispatch(
        self, site: CallSite, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Dispatched:
        split_args, split_kwargs = self.dispatch_fn(site.group, *args, **kwargs)
        calls = as_given(site, split_args, split_kwargs)
        return Dispatched(
            calls=calls,
            collect=partial(_collected, self.collect_fn, site.group),
            is_portable=False,
        )


def _collected(collect_fn: CollectFunction, group: Any, answers: Sequence[Any]) -> Any:
    return collect_fn(group, list(answers))


class _Modes(type):
    """Gives `Dispatch` the modes that were registered as attributes."""

    registered: ClassVar[dict[str, DispatchMode]] = {}

    def __getattr__(cls, name: str) -> DispatchMode:
        mode = _Modes.registered.get(name)
        if mode is None:
            known = [key for key in vars(cls) if key.isupper()] + list(_Modes.registered)
            raise AttributeError(
                f"no dispatch mode {name!r}; did you mean {near_names(name, known) or known}?"
            )
        return mode


class Dispatch(metaclass=_Modes):
    """The dispatch modes by name. Those of `register_dispatch_mode` are attributes too."""

    RANK_ZERO: ClassVar = RankZero()
    ONE_TO_ALL: ClassVar = OneToAll()
    ALL_TO_ALL: ClassVar = AllToAll()
    DP_COMPUTE: ClassVar = Compute()
    DP_COMPUTE_PROTO: ClassVar = ComputeProto()
    DP_COMPUTE_PROTO_WITH_FUNC: ClassVar = ComputeProto(with_function=True)
    DP_COMPUTE_METRIC: ClassVar = ComputeProto(metrics=True)
    HANDLE: ClassVar = Handle()


def register_dispatch_mode(
    name: str, dispatch_fn: DispatchFunction, collect_fn: CollectFunction
) -> DispatchMode:
    """A mode of your own, as ``Dispatch.<name>`` from now on. ``ConfigError`` when the name is
    taken."""
    if name in vars(Dispatch) or name in _Modes.registered:
        raise ConfigError(f"there is a dispatch mode {name!r} already")
    mode = _Modes.registered[name] = FunctionPair(dispatch_fn, collect_fn)
    return mode


class Execute(Enum):
    """Which ranks run a method."""

    ALL = "all"
    RANK_ZERO = "rank_zero"
    """Rank zero alone; its answer is the answer."""
