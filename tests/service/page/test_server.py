"""The page over HTTP, without a browser."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import struct
from typing import TYPE_CHECKING

import pytest
import torch

import transferqueue as tq
from transferqueue import errors
from transferqueue.service.page.guard import HEADERS
from transferqueue.service.page.server import PageServer
from transferqueue.service.page.token import token_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def service() -> Iterator[tq.Service]:
    with tq.serve(in_process=True, budget_bytes=32 << 20) as service:
        yield service


@pytest.fixture(scope="module")
def client(service: tq.Service) -> Iterator[tq.Client]:
    with tq.connect(service.address) as client:
        client.create_partition("train", tasks=["actor"])
        client.put({"ids": torch.zeros(6, 8)}, partition="train", tags={"policy_version": 2})
        yield client


@pytest.fixture(scope="module")
def page(service: tq.Service, client: tq.Client) -> Iterator[PageServer]:
    with PageServer(service.address, token=TOKEN, interval_s=0.1) as page:
        ask(page, "/api/status", **KNOWN)  # its sockets are there from here on
        yield page


def ask(
    page: PageServer, path: str, method: str = "GET", body: str | None = None, **more: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body."""
    connection = http.client.HTTPConnection(page.host, page.port, timeout=10)
    heads = {name.replace("_", "-"): value for name, value in more.items()}
    try:
        connection.request(method, path, body=body, headers=heads)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


KNOWN = {"authorization": f"Bearer {TOKEN}"}


def test_the_page_answers_what_the_client_says(page: PageServer, client: tq.Client) -> None:
    status, _, body = ask(page, "/api/status", **KNOWN)
    shown, said = json.loads(body), client.status()
    assert status == 200
    assert shown["partitions"].keys() == said["partitions"].keys()
    assert shown["shards"][0]["used_bytes"] == said["shards"][0]["used_bytes"]
    assert json.loads(ask(page, "/api/held?partition=train", **KNOWN)[2])["train"]["rows"] == 6
    assert json.loads(ask(page, "/api/waits", **KNOWN)[2])["waits"] == []


def test_a_picture_is_a_head_and_a_byte_a_cell(page: PageServer) -> None:
    status, heads, body = ask(page, "/api/picture?partition=train&columns=3", **KNOWN)
    (size,) = struct.unpack_from("<I", body)
    head = json.loads(body[4 : 4 + size])
    assert (status, heads["content-type"]) == (200, "application/octet-stream")
    assert (head["fields"], head["ends"], head["staleness"][0]) == (["ids"], [2, 4, 6], 6)
    assert body[4 + size :] == b"\xff" * 3


def test_events_come_while_somebody_listens(page: PageServer) -> None:
    connection = http.client.HTTPConnection(page.host, page.port, timeout=10)
    connection.request("GET", "/api/events", headers=KNOWN)
    with contextlib.closing(connection), connection.getresponse() as answer:
        assert answer.getheader("content-type", "").startswith("text/event-stream")
        events = [json.loads(answer.readline().removeprefix(b"data: ") + answer.readline())
                  for _ in range(3)]  # fmt: skip
    assert [event["status"]["partitions"]["train"]["rows"] for event in events] == [6, 6, 6]
    assert events[-1]["rates"]["interval_s"] > 0.05


def test_mistakes_are_said_and_tell_nothing_else(page: PageServer) -> None:
    for path, status, error in (
        ("/api/picture?partition=trian", 404, "UnknownPartition"),
        ("/api/picture?partition=train&columns=999999", 400, "InvalidInput"),
        ("/api/waits?limit=-1", 400, "InvalidInput"),
        ("/api/held?partition=no", 404, "UnknownPartition"),
    ):
        found, _, body = ask(page, path, **KNOWN)
        assert (found, json.loads(body)["error"]) == (status, error)
    assert ask(page, "/api/nothing", **KNOWN)[0] == 404
    assert ask(page, "/../page.py", **KNOWN)[0] == 404


def test_every_answer_has_the_headers_and_strangers_get_none_of_the_data(page: PageServer) -> None:
    for path, heads, status in (
        ("/", {}, 200),
        ("/page.js", {}, 200),
        ("/api/status", {}, 401),
        ("/api/status", {**KNOWN, "host": "evil.example"}, 421),
        ("/api/status", {**KNOWN, "origin": "http://evil.example"}, 403),
        ("/api/events", {"cookie": "transferqueue-page=x"}, 401),
    ):
        found, answered, body = ask(page, path, **heads)
        assert found == status, path
        assert {name.lower(): answered[name.lower()] for name in HEADERS} == {
            name.lower(): value for name, value in HEADERS.items()
        }
        assert b"train" not in body or status == 200
        assert "access-control-allow-origin" not in answered


def test_a_token_opens_a_session_and_is_written_down_nowhere(
    page: PageServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    assert ask(page, "/session", "POST", "wrong")[0] == 403
    assert ask(page, "/session", "POST", "x" * 5000)[0] == 413
    status, heads, _ = ask(page, "/session", "POST", TOKEN)
    assert status == 204
    cookie = heads["set-cookie"].partition(";")[0]
    assert ask(page, "/api/status", cookie=cookie)[0] == 200
    written = caplog.text + "".join(capfd.readouterr())
    assert TOKEN not in written
    assert cookie not in written


def test_a_header_that_comes_twice_is_refused(page: PageServer) -> None:
    connection = http.client.HTTPConnection(page.host, page.port, timeout=10)
    connection.putrequest("GET", "/api/status", skip_host=True)
    for host in (f"127.0.0.1:{page.port}", "evil.example"):
        connection.putheader("Host", host)
    connection.endheaders()
    with contextlib.closing(connection):
        assert connection.getresponse().status == 400


def test_no_service_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(errors.ServiceUnreachable):
        PageServer(f"ipc://{tmp_path}/none.sock", timeout_s=0.3)


def test_a_port_that_is_taken_is_said(page: PageServer, service: tq.Service) -> None:
    with pytest.raises(errors.ConfigError, match=str(page.port)):
        PageServer(service.address, port=page.port)


def test_a_token_file_is_made_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = token_in(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert token_in(path) == token
    assert len(token) >= 32
    path.chmod(0o644)
    with pytest.raises(errors.ConfigError, match="chmod 600"):
        token_in(path)
