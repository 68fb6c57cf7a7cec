"""A request is followed from a worker to its shard, over real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import transferqueue as tq
from tests.tracing.provider import FOLDER_VARIABLE
from transferqueue import errors
from transferqueue.tracing.base import checked_trace

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from transferqueue.tracing.chrome import provider_to
from transferqueue.tracing.otel import MAX_OPEN, OtelRequestSpans

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
EXPORTER = InMemorySpanExporter()
LARGE = torch.zeros(64, 1 << 13)


@pytest.fixture(scope="module", autouse=True)
def _provider() -> None:
    """As an application sets its own, once."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(provider)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spans")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[tq.Service]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(folder))
        with tq.serve(
            shards=2, budget_bytes=16 << 20, tracing="tests.tracing.provider:to_files"
        ) as running:
            yield running


@pytest.fixture
def client(service: tq.Service) -> Iterator[tq.Client]:
    EXPORTER.clear()
    with tq.connect(service.address, transport="ipc", tracing=True, timeout_s=20) as connected:
        yield connected


def server_spans(folder: Path, trace_id: int) -> list[dict[str, Any]]:
    """Those of all processes of the service in this trace."""
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    spans = [json.loads(line) for line in lines]
    return [s for s in spans if int(s["context"]["trace_id"], 16) == trace_id]


def test_a_span_of_a_worker_is_above_those_of_the_shard(client: tq.Client, folder: Path) -> None:
    with trace.get_tracer("worker").start_as_current_span("compute_values") as stage:
        handle = client.put({"x": LARGE, "n": list(range(64))}, partition="train")
        client.get(handle, fields=["n"])
        with client.claim(task="t", fields=["n"], n=4, partition="train"):
            pass
    trace_id = stage.get_span_context().trace_id
    mine = {span.name: span for span in EXPORTER.get_finished_spans()}
    assert {"put", "get", "ask put", "move", "ask commit", "ask get", "ask claim"} <= mine.keys()
    assert {span.context.trace_id for span in mine.values()} == {trace_id}
    for above, below in (("put", "ask put"), ("put", "move"), ("put", "ask commit")):
        assert mine[below].parent.span_id == mine[above].context.span_id
    assert mine["put"].parent.span_id == stage.get_span_context().span_id
    assert dict(mine["put"].attributes) == {
        "transferqueue.partition": "train",
        "transferqueue.rows": 64,
        "transferqueue.fields": 2,
        "transferqueue.bytes": mine["put"].attributes["transferqueue.bytes"],
    }

    theirs = server_spans(folder, trace_id)
    by_op = {span["name"].split()[1]: span for span in theirs}
    for op in ("put", "commit", "get", "claim", "ack"):
        assert by_op[op]["kind"] == "SpanKind.SERVER"
        asked = f"0x{mine[f'ask {op}'].context.span_id:016x}"
        assert by_op[op]["parent_id"] == asked
    assert {span["name"].split()[0] for span in theirs} >= {"coordinator"}
    assert len({span["name"].split()[0] for span in theirs}) >= 2
    assert "write" not in by_op  # a chunk is no span


def test_an_error_and_a_wait_are_seen_where_they_are(client: tq.Client, folder: Path) -> None:
    with trace.get_tracer("worker").start_as_current_span("late") as stage:
        with pytest.raises(errors.NotReady):
            client.claim(task="t", fields=["none"], n=1, partition="train", timeout_s=0.3)
        handle = client.put({"n": [1]}, partition="train")
        client.clear(handle)
        with pytest.raises(errors.RowsGone):
            client.get(handle)
    theirs = {
        span["name"]: span for span in server_spans(folder, stage.get_span_context().trace_id)
    }
    claim = theirs["coordinator claim"]
    assert claim["status"]["status_code"] == "ERROR"
    assert claim["status"]["description"] == "NotReady"
    begun, ended = (datetime.fromisoformat(claim[key]) for key in ("start_time", "end_time"))
    assert (ended - begun).total_seconds() >= 0.25
    (gone,) = (span for name, span in theirs.items() if name.endswith(" get"))
    assert gone["status"]["description"] == "RowsGone"


async def test_the_asynchronous_face_sends_it_too(service: tq.Service, folder: Path) -> None:
    async with await tq.connect_async(service.address, tracing=True) as aclient:
        with trace.get_tracer("worker").start_as_current_span("async") as stage:
            await aclient.put({"n": [1]}, partition="async")
    names = {s["name"].split()[1] for s in server_spans(folder, stage.get_span_context().trace_id)}
    assert "put" in names


def test_who_did_not_ask_sends_nothing_and_imports_nothing(
    service: tq.Service, folder: Path
) -> None:
    code = (
        "import sys, transferqueue as tq\n"
        f"with tq.connect({service.address!r}) as client:\n"
        "    client.get(client.put({'n': [1]}, partition='quiet'))\n"
        "print(sorted(name for name in sys.modules if 'opentelemetry' in name))\n"
    )
    before = sum(len(path.read_bytes()) for path in folder.glob("*"))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
    assert sum(len(path.read_bytes()) for path in folder.glob("*")) == before


def test_a_trace_that_is_none_is_passed_over() -> None:
    good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    assert checked_trace([good, ""]) == (good, "")
    for strange in (None, 7, [good], [good, 1], [good, "x" * 500], {"a": 1}, ["x" * 513, ""]):
        assert checked_trace(strange) is None
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = OtelRequestSpans(provider, "shard-0")
    spans.begin((b"p", 1), "put", None)
    spans.end((b"p", 1))
    assert exporter.get_finished_spans() == ()
    for number in range(MAX_OPEN + 5):
        spans.begin((b"p", number), "claim", [good, ""])
    assert len(exporter.get_finished_spans()) == 5, "requests that nobody ends do not pile up"
    spans.close()
    assert len(exporter.get_finished_spans()) == MAX_OPEN + 5


def test_all_processes_write_one_file_that_a_viewer_opens(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with (
        tq.serve(budget_bytes=16 << 20, tracing=f"chrome:{path}") as service,
        tq.connect(service.address, tracing=True) as client,
        trace.get_tracer("worker").start_as_current_span("stage") as stage,
    ):
        client.put({"n": [1]})
    provider = provider_to(str(path), "worker")
    with provider.get_tracer("worker").start_as_current_span("another process"):
        pass
    provider.shutdown()
    text = path.read_text()
    assert text.startswith("[\n")
    events = json.loads(text.rstrip().rstrip(",") + "]")  # viewers close it in the same way
    names = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names == {"coordinator", "shard-0", "worker"}
    (put,) = (event for event in events if event["name"] == "shard-0 put")
    assert put["args"]["trace"] == f"{stage.get_span_context().trace_id:032x}"
    assert put["dur"] > 0


@pytest.mark.parametrize(
    ("tracing", "message"),
    [
        ("jaeger", "module:function"),
        ("tests.tracing.provider:missing", "cannot be used"),
        ("tests.tracing.provider:nothing", "is no TracerProvider"),
        ("chrome:/nowhere/at/all.json", "cannot be written"),
    ],
)
def test_what_cannot_trace_is_an_error_at_the_start(tracing: str, message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        tq.serve(budget_bytes=16 << 20, tracing=tracing)
