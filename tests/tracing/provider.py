"""What a process of a service is told to trace with: every span is a line of a file."""

from __future__ import annotations

import os

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

FOLDER_VARIABLE = "TRANSFERQUEUE_TEST_SPANS"


def _line(span: ReadableSpan) -> str:
    return str(span.to_json(indent=None)) + "\n"


def to_files(process: str) -> TracerProvider:
    path = os.path.join(os.environ[FOLDER_VARIABLE], f"{process}.jsonl")
    out = open(path, "a", encoding="utf-8")  # noqa: SIM115 - for the life of the process
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=out, formatter=_line)))
    return provider


def nothing(process: str) -> str:
    return process
