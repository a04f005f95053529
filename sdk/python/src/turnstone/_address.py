"""Where a server is: an https: URL, an http: URL of this machine, or a Unix socket."""

from __future__ import annotations

import ipaddress
import os
import socket as sockets
import ssl
import struct
import sys
from dataclasses import dataclass
from urllib.parse import urlsplit

from .errors import IntegrityError, InvalidError, TurnstoneError, UnavailableError

_MAX_ADDRESS = 2048
CONNECT_TIME = 10.0


def _bad(cause: str) -> TurnstoneError:
    return InvalidError(
        "host.address", "the server's address", cause,
        hint="write https://NAME, unix:PATH, or http://127.0.0.1:PORT on this machine")  # fmt: skip


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Address:
    """A parsed address. Plain HTTP to another machine is refused: it would show the token."""

    socket: str = ""  # path; empty: the rest is the address
    scheme: str = ""
    host: str = ""
    port: int = 0
    path: str = ""
    netloc: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """The error has no credentials of the text."""
        if len(text) > _MAX_ADDRESS or any(c < " " or c == "\x7f" for c in text):
            raise _bad("is too long, or has control characters")
        if text.startswith("unix:"):
            path = text.removeprefix("unix:").removeprefix("//")
            if not path:
                raise _bad("has no path of a socket")
            return cls(socket=os.path.abspath(path))
        try:
            u = urlsplit(text)
            port = u.port
        except ValueError:
            raise _bad("is no URL") from None
        if u.scheme not in ("http", "https"):
            raise _bad("has no scheme: https, http or unix")
        if u.username is not None or u.password is not None:
            raise _bad("has a user or a password")
        if not u.hostname:
            raise _bad("has no host")
        if u.query or u.fragment or "?" in text or "#" in text:
            raise _bad("has a query or a fragment")
        if u.scheme == "http" and not is_loopback(u.hostname):
            raise _bad(f"{u.netloc[:100]} would carry the token unencrypted to another machine")
        default = 443 if u.scheme == "https" else 80
        return cls(
            scheme=u.scheme, host=u.hostname, port=port or default, path=u.path.rstrip("/"),
            netloc=u.netloc.lower())  # fmt: skip

    def __str__(self) -> str:
        return f"unix:{self.socket}" if self.socket else f"{self.scheme}://{self.netloc}{self.path}"

    @property
    def local(self) -> bool:
        """The server is on this machine."""
        return bool(self.socket) or is_loopback(self.host)

    @property
    def control(self) -> str:
        """The base URL of control calls."""
        return "http://server" if self.socket else str(self)

    def channel(self, path: str) -> str:
        """Return the address of the WebSocket at a path that the server answered."""
        u = urlsplit(path)
        strange = any(c < "!" or c == "\x7f" for c in path) or u.scheme or u.netloc
        if strange or u.query or u.fragment or not path.startswith("/turnstone/v1/") or ".." in path:
            raise IntegrityError(
                "host.channel", "the server", f"answers {path[:100]!r}, which is no path of a channel")  # fmt: skip
        if self.socket:
            return "ws://server" + path
        scheme = "wss" if self.scheme == "https" else "ws"
        return f"{scheme}://{self.netloc}{self.path}{path}"

    def dial(self, own: bool) -> sockets.socket:
        """Connect, and check that the other end is whom the address promises. It blocks."""
        try:
            if self.socket:
                s = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
                try:
                    s.settimeout(CONNECT_TIME)
                    s.connect(self.socket)
                except BaseException:
                    s.close()
                    raise
            else:
                s = sockets.create_connection((self.host, self.port), CONNECT_TIME)
                s.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
        except OSError as e:
            raise unreached(str(self), e) from None
        try:
            if own:
                self.check_own(s)
            if self.scheme == "http" and not is_loopback(s.getpeername()[0]):
                raise InvalidError("host.connect", str(self), "is not on this machine")
        except BaseException:
            s.close()
            raise
        return s

    def check_own(self, s: sockets.socket) -> None:
        """Raise that the other end is a process of another user than this one or root."""
        try:
            uid = peer_uid(s)
        except OSError as e:
            cause = f"does not say whose it is: {e}"
        else:
            if uid in (os.geteuid(), 0):
                return
            cause = f"belongs to user {uid}"
        raise InvalidError(
            "host.connect", str(self), cause,
            hint="compare its node's key with its operator, and add it with turn host add")  # fmt: skip


def peer_uid(s: sockets.socket) -> int:
    """Return the user of the other end of a Unix socket."""
    if sys.platform == "linux":
        raw = s.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", raw)[1])
    if sys.platform == "darwin":
        # struct xucred: version, uid, ...
        raw = s.getsockopt(0, 1, 76)
        return int(struct.unpack_from("II", raw)[1])
    raise OSError("not known on this system")


def unreached(name: str, err: BaseException) -> TurnstoneError:
    """Return the error of a connection that did not come about."""
    op = "host.connect"
    if isinstance(err, TurnstoneError):
        return err
    if isinstance(err, ssl.SSLCertVerificationError):
        return IntegrityError(
            op, name, f"its certificate is not trusted: {err.verify_message}",
            hint="name the authority's file in SSL_CERT_FILE if you trust it")  # fmt: skip
    if isinstance(err, (ConnectionRefusedError, FileNotFoundError)):
        return UnavailableError(
            op, name, "no server answers",
            hint="start the server with turn serve, or select another host with turn host use")  # fmt: skip
    if isinstance(err, sockets.gaierror):
        return UnavailableError(
            op, name, f"the name has no address: {err.strerror}",
            hint="check the name in the address, and this machine's DNS")  # fmt: skip
    cause = str(err) or type(err).__name__
    return UnavailableError(
        op, name, f"does not answer: {cause[:300]}",
        hint="check that the server runs and can be reached")  # fmt: skip
