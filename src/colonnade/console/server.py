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
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from colonnade.console import pages, requests
from colonnade.console.layout import SECURITY_POLICY, Address, Page, bare, framed
from colonnade.console.operator import OperatorService
from colonnade.errors import BadArguments, ColonnadeError, NotApproved, RunError
from colonnade.view.page import Html, join, paragraph, tag

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
IDLE = 8 * 3600.0
"""Seconds after which an unused session ends."""
LARGEST_FORM = 16_384
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


class Console:
    """The console of one party, until `close`. `said` prints a link for the operator each time the last was used."""

    def __init__(
        self, service: OperatorService, *, port: int = 0, said: Callable[[str], None] = lambda _: None
    ) -> None:
        self.service = service
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
        if self.service.operators.names:
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
                operator = self.service.operators.signed_in(name, password)
            except NotApproved:
                time.sleep(WRONG)
                raise
        key = secrets.token_urlsafe(32)
        with self._lock:
            self._sessions[key] = Session(operator)
        return key

    def enter(self, token: str) -> str | None:
        """The new session's key, if this is the link that is open and no operator has a password."""
        if self.service.operators.names:
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
                "Open the link that colonnade party console printed on the terminal. Each link works once.",
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
        if self.console.service.operators.names and self.console.session(self._key()) is None:
            self._path_known()
            self._send(HTTPStatus.UNAUTHORIZED, self._sign_in_page())
            return
        session = self._session()
        path, query = self._path()
        self._page(session, path, query)

    def _path_known(self) -> None:
        if not urlsplit(self.path).path.startswith(self.console.base):
            raise Refused(HTTPStatus.UNAUTHORIZED, "Open the address that colonnade party console printed.")

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
        return bare(f"Console of {self.console.service.name}", warning, form)

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

    def _page(self, session: Session, path: str, query: dict[str, str], *, complaint: str | None = None) -> None:
        service = self.console.service
        address = Address(base=self.console.base, form_token=session.form_token)
        status = HTTPStatus.OK if complaint is None else HTTPStatus.CONFLICT
        try:
            page = self._content(service, address, path, query, complaint)
        except ColonnadeError as error:
            status = HTTPStatus.NOT_FOUND if isinstance(error, RunError) else HTTPStatus.INTERNAL_SERVER_ERROR
            page = Page("Not here", join([tag("h1", "Not here"), paragraph(str(error))]))
        if self.headers.get("X-Part") == "live":
            self._send(status, page.changing or "")
            return
        try:
            waiting = len(service.waiting())
        except ColonnadeError:
            waiting = 0
        current = path.partition("/")[0]
        self._send(status, framed(page, address, party=service.name, current=current, waiting=waiting))

    def _content(
        self, service: OperatorService, address: Address, path: str, query: dict[str, str], complaint: str | None
    ) -> Page:
        current, _, rest = path.partition("/")
        before = _row(query.get("before"))
        if current == "requests" and rest:
            return requests.request(service, address, unquote(rest), complaint=complaint)
        if rest:
            raise RunError("There is no such page.")
        if current == "ledger":
            return pages.ledger(service, address, before=before)
        if current == "transcript":
            return pages.transcript(service, address, job=query.get("job"), before=before)
        simple = {"": pages.overview, "requests": requests.requests, "budget": pages.budget, "runs": pages.runs}
        if current not in simple:
            raise RunError("There is no such page.")
        return simple[current](service, address)

    # --- forms --------------------------------------------------------------------------------------------

    def _post(self) -> None:
        if self.console.service.operators.names and urlsplit(self.path).path == f"{self.console.base}sign-in":
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
        elif path == "decide" and fields.get("choice") in ("approve", "deny"):
            approve = fields["choice"] == "approve"
            decide = partial(self.console.service.decide, approve=approve, by=session.operator)
            self._act(session, fields.get("job", ""), decide)
        elif path == "end" and fields.get("sure") == "yes":
            self._act(session, fields.get("job", ""), partial(self.console.service.end, by=session.operator))
        else:
            raise Refused(HTTPStatus.NOT_FOUND, "There is no such form.")

    def _form(self) -> dict[str, str]:
        kind = (self.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
        length = self.headers.get("Content-Length", "")
        if kind != "application/x-www-form-urlencoded" or not (length.isascii() and length.isdecimal()):
            raise Refused(HTTPStatus.BAD_REQUEST, "That is not a form of the console.")
        if int(length) > LARGEST_FORM:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "That is not a form of the console.")
        text = self.rfile.read(int(length)).decode("utf-8", errors="replace")
        return {name: values[0] for name, values in parse_qs(text, max_num_fields=16).items()}

    def _act(self, session: Session, job: str, act: Callable[[str], object]) -> None:
        """What the operator wants of a job; a refusal is shown on its page."""
        address = Address(base=self.console.base, form_token=session.form_token)
        try:
            act(job)
        except ColonnadeError as error:
            self._page(session, address.job(job).removeprefix(self.console.base), {}, complaint=str(error))
            return
        self._redirect(address.job(job))

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


def _row(text: str | None) -> int | None:
    """The row that an address names."""
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        raise RunError("an address names a row by its number; follow a link of the page instead.")
    return int(text)
