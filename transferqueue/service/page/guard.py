"""Who may look at the page, decided from the head of a request. No socket.

What it is for: a web site that the operator has open in another tab must learn nothing, neither by
asking (``Origin``, ``Sec-Fetch-Site``) nor by having its own name point here (DNS rebinding: then
``Host`` is that name). On an interface that others reach, a token is asked for as well. The page
changes nothing, so there is nothing to forge.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Final

from transferqueue.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")

SESSION: Final = "/session"
"""Where a browser shows its token, and gets a cookie for it."""

MIN_TOKEN_CHARS: Final = 16

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Of every answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An answer to whoever may not look. It says nothing of the service."""

    status: int
    text: str


class Guard:
    """``host`` and ``names``: what the address bar may say. ``token``: ``None`` on loopback."""

    def __init__(
        self, *, host: str, port: int, names: Iterable[str] = (), token: str | None = None
    ) -> None:
        """ConfigError for an interface that others reach without a token of enough characters, or
        for all interfaces without a name."""
        hosts = {*LOOPBACK, *names} if is_loopback(host) else {host, *names}
        hosts -= {"0.0.0.0", "::"}
        if not hosts:
            raise ConfigError(f"{host} is no address that a browser asks for: give a --name")
        if token is None and not is_loopback(host):
            raise ConfigError(f"{host} can be reached from elsewhere: a token is needed")
        if token is not None and len(token) < MIN_TOKEN_CHARS:
            raise ConfigError(f"a token has at least {MIN_TOKEN_CHARS} characters")
        self._hosts = {_in_url(name, port) for name in hosts}
        if port == 80:
            self._hosts |= {_in_url(name, None) for name in hosts}
        self._token = token
        self._cookie_name = f"transferqueue-page-{port}"  # cookies of a host are of all its ports
        self._cookie = hmac.new(secrets.token_bytes(32), (token or "").encode(), sha256).hexdigest()

    @property
    def needs_token(self) -> bool:
        return self._token is not None

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """Why this request is not answered; ``None``: it is. Header names in lower case."""
        if headers.get("host", "").lower() not in self._hosts:
            return Refusal(status=421, text="this is not the name of this page")
        if not self._is_own(path, headers):
            return Refusal(status=403, text="asked for by another site")
        if method != ("POST" if path == SESSION else "GET"):
            return Refusal(status=405, text="there is nothing to change here")
        if path.startswith("/api/") and not self._is_known(headers):
            return Refusal(status=401, text="a token is needed")
        return None

    def _is_own(self, path: str, headers: Mapping[str, str]) -> bool:
        """Whether the page itself asks, or a person who typed or followed its address."""
        origin = headers.get("origin")
        if origin is not None and origin.lower().removeprefix("http://") not in self._hosts:
            return False
        site = headers.get("sec-fetch-site", "none")
        is_visit = path == "/" and headers.get("sec-fetch-mode") == "navigate"
        return site in ("none", "same-origin") or is_visit

    def _is_known(self, headers: Mapping[str, str]) -> bool:
        if self._token is None:
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(given):
            return True
        cookie = _cookies(headers.get("cookie", "")).get(self._cookie_name, "")
        return hmac.compare_digest(cookie.encode(), self._cookie.encode())

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self._token or "").encode())

    def session(self, given: str) -> str | None:
        """The cookie for whoever shows the token; ``None`` for anybody else. What comes with the
        requests from then on is not the token, and ends with this process."""
        if self._token is None or not self._is_token(given):
            return None
        return f"{self._cookie_name}={self._cookie}; HttpOnly; SameSite=Strict; Path=/"


def is_loopback(host: str) -> bool:
    return host in LOOPBACK or host.startswith("127.")


def _in_url(host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host else host.lower()
    return name if port is None else f"{name}:{port}"


def _cookies(header: str) -> dict[str, str]:
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(header).items()}
    except CookieError:
        return {}
