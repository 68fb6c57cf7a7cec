"""Which line of code put which rows."""

from __future__ import annotations

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
