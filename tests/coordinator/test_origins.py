"""Which line of code put which rows."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.coordinator import origins
from transferqueue.coordinator.origins import Origins

COMMITS = st.lists(st.tuples(st.integers(1, 5), st.sampled_from("abc")), max_size=12)


@given(commits=COMMITS, data=st.data())
def test_rows_keep_their_site_when_they_are_renumbered(
    commits: list[tuple[int, str]], data: st.DataObject
) -> None:
    found, sites = Origins(), []
    for num_rows, site in commits:
        found.add(len(sites), site)
        sites += [site] * num_rows
    kept = [i for i in range(len(sites)) if data.draw(st.booleans())]
    found.keep(np.array(kept, dtype=np.int64))
    ages_s = np.arange(len(kept), dtype=np.float64)
    report = found.report(np.arange(len(kept)), ages_s)
    left = [sites[i] for i in kept]
    assert {site: entry["rows"] for site, entry in report.items()} == {
        site: left.count(site) for site in set(left)
    }
    for site, entry in report.items():
        assert entry["oldest_s"] == max(i for i, s in enumerate(left) if s == site)


def test_a_client_that_makes_sites_up_fills_no_memory() -> None:
    found = Origins()
    for row in range(origins.MAX_SITES + 50):
        found.add(row, f"site {row}")
    rows = np.arange(origins.MAX_SITES + 50)
    report = found.report(rows, np.zeros(len(rows)))
    assert len(report) == origins.MAX_SITES + 1
    assert report[origins.OTHERS]["rows"] == 50


@given(
    puts=st.lists(st.tuples(st.integers(1, 4), st.sampled_from("abc"), st.integers(0, 500))),
    data=st.data(),
)
def test_the_bytes_of_a_site_are_those_of_its_rows(
    puts: list[tuple[int, str, int]], data: st.DataObject
) -> None:
    """Exactly while all of them are there, and when all have gone; each site apart."""
    found, rows_of, put_bytes, num_rows = Origins(), dict[str, list[int]](), Counter[str](), 0
    for count, site, num_bytes in puts:
        rows = np.arange(num_rows, num_rows + count)
        found.add(num_rows, site)
        found.store("x", rows, num_bytes)
        rows_of.setdefault(site, []).extend(rows.tolist())
        put_bytes[site] += num_bytes
        num_rows += count
    assert _bytes_by_site(found) == {site: n for site, n in put_bytes.items() if n}
    left = Counter(put_bytes)
    for site in data.draw(st.permutations(sorted(rows_of))):
        rows = np.array(rows_of[site])
        cut = data.draw(st.integers(0, len(rows)))
        left[site] -= found.remove("x", rows[:cut])
        assert left[site] >= 0
        assert _bytes_by_site(found) == {site: n for site, n in left.items() if n}
        left[site] -= found.remove("x", rows[cut:])
        assert left[site] == 0
    assert not _bytes_by_site(found)


def test_rows_of_two_sites_in_one_put_share_its_bytes() -> None:
    found = Origins()
    found.add(0, "a")
    found.add(3, "b")
    found.store("y", np.array([1, 2, 3]), 100)
    assert _bytes_by_site(found) == {"a": 66, "b": 34}
    assert found.remove("y", np.array([1, 3])) == 67
    assert found.remove("z", np.array([1, 3])) == 0
    assert _bytes_by_site(found) == {"a": 33}


def _bytes_by_site(found: Origins) -> dict[str, int]:
    report = found.report(np.zeros(0, dtype=np.int64), np.zeros(0))
    return {site: entry["bytes"] for site, entry in report.items()}
