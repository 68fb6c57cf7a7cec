"""What a notebook shows."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import torch

import transferqueue as tq
from transferqueue.html import described_html, table_html


class Cells(HTMLParser):
    """Texts of cells, and whether every tag that is opened is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        del attrs
        assert tag in {"table", "caption", "thead", "tbody", "tr", "th", "td", "b"}
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def shown(value: Any) -> list[str]:
    return Cells(value._repr_html_()).texts


def test_nothing_that_is_shown_becomes_markup() -> None:
    texts = Cells(table_html("<script>", ["<b>"], [["<i>&", 3]])).texts
    assert texts == ["<script>", "<b>", "<i>&", "3"]
    assert Cells(described_html("<x>\nbatch\n  a<b: c")).texts[0] == "<x>"


def test_handle_view_service_and_status_show_themselves() -> None:
    with tq.serve(budget_bytes=16 << 20, in_process=True) as service, tq.connect() as client:
        handle = client.put(
            {"x<": torch.ones(3, 8), "text": list("abc")}, partition="tr&in", meta_info={"step": 1}
        )
        client.wait(handle)
        assert shown(handle) == [
            "3 samples of 'tr&in'", "field", "type", "x<", "float32[8]", "text", "object",
        ]  # fmt: skip
        view = client.view(handle)
        assert "LazyDataProto of 3 rows" in shown(view)
        assert any("not fetched" in text for text in shown(view))
        assert "(3, 8) (torch.float32) cpu" in shown(view.materialize())
        status = client.status()
        assert isinstance(status, dict)
        assert f"service {service.service_id}" in " ".join(shown(status))
        assert "tr&in" in shown(status)
        assert service.address in shown(service)
    assert "closed" in shown(service)
