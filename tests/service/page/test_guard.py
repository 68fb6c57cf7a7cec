"""Who may look at the page, and that others learn nothing of the service."""

from __future__ import annotations

import pytest

from transferqueue.errors import ConfigError
from transferqueue.service.page.guard import HEADERS, Guard

TOKEN = "correct-horse-battery"


def status(guard: Guard, *, method: str = "GET", path: str = "/api/status", **headers: str) -> int:
    """0: it is answered."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    refusal = guard.refusal(method, path, {"host": "127.0.0.1:9465", **named})
    return 0 if refusal is None else refusal.status


@pytest.fixture
def here() -> Guard:
    return Guard(host="127.0.0.1", port=9465)


@pytest.fixture
def open_to_others() -> Guard:
    return Guard(host="10.0.0.7", port=9465, names=["node7"], token=TOKEN)


@pytest.mark.parametrize("host", ["127.0.0.1:9465", "localhost:9465", "[::1]:9465"])
def test_the_names_of_this_host_are_answered(here: Guard, host: str) -> None:
    assert status(here, host=host) == 0


@pytest.mark.parametrize(
    "host",
    ["evil.example:9465", "127.0.0.1", "127.0.0.1:80", "localhost.evil.example:9465", "",
     "10.0.0.7:9465"],
)  # fmt: skip
def test_another_name_that_points_here_is_not(here: Guard, host: str) -> None:
    assert status(here, host=host) == 421
    assert status(here, host=host, path="/") == 421


def test_another_site_learns_nothing(here: Guard) -> None:
    assert status(here, origin="http://127.0.0.1:9465") == 0
    for origin in (
        "http://evil.example",
        "https://127.0.0.1:9465",
        "null",
        "http://127.0.0.1:9466",
    ):
        assert status(here, origin=origin) == 403, origin
    assert status(here, sec_fetch_site="cross-site") == 403
    assert status(here, sec_fetch_site="same-site") == 403
    assert status(here, sec_fetch_site="same-origin") == 0


def test_a_link_to_the_page_may_be_followed(here: Guard) -> None:
    visit = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert status(here, path="/", **visit) == 0
    assert status(here, path="/api/status", **visit) == 403


def test_nothing_can_be_changed(here: Guard) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        assert status(here, method=method) == 405
    assert status(here, method="GET", path="/session") == 405


def test_a_token_is_asked_for_by_what_tells_of_the_service(open_to_others: Guard) -> None:
    ask = {"host": "node7:9465"}
    assert status(open_to_others, **ask) == 401
    assert status(open_to_others, **ask, path="/page.js") == 0
    assert status(open_to_others, **ask, authorization=f"Bearer {TOKEN}") == 0
    for wrong in (f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer ", "Bearer é"):
        assert status(open_to_others, **ask, authorization=wrong) == 401


def test_a_token_is_good_for_a_cookie_that_is_not_the_token(open_to_others: Guard) -> None:
    assert open_to_others.session("wrong") is None
    cookie = open_to_others.session(TOKEN)
    assert cookie is not None
    pair, *attributes = cookie.split("; ")
    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=Strict"} <= set(attributes)
    assert status(open_to_others, host="10.0.0.7:9465", cookie=f"a=b; {pair}") == 0
    assert status(open_to_others, host="10.0.0.7:9465", cookie=f"{pair}0") == 401
    again = Guard(host="10.0.0.7", port=9465, token=TOKEN)
    assert status(again, host="10.0.0.7:9465", cookie=pair) == 401, "it ends with its process"


def test_an_interface_for_others_needs_a_good_token_and_a_name() -> None:
    with pytest.raises(ConfigError, match="a token is needed"):
        Guard(host="10.0.0.7", port=1)
    with pytest.raises(ConfigError, match="at least 16"):
        Guard(host="10.0.0.7", port=1, token="short")
    with pytest.raises(ConfigError, match="--name"):
        Guard(host="0.0.0.0", port=1, token=TOKEN)
    assert Guard(host="0.0.0.0", port=1, token=TOKEN, names=["node7"]).needs_token


def test_the_policy_lets_nothing_in_from_elsewhere() -> None:
    rules = dict(rule.split(" ", 1) for rule in HEADERS["Content-Security-Policy"].split("; "))
    assert rules.pop("default-src") == rules.pop("frame-ancestors") == "'none'"
    assert set(rules.values()) == {"'self'", "'none'"}
