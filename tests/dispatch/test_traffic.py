"""Bytes by role, method and field, over ranks and calls."""

from __future__ import annotations

from dataclasses import replace

from transferqueue.dispatch import FieldCounts, Traffic, TrafficReport


def report() -> TrafficReport:
    workers = [Traffic(), Traffic()]
    for traffic in workers:
        traffic.add(
            "critic",
            "compute_values",
            {
                "ids": FieldCounts(read_bytes=100, calls=1),
                "mask": FieldCounts(read_bytes=50, untouched_bytes=50, calls=1),
                "late": FieldCounts(read_bytes=7, undeclared_bytes=7, calls=1),
                "values": FieldCounts(written_bytes=40, calls=1),
            },
        )
    return TrafficReport.of([worker.rows() for worker in workers], controller_bytes=1234)


def test_a_report_sums_over_ranks() -> None:
    counts = report().of_method("compute_values")
    assert counts["ids"] == FieldCounts(read_bytes=200, calls=2)
    assert (report().read_bytes, report().written_bytes) == (314, 80)


def test_what_was_fetched_in_vain_is_listed() -> None:
    assert [row.field for row in report().over_fetched] == ["mask"]
    assert [row.field for row in report().undeclared] == ["late"]


def test_calls_of_one_worker_add_up() -> None:
    traffic = Traffic()
    for _ in range(3):
        traffic.add("r", "m", {"f": FieldCounts(read_bytes=5, calls=1)})
    (row,) = TrafficReport.of([traffic.rows()]).rows
    assert row.counts == FieldCounts(read_bytes=15, calls=3)


def test_it_prints_as_a_table() -> None:
    text = str(report())
    assert "critic.compute_values" in text
    assert "100 B of it never looked at" in text
    assert "through the controller 1.2 KiB" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["critic.compute_values", "314", "B", "100", "B", "80", "B"] in rows, "of the method"
    assert ["late", "14", "B", "-", "-", "undeclared"] in rows


def test_a_report_of_whole_batches_names_what_it_counts() -> None:
    text = str(replace(report(), is_fat=True))
    assert "shipped 314 B, 100 B of it to methods that do not declare them; returned 80 B" in text


def test_what_was_told_is_not_told_again_and_what_was_not_is() -> None:
    traffic = Traffic()
    traffic.add("r", "m", {"f": FieldCounts(read_bytes=5, calls=1)})
    first = traffic.take_untold(10.0, again_after_s=1.0)
    traffic.add("r", "m", {"f": FieldCounts(read_bytes=2, calls=1)})
    assert traffic.take_untold(10.5, again_after_s=1.0) == []
    traffic.not_told(first, 12.0)
    assert traffic.take_untold(11.5, again_after_s=1.0) == []
    (row,) = traffic.take_untold(12.0, again_after_s=1.0)
    assert (row["read_bytes"], row["calls"]) == (7, 2)
    assert traffic.rows()[0]["read_bytes"] == 7
