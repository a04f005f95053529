"""A client's view of a server: control calls, and channels whose statements it checks."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import websockets

from .._json import is_dict, is_list
from .. import _noise, _proto
from .._address import Address, unreached
from .._attest import Expected, Pins, Statement
from .._deadline import NEVER, Deadline
from .._generated.control import ENUMS, MESSAGES, METHODS
from .._hosts import check_token
from .._noise import KeyPair
from .._rt_async import WebSocket, blocking, sleep
from ..errors import (
    DeniedError,
    IntegrityError,
    InvalidError,
    TimeoutError,
    TurnstoneError,
    UnavailableError,
    clean,
    error_of,
    fault_error,
)
from .channel import AsyncChannel
from .wire import AsyncWire

_MAX_ANSWER = 5 << 20
_ANSWER_TIME = 600.0
_MAX_TRIES = 4
_MAX_MEETS = 4
_MAX_NODES = 6
_MAX_WAIT = 10.0
_PAUSE = 0.1
_ASKS = frozenset({
    "TurnService/ConnectTurn", "SessionService/ConnectNode", "SessionService/ConnectSession",
    "SandboxService/ConnectSandbox", "TemplateService/ConnectTemplates",
})  # fmt: skip
_CODES = {
    "invalid_argument": "invalid", "not_found": "not_found", "unavailable": "unavailable",
    "resource_exhausted": "exhausted", "canceled": "canceled", "deadline_exceeded": "timeout",
    "data_loss": "integrity", "aborted": "dead", "internal": "internal", "permission_denied": "denied",
    "unauthenticated": "denied", "already_exists": "invalid", "failed_precondition": "invalid",
    "out_of_range": "invalid", "unimplemented": "unavailable", "unknown": "internal",
}  # fmt: skip
_HTTP = {400: "internal", 401: "denied", 403: "denied", 404: "unavailable", 429: "unavailable",
         502: "unavailable", 503: "unavailable", 504: "unavailable"}  # fmt: skip
_KINDS = {number: name.removeprefix("ERROR_KIND_").lower()
          for name, number in ENUMS["turnstone.v1.ErrorKind"].items()}  # fmt: skip


@dataclass
class Options:
    """How to reach a server, and whom to trust behind it."""

    address: Address
    key: KeyPair
    pins: Callable[[str, bytes], Pins]
    token: Callable[[], str]
    own: bool = False  # a socket of this user: every node behind it is trusted
    seal: Callable[[], bytes | None] = lambda: None
    nodes: Callable[[], list[dict[str, str]]] = list
    remember: Callable[[list[dict[str, str]]], None] = lambda _: None
    tls: ssl.SSLContext | None = None


@dataclass
class Offer:
    """What a server answers about a channel. It is not believed before it was checked."""

    channel: Mapping[str, Any]
    about: str
    nonce: bytes
    node: str = ""  # whose statement it has to be; empty: any pinned node's


class AsyncServer:
    """A server, which is not trusted with content."""

    def __init__(self, o: Options) -> None:
        self._o = o
        self._greeted = False
        self._http: httpx.AsyncClient | None = None
        self._nodes: list[dict[str, str]] | None = None
        self._tls = o.tls

    @property
    def address(self) -> Address:
        return self._o.address

    @property
    def public_key(self) -> bytes:
        return self._o.key.public

    @property
    def operator(self) -> bool:
        """The connection is over a socket of this user, who is the operator then."""
        return self._o.own

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            a = self._o.address
            if a.socket:
                transport = httpx.AsyncHTTPTransport(uds=a.socket)
            else:
                transport = httpx.AsyncHTTPTransport(verify=self._context() or False)
            self._http = httpx.AsyncClient(transport=transport, trust_env=False, follow_redirects=False)
        return self._http

    def _context(self) -> ssl.SSLContext | None:
        if self._o.address.scheme == "https" and self._tls is None:
            self._tls = ssl.create_default_context()
            self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        return self._tls if self._o.address.scheme == "https" else None

    async def _authorization(self) -> dict[str, str]:
        """Return the header of a call. It is asked before anything is sent."""
        await self._greet()
        if self._o.own:
            return {}
        token = self._o.token()
        return {"Authorization": "Bearer " + check_token(token, "the token")} if token else {}

    async def _greet(self) -> None:
        """Ask who the port is, before it gets a token: one that speaks TLS would get it unencrypted."""
        a = self._o.address
        if self._greeted or a.scheme == "https":
            return
        await blocking(self._probe)
        self._greeted = True

    def _probe(self) -> None:
        a = self._o.address
        s = a.dial(self._o.own)
        with s:
            if a.socket:
                return
            try:
                s.sendall(f"GET {a.path}/healthz HTTP/1.1\r\nHost: {a.netloc}\r\nConnection: close\r\n\r\n".encode())
                head = s.recv(4096)
            except OSError as e:
                raise unreached(str(a), e) from None
        if head.startswith(b"\x15\x03") or b"HTTPS" in head:
            raise InvalidError(
                "host.connect", str(a), "speaks TLS, and nothing was sent to it",
                hint="write https:// and the name of its certificate in the address")  # fmt: skip

    # control calls

    async def call(
        self, method: str, request: Mapping[str, Any], deadline: Deadline = NEVER
    ) -> dict[str, Any]:
        """Make a control call with a proof of this client's key, and repeat what is safe to repeat."""
        m = METHODS[method]
        message = dict(request)
        if "client" in MESSAGES[m.request] and "client" not in message:
            message["client"] = self.asker()
        safe = m.safe or method in _ASKS or bool(message.get("idempotencyKey"))
        pause, met, tries = _PAUSE, 0, 1
        while True:
            self._prove(m.request, message)
            try:
                return await self._once(method, _proto.to_json(m.request, message), deadline)
            except _Refused as refused:
                if met < _MAX_MEETS and self._meet(message, refused):
                    met += 1
                    continue
                raise refused.error from None
            except TurnstoneError as e:
                wait = max(pause, e.retry_after)
                left = deadline.left()
                if tries == _MAX_TRIES or not safe or not e.retryable or wait > _MAX_WAIT:
                    raise
                if left is not None and wait >= left:
                    raise
            await sleep(wait)
            tries += 1
            pause *= 2

    async def _once(self, method: str, body: dict[str, Any], deadline: Deadline) -> dict[str, Any]:
        headers = await self._authorization()
        a = self._o.address
        url = f"{a.control}/turnstone.v1.{method}"
        headers |= {"Content-Type": "application/json", "Connect-Protocol-Version": "1"}
        bound = deadline.within(_ANSWER_TIME)
        left = bound.left() or 0.001
        timeout = httpx.Timeout(left, connect=min(10.0, left), pool=left)
        try:
            async with self._client().stream(
                "POST", url, content=json.dumps(body).encode(), headers=headers, timeout=timeout
            ) as answer:
                self._check_peer(answer)
                text = b""
                async for part in answer.aiter_bytes():
                    text += part
                    if len(text) > _MAX_ANSWER:
                        raise IntegrityError(
                            "host.call", "the answer", f"has more than {_MAX_ANSWER} bytes",
                            hint="check the server's address")  # fmt: skip
                    if bound.passed:
                        raise bound.error("host.call", str(a))
        except httpx.TimeoutException as e:
            if isinstance(e, (httpx.ConnectTimeout, httpx.PoolTimeout)) and not bound.passed:
                raise unreached(str(a), e) from None
            raise TimeoutError(
                "host.call", str(a), "the answer did not come in time",
                hint="check that the server runs and can be reached") from None  # fmt: skip
        except httpx.HTTPError as e:
            raise unreached(str(a), _cause(e)) from None
        except ssl.SSLError as e:
            raise unreached(str(a), e) from None
        return self._answer(answer, text)

    def _check_peer(self, answer: httpx.Response) -> None:
        """Check whose the other end of a socket is."""
        stream = answer.extensions.get("network_stream")
        sock = stream.get_extra_info("socket") if stream is not None else None
        if sock is None or not (self._o.own or self._o.address.scheme == "http"):
            return
        if self._o.own:
            self._o.address.check_own(sock)
        elif not _attest_loopback(sock):
            raise InvalidError("host.connect", str(self._o.address), "is not on this machine")

    def _answer(self, answer: httpx.Response, text: bytes) -> dict[str, Any]:
        if answer.is_redirect:
            to = clean(answer.headers.get("location", ""), 100)
            raise InvalidError(
                "host.call", str(self._o.address), f"redirects to {to}",
                hint="use that address with turn host add if you trust it")  # fmt: skip
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if answer.status_code == 200 and is_dict(value):
            return value
        raise self._error(answer, value)

    def _error(self, answer: httpx.Response, value: Any) -> TurnstoneError:
        """Return the error of an answer, which a proxy could have written."""
        address = str(self._o.address)
        code = value.get("code") if is_dict(value) else None
        if not isinstance(code, str) or code not in _CODES:
            kind = _HTTP.get(answer.status_code, "internal")
            return error_of(
                kind, "api.call", address, f"answers HTTP status {answer.status_code}, as no server of "
                "Turnstone does", hint="check the server's address")  # fmt: skip
        d = _detail(value)
        kind = _KINDS.get(d.get("kind", 0), "unspecified")
        if kind == "unspecified":
            kind = _CODES[code]
        cause = clean(d.get("cause", ""), 4000)
        if not d:
            cause = clean(str(value.get("message", "")), 4000)
        reason = clean(d.get("reason", ""), 200)
        hint = clean(d.get("hint", ""), 1000)
        if code == "unauthenticated" and not hint:
            hint = "set TURN_TOKEN to a token of this server, or store one with turn host add --token-file"
        after = _seconds(d.get("retryAfter", b"")) or _header_wait(answer)
        retryable = bool(d["retryable"]) if "retryable" in d else code in ("unavailable", "aborted")
        e = error_of(
            kind, clean(d.get("op", "api.call"), 200), clean(d.get("subject", "") or "", 1000) or
            ("" if cause else address), cause, hint=hint, retryable=retryable, retry_after=after,
            reason=reason)  # fmt: skip
        if reason == "proof":
            return _Refused(e, d.get("introduction", b""), d.get("certificate", b""))
        return e

    # proofs of possession

    def asker(self) -> dict[str, Any]:
        """Return the client's part of a new statement."""
        return {"clientPublicKey": self._o.key.public, "nonce": secrets.token_bytes(32)}

    def _known(self) -> list[dict[str, str]]:
        if self._nodes is None:
            self._nodes = [] if self._o.own else self._o.nodes()[:_MAX_NODES]
        return self._nodes

    def _prove(self, name: str, message: dict[str, Any]) -> None:
        """Add what shows each known node that this client has its key."""
        clients = _clients(message)
        if not clients or not self._known():
            return
        digest = _proto.proof_digest(name, message)
        now = int(time.time() * 1000).to_bytes(8, "big")
        for c in clients:
            proofs: list[dict[str, Any]] = []
            for n in self._known():
                prologue = b"turnstone proof of possession 1\0" + digest + n["tenant"].encode()
                try:
                    proof = _noise.OneWay(self._o.key, base64.b64decode(n["key"]), prologue).write(now)
                except (_noise.WeakKey, ValueError):
                    continue  # a damaged book
                proofs.append({"node": n["node"], "message": proof})
            c["proofs"] = proofs

    def _remember(self, node: str, key: bytes, tenant: str) -> bool:
        one = {"node": node, "key": base64.b64encode(key).decode(), "tenant": tenant}
        if not node or not tenant or one in self._known():
            return False
        self._nodes = [one, *(n for n in self._known() if n["node"] != node)][:_MAX_NODES]
        if not self._o.own:
            self._o.remember(self._nodes)
        return True

    def _meet(self, message: dict[str, Any], refused: _Refused) -> bool:
        """Learn the key of a node that refused a call because it has no proof for it."""
        signed = Statement.open(refused.introduction)
        pins = self._o.pins(signed.node, refused.certificate)
        failed: TurnstoneError = fault_error(
            "channel.verify", "replayed", f"the attestation of {signed.about}",
            "is the answer to a call that asked for none")  # fmt: skip
        for c in _clients(message):
            expected = Expected(pins, "node:" + signed.node, self._o.key.public, c["nonce"])
            try:
                signed.check(expected, _now())
            except TurnstoneError as e:
                failed = e
                continue
            self._check_tenant(signed.tenant)
            return self._remember(signed.node, signed.server_key, signed.tenant)
        raise self._distrusted(failed)

    def _check_tenant(self, tenant: str) -> None:
        """Raise that the server works in the name of another tenant than the token's."""
        if self._o.own:
            return
        said = _claim(self._o.token(), "tenant")
        if said and said != tenant:
            raise self._distrusted(fault_error(
                "host.call", "spliced", "the node's statement",
                f"is for the tenant {tenant[:64]!r}, and the token for {said[:64]!r}"))  # fmt: skip

    # channels

    async def open(self, o: Offer, deadline: Deadline = NEVER) -> AsyncChannel:
        """Check an offer and open its channel."""
        try:
            signed = self.believe(o)
            ws = await self._dial(str(o.channel.get("path", "")), deadline)
            return await AsyncChannel.open(ws, self._o.key, signed.server_key, signed.digest, deadline)
        except TurnstoneError as e:
            raise self._distrusted(e) from None

    def believe(self, o: Offer) -> Statement:
        """Return the statement of an offer, if it is the one that the client asked for."""
        certificate = _bytes(o.channel.get("certificate", ""))
        signed = Statement.open(_bytes(o.channel.get("attestation", "")))
        pins = self._o.pins(o.node, certificate)
        signed.check(Expected(pins, o.about, self._o.key.public, o.nonce), _now())
        if signed.node:
            self._remember(signed.node, signed.server_key, signed.tenant)
        return signed

    def _distrusted(self, e: TurnstoneError) -> TurnstoneError:
        """Name the server whose answers were manipulated."""
        if not e.fault or e.fault == "truncated" or e.op == "host.channel":
            return e
        name = e.fault.replace("_", " ")
        return IntegrityError(
            "host.channel", str(self._o.address),
            f"the connection to the node is not what it claims to be ({name}): {e.subject}: {e.cause}",
            hint=e.hint, fault=e.fault)  # fmt: skip

    async def _dial(self, path: str, deadline: Deadline) -> WebSocket:
        """Open the WebSocket at a path that the server answered."""
        a = self._o.address
        uri = a.channel(path)
        headers = await self._authorization()
        sock = await blocking(a.dial, self._o.own)
        bound = deadline.within(30.0)
        try:
            return await WebSocket.open(
                sock, uri, headers, self._context(), a.host, bound.left() or 0.001)  # fmt: skip
        except websockets.InvalidStatus as e:
            sock.close()
            raise _refused_channel(str(a), e) from None
        except (OSError, websockets.WebSocketException, asyncio.TimeoutError) as e:
            sock.close()
            if deadline.passed:
                raise deadline.error("host.channel", str(a)) from None
            raise unreached(str(a), e) from None
        except BaseException:
            sock.close()
            raise

    async def node_wire(self, node: str = "", deadline: Deadline = NEVER) -> tuple[AsyncWire, str]:
        """Open a connection to a node, and return its name. Without a name, the server selects."""
        client = self.asker()
        a = await self.call("SessionService/ConnectNode", {"node": node, "client": client}, deadline)
        name = node or str(a.get("node", ""))
        o = Offer(a.get("channel", {}), "node:" + name, client["nonce"], name)
        return await self._unlocked(await self.open(o, deadline), deadline), name

    async def turn_wire(self, offer: Offer, deadline: Deadline = NEVER) -> AsyncWire:
        """Open a connection to the node of a turn."""
        return await self._unlocked(await self.open(offer, deadline), deadline)

    async def _unlocked(self, channel: AsyncChannel, deadline: Deadline) -> AsyncWire:
        """Send the key that seals this client's sessions, if there is one, before the first command."""
        wire = AsyncWire(channel, "the connection to the node")
        seal = self._o.seal()
        if seal is None:
            return wire
        try:
            await wire.call("Session.unlock", {"key": base64.b64encode(seal).decode()}, deadline)
        except BaseException:
            await wire.close()
            raise
        return wire

    async def sandbox_offer(self, sandbox: str, deadline: Deadline = NEVER) -> Offer:
        """Ask for a fresh statement about a sandbox."""
        client = self.asker()
        a = await self.call(
            "SandboxService/ConnectSandbox", {"sandboxId": sandbox, "client": client}, deadline)  # fmt: skip
        return Offer(a.get("channel", {}), sandbox, client["nonce"])


