"""Serves the metrics of a service to Prometheus. Asks the service when it is asked itself."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from transferqueue.closing import Closing
from transferqueue.errors import ConfigError, PackageMissing, TransferQueueError
from transferqueue.service.metrics.families import FAMILIES, PREFIX, Distribution, Family, Kind

try:
    from prometheus_client import CollectorRegistry, generate_latest, start_http_server
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
except ModuleNotFoundError as _error:
    raise PackageMissing("prometheus_client", "metrics") from _error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_TYPES: Mapping[Kind, Any] = {
    Kind.GAUGE: GaugeMetricFamily,
    Kind.COUNTER: CounterMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}


class _Collector:
    """What a registry asks at every scrape."""

    def __init__(self, ask: Callable[[], Mapping[str, Any]]) -> None:
        self._ask = ask

    def describe(self) -> list[Any]:
        """Nothing: else the registry would scrape to learn the names."""
        return []

    def collect(self) -> Iterator[Any]:
        try:
            status = self._ask()
        except TransferQueueError:  # whoever watches is to see that, not a failed scrape
            yield GaugeMetricFamily(f"{PREFIX}up", "1 when the service answered.", value=0)
            return
        for family in FAMILIES:
            yield _exported(family, status)


def _exported(family: Family, status: Mapping[str, Any]) -> Any:
    made = _TYPES[family.kind](family.name, family.help, labels=family.labels)
    for sample in family.read(status):
        if isinstance(sample.value, Distribution):
            made.add_metric(sample.labels, _buckets(sample.value), sum_value=sample.value.total)
        else:
            made.add_metric(sample.labels, sample.value)
    return made


def _buckets(value: Distribution) -> list[tuple[str, float]]:
    """Upper bounds as text, and how many are at or below each."""
    bounds = [*map(str, value.bounds), "+Inf"]
    return list(zip(bounds, accumulate(value.counts), strict=True))


def registry_of(ask: Callable[[], Mapping[str, Any]]) -> CollectorRegistry:
    """``ask``: `Client.status`. To be served beside the metrics of an application of one's own."""
    registry = CollectorRegistry()
    registry.register(_Collector(ask))
    return registry


def exposition(ask: Callable[[], Mapping[str, Any]]) -> str:
    """One scrape, as text."""
    return generate_latest(registry_of(ask)).decode()


class Exporter(Closing):
    """``http://host:port/metrics``, answered by threads of this process until it is closed.

    Without a password, as Prometheus has it: names of partitions, fields and roles can be read by
    whoever reaches the port, samples cannot.
    """

    def __init__(self, ask: Callable[[], Mapping[str, Any]], *, host: str, port: int) -> None:
        """``port`` 0: any that is free. ConfigError when there is no such interface, or somebody
        else has the port."""
        try:
            self._server, self._thread = start_http_server(
                port, addr=host, registry=registry_of(ask)
            )
        except OSError as error:
            raise ConfigError(f"cannot serve metrics on {host}:{port}: {error}") from None

    @property
    def address(self) -> str:
        """Where to scrape."""
        host, port = self._server.server_address[:2]
        name = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{name}:{port}/metrics"

    def close(self) -> None:
        """Stop answering. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
