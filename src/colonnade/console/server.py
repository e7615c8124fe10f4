"""Who gets in, and how a request becomes a page.

The server listens on 127.0.0.1 alone. What else could reach it is a web page in the operator's own browser, another
account on the same machine, and a name that is made to point here (DNS rebinding). Against these, in this order:

1. the Host must be a name of the loopback;
2. a request that the browser says comes from another site, or another port, is refused;
3. a session cookie is required: it is given once for a one-time link that is printed on the terminal, is HttpOnly and
   SameSite=Strict, and its path is random, so that no server on another port of this machine is ever shown it;
4. a form must come from this very origin and bring back the session's own word.

Pages are not cached, framed or sniffed, and their security policy lets nothing in.
"""

from __future__ import annotations

import hmac
import secrets
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Protocol
from urllib.parse import parse_qs, urlsplit

from colonnade.console.layout import SECURITY_POLICY, Address, Page, bare, framed
from colonnade.console.operators import Operators
from colonnade.errors import BadArguments, ColonnadeError, NotApproved, RunError
from colonnade.view.page import Html, join, paragraph, tag

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
IDLE = 8 * 3600.0
"""Seconds after which an unused session ends."""
LARGEST_FORM, MOST_FIELDS = 16_384, 64
WRONG = 1.0
"""Seconds that a wrong password costs."""
HEADERS = {
    "Content-Security-Policy": SECURITY_POLICY,
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not "no-referrer": under it a browser states no origin on our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


class Refused(Exception):
    """An answer other than a page."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass
class Session:
    operator: str = ""
    """Who signed in; empty where the party has no operators with passwords."""
    form_token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    used: float = field(default_factory=time.monotonic)


class Site(Protocol):
    """What a console shows and does: that of a party (`pages`) or of the coordinator (`coordinator`)."""

    pages: ClassVar[tuple[tuple[str, str], ...]]
    """(address, name) of each page in the navigation."""

    @property
    def name(self) -> str: ...

    @property
    def operators(self) -> Operators:
        """Who must sign in; where there are none, the one-time link lets in."""
        ...

    def waiting(self) -> int:
        """How many requests wait for a decision."""
        ...

    def content(self, address: Address, path: str, query: Mapping[str, str]) -> Page:
        """A page, or `RunError` if there is none at this address."""
        ...

    def act(self, address: Address, action: str, fields: Mapping[str, str], by: str) -> str | Page:
        """Do what a form asks: where to go next, or a page that says why it was not done. `RunError`: no such form."""
        ...


class Console:
    """A site on this machine, until `close`. `said` prints a link for the operator each time the last was used."""

    def __init__(self, site: Site, *, port: int = 0, said: Callable[[str], None] = lambda _: None) -> None:
        self.site = site
        self.base = f"/{secrets.token_urlsafe(12)}/"
        self._said = said
        self._sessions: dict[str, Session] = {}
        self._lock, self._signing = threading.Lock(), threading.Lock()
        self._entrance = ""
        handler = type("Handler", (_Handler,), {"console": self})
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        except OSError as error:
            raise BadArguments(f"port {port} is not free ({error.strerror}); choose another with --port.") from error
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self.cookie = f"colonnade_{self.port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="colonnade console", daemon=True
        )

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> str:
        """Serve in the background; returns the link with which to enter."""
        self._thread.start()
        return self.new_link()

    def new_link(self) -> str:
        """A link that lets one browser in, once; an earlier one that was not used is void. Where operators have
        passwords, the page on which they sign in."""
        if self.site.operators.names:
            return f"{self.origin}{self.base}"
        with self._lock:
            self._entrance = secrets.token_urlsafe(32)
            return f"{self.origin}{self.base}enter?token={self._entrance}"

    def wait(self) -> None:
        while self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    # --- sessions -----------------------------------------------------------------------------------------

    def sign_in(self, name: str, password: str) -> str:
        """The new session's key. A wrong password takes a second, and only one is tried at a time."""
        with self._signing:
            try:
                operator = self.site.operators.signed_in(name, password)
            except NotApproved:
                time.sleep(WRONG)
                raise
        key = secrets.token_urlsafe(32)
        with self._lock:
            self._sessions[key] = Session(operator)
        return key

    def enter(self, token: str) -> str | None:
        """The new session's key, if this is the link that is open and no operator has a password."""
        if self.site.operators.names:
            return None
        with self._lock:
            if not self._entrance or not hmac.compare_digest(token.encode(), self._entrance.encode()):
                return None
            self._entrance = ""
            key = secrets.token_urlsafe(32)
            self._sessions[key] = Session()
        self._said(self.new_link())
        return key

    def session(self, key: str | None) -> Session | None:
        now = time.monotonic()
        with self._lock:
            for idle in [name for name, session in self._sessions.items() if now - session.used > IDLE]:
                del self._sessions[idle]
            session = self._sessions.get(key or "")
            if session is not None:
                session.used = now
            return session

    def leave(self, key: str | None) -> None:
        with self._lock:
            self._sessions.pop(key or "", None)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    console: Console
    protocol_version = "HTTP/1.1"
    timeout = 30.0
    server_version, sys_version = "Colonnade", ""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: addresses hold the entrance."""

    def version_string(self) -> str:
        return self.server_version

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _other(self) -> None:
        def no() -> None:
            self._session()
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET and POST mean something here.")

        self._answer(no)

    do_HEAD = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _other

    def _answer(self, work: Callable[[], None]) -> None:
        try:
            if self.command != "POST" and (self.headers.get("Content-Length") or self.headers.get("Transfer-Encoding")):
                self.close_connection = True  # a body that is not read must not be taken for the next request
            self._check_host()
            self._check_site()
            work()
        except Refused as refusal:
            self.close_connection = True
            self._send(refusal.status, bare(refusal.status.phrase, paragraph(str(refusal))))
        except (BrokenPipeError, ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception:
            traceback.print_exc(file=sys.stderr)
            self.close_connection = True
            self._send(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                bare("Something went wrong", paragraph("This is a bug in Colonnade; the terminal has the details.")),
            )

    # --- who gets in --------------------------------------------------------------------------------------

    def _check_host(self) -> None:
        host = self.headers.get_all("Host") or []
        name = host[0].rpartition(":")[0] if len(host) == 1 and ":" in host[0] else "".join(host)
        if host == ["[::1]"] or (len(host) == 1 and name.lower() in LOOPBACK):
            return
        raise Refused(HTTPStatus.MISDIRECTED_REQUEST, "The console answers only under a name of this machine's own.")

    def _check_site(self) -> None:
        site = self.headers.get("Sec-Fetch-Site", "none")
        origin = self.headers.get("Origin")
        if site not in ("none", "same-origin") or (origin is not None and origin != self._own_origin()):
            raise Refused(HTTPStatus.FORBIDDEN, "Requests from another site are refused.")

    def _own_origin(self) -> str:
        """As the browser sees it, which may be through a tunnel with another port."""
        return f"http://{self.headers['Host']}"

    def _key(self) -> str | None:
        try:
            jar = SimpleCookie(self.headers.get("Cookie", ""))
        except CookieError:
            return None
        cookie = jar.get(self.console.cookie)
        return None if cookie is None else cookie.value

    def _session(self) -> Session:
        session = self.console.session(self._key())
        if session is None:
            raise Refused(
                HTTPStatus.UNAUTHORIZED,
                "Open the link that the console printed on the terminal. Each link works once.",
            )
        return session

    # --- pages --------------------------------------------------------------------------------------------

    def _path(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if not parts.path.startswith(self.console.base):
            self._session()
            raise Refused(HTTPStatus.NOT_FOUND, "There is no such page.")
        return parts.path.removeprefix(self.console.base), query

    def _get(self) -> None:
        if urlsplit(self.path).path == f"{self.console.base}enter":
            self._enter()
            return
        if self.console.site.operators.names and self.console.session(self._key()) is None:
            self._path_known()
            self._send(HTTPStatus.UNAUTHORIZED, self._sign_in_page())
            return
        session = self._session()
        path, query = self._path()
        self._page(session, path, query)

    def _path_known(self) -> None:
        if not urlsplit(self.path).path.startswith(self.console.base):
            raise Refused(HTTPStatus.UNAUTHORIZED, "Open the address that the console printed.")

    def _sign_in_page(self, complaint: str = "") -> str:
        def entry(label: str, name: str, kind: str, completion: str) -> Html:
            given = tag("input", name=name, type=kind, autocomplete=completion, required=True)
            return paragraph(tag("label", label, " ", given))

        form = tag(
            "form",
            entry("Name", "name", "text", "username"),
            entry("Password", "password", "password", "current-password"),
            tag("button", "Sign in", class_="main"),
            method="post",
            action=f"{self.console.base}sign-in",
        )
        warning = paragraph(complaint, class_="warning", role="alert") if complaint else None
        return bare(f"Console of {self.console.site.name}", warning, form)

    def _sign_in(self) -> None:
        if self.headers.get("Origin") != self._own_origin():
            raise Refused(HTTPStatus.FORBIDDEN, "A form must come from the console's own page.")
        fields = self._form()
        try:
            key = self.console.sign_in(fields.get("name", ""), fields.get("password", ""))
        except NotApproved as error:
            self._send(HTTPStatus.UNAUTHORIZED, self._sign_in_page(str(error)))
            return
        self._admit(key)

    def _admit(self, key: str) -> None:
        cookie = f"{self.console.cookie}={key}; Path={self.console.base}; HttpOnly; SameSite=Strict"
        self._redirect(self.console.base, ("Set-Cookie", cookie))

    def _enter(self) -> None:
        token = parse_qs(urlsplit(self.path).query).get("token", [""])[0]
        key = self.console.enter(token)
        if key is None:
            raise Refused(
                HTTPStatus.UNAUTHORIZED, "This link was used before. The terminal shows a new one after each use."
            )
        self._admit(key)

    def _page(self, session: Session, path: str, query: dict[str, str]) -> None:
        address, status = self._address(session), HTTPStatus.OK
        try:
            page = self.console.site.content(address, path, query)
        except ColonnadeError as error:
            status = HTTPStatus.NOT_FOUND if isinstance(error, RunError) else HTTPStatus.INTERNAL_SERVER_ERROR
            page = Page("Not here", join([tag("h1", "Not here"), paragraph(str(error))]))
        self._show(address, status, path, page)

    def _address(self, session: Session) -> Address:
        return Address(base=self.console.base, form_token=session.form_token)

    def _show(self, address: Address, status: HTTPStatus, path: str, page: Page) -> None:
        if self.headers.get("X-Part") == "live":
            self._send(status, page.changing or "")
            return
        site = self.console.site
        current = path.partition("/")[0]
        self._send(
            status,
            framed(page, address, party=site.name, pages=site.pages, current=current, waiting=site.waiting()),
        )

    # --- forms --------------------------------------------------------------------------------------------

    def _post(self) -> None:
        if self.console.site.operators.names and urlsplit(self.path).path == f"{self.console.base}sign-in":
            self._sign_in()
            return
        session = self._session()
        if self.headers.get("Origin") != self._own_origin():
            raise Refused(HTTPStatus.FORBIDDEN, "A form must come from the console's own page.")
        fields = self._form()
        if not hmac.compare_digest(fields.get("form", "").encode(), session.form_token.encode()):
            raise Refused(HTTPStatus.FORBIDDEN, "This form is not from this session; open the page again.")
        path, _ = self._path()
        if path == "leave":
            self.console.leave(self._key())
            self._send(
                HTTPStatus.OK,
                bare("You have left", paragraph("The link on the terminal lets you in again.")),
                (
                    "Set-Cookie",
                    f"{self.console.cookie}=; Path={self.console.base}; HttpOnly; SameSite=Strict; Max-Age=0",
                ),
            )
            return
        address = self._address(session)
        try:
            done = self.console.site.act(address, path, fields, session.operator)
        except RunError as error:
            raise Refused(HTTPStatus.NOT_FOUND, str(error)) from error
        if isinstance(done, Page):
            self._show(address, HTTPStatus.OK if done.agreed else HTTPStatus.CONFLICT, path, done)
        else:
            self._redirect(done)

    def _form(self) -> dict[str, str]:
        kind = (self.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
        length = self.headers.get("Content-Length", "")
        if kind != "application/x-www-form-urlencoded" or not (length.isascii() and length.isdecimal()):
            raise Refused(HTTPStatus.BAD_REQUEST, "That is not a form of the console.")
        if int(length) > LARGEST_FORM:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "That is not a form of the console.")
        text = self.rfile.read(int(length)).decode("utf-8", errors="replace")
        return {name: values[0] for name, values in parse_qs(text, max_num_fields=MOST_FIELDS).items()}

    # --- answers ------------------------------------------------------------------------------------------

    def _redirect(self, where: str, *headers: tuple[str, str]) -> None:
        self._send(HTTPStatus.SEE_OTHER, "", ("Location", where), *headers)

    def _send(self, status: HTTPStatus, text: str, *headers: tuple[str, str]) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in (*HEADERS.items(), *headers):
            self.send_header(name, value)
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Colonnade realm="the link on the terminal"')
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