class _Refused(DeniedError):
    """A call was refused because its client's key is not proved to the node."""

    def __init__(self, error: TurnstoneError, introduction: bytes, certificate: bytes) -> None:
        super().__init__(error.op, error.subject, error.cause, hint=error.hint, reason=error.reason)
        self.error = error
        self.introduction = introduction
        self.certificate = certificate


def _clients(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "clients" in message:
        return list(message["clients"])
    return [message["client"]] if message.get("client") else []


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def _bytes(text: Any) -> bytes:
    """Decode base64 of an answer; damaged bytes are no statement of anybody."""
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except ValueError:
        return b""


def _attest_loopback(sock: Any) -> bool:
    from .._address import is_loopback

    return is_loopback(str(sock.getpeername()[0]))


def _cause(e: BaseException) -> BaseException:
    """Return the innermost error."""
    seen = e
    while True:
        inner = seen.__cause__ or seen.__context__
        if inner is None:
            return seen if isinstance(seen, (OSError, ssl.SSLError)) else e
        seen = inner


def _detail(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the detail of an error; empty: there is none."""
    details = value.get("details")
    for d in details if is_list(details) else []:
        if is_dict(d) and d.get("type") == "turnstone.v1.Error":
            text = str(d.get("value", ""))
            try:
                raw = base64.b64decode(text + "=" * (-len(text) % 4))
                return _proto.decode("turnstone.v1.Error", raw)
            except ValueError:
                return {}
    return {}


def _seconds(duration: Any) -> float:
    """Return the seconds of a duration in its binary form."""
    seconds, at = 0.0, 0
    if not isinstance(duration, bytes):
        return 0.0
    try:
        while at < len(duration):
            tag, at = _proto.varint(duration, at)
            n, at = _proto.varint(duration, at)
            seconds += n if tag == 8 else n / 1e9 if tag == 16 else 0
    except ValueError:
        return 0.0
    return min(seconds, 3600.0)


def _header_wait(answer: httpx.Response) -> float:
    text = answer.headers.get("retry-after", "")
    return min(float(text), 3600.0) if text.isdigit() else 0.0


def _claim(token: str, name: str) -> str:
    """Return what a token says of itself, which this client does not verify."""
    parts = token.split(".")
    if len(parts) != 3:
        return ""
    try:
        said = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return ""
    value = said.get(name) if is_dict(said) else None
    return value if isinstance(value, str) else ""


def _refused_channel(address: str, e: websockets.InvalidStatus) -> TurnstoneError:
    """Return the error of a WebSocket that the server refused."""
    status = e.response.status_code
    text = clean((e.response.body or b"").decode("utf-8", "replace").strip(), 300)
    cause = f"refuses the channel (HTTP status {status})" + (f": {text}" if text else "")
    if status in (401, 403):
        return DeniedError("host.channel", address, cause, hint="use a token of this server")
    if status in (404, 409, 410):
        return error_of("not_found", "host.channel", address, cause)
    return UnavailableError("host.channel", address, cause, hint="try again")
