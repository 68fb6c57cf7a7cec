"""From what a service is told of tracing to the spans of one of its processes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from transferqueue.errors import ConfigError

if TYPE_CHECKING:
    from transferqueue.tracing.base import RequestSpans

CHROME = "chrome:"


def request_spans(tracing: str, process: str) -> RequestSpans:
    """``tracing``: see `ServiceConfig`. `PackageMissing`, `ConfigError`."""
    from transferqueue.tracing.otel import OtelRequestSpans

    if tracing.startswith(CHROME):
        from transferqueue.tracing.chrome import provider_to

        return OtelRequestSpans(provider_to(tracing.removeprefix(CHROME), process), process)
    module_name, _, attribute = tracing.partition(":")
    try:
        make = getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"tracing={tracing!r} cannot be used: {error}") from error
    provider = make(process)
    if not hasattr(provider, "get_tracer"):
        raise ConfigError(f"tracing={tracing!r} made {provider!r:.80}, which is no TracerProvider")
    return OtelRequestSpans(provider, process)
