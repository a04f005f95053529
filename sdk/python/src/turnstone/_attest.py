"""What a client checks of a node's statement about the key of a channel.

docs/decisions/0019-channel.md has the fields, 0023-operators-root.md those of certificates.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from . import _dsse, _noise
from ._dsse import Envelope, field_of, parse_time
from ._sshkey import PublicKey, fingerprint, strict_base64
from .errors import TurnstoneError, fault_error

PREDICATE_TYPE = "https://turnstone.dev/attestations/channel/v1"
CERTIFICATE_TYPE = "https://turnstone.dev/attestations/node-certificate/v1"
SUCCESSION_TYPE = "https://turnstone.dev/attestations/root-succession/v1"

_SKEW = datetime.timedelta(minutes=1)
_MAX_VALIDITY = datetime.timedelta(hours=24)
_MAX_CERTIFICATE_VALIDITY = datetime.timedelta(days=366)
_MAX_CLIENTS = 16
_MAX_EPOCH = 1_000_000_000
_MAX_SUCCESSIONS = 8
_MAX_CHAIN = 16 << 10
_NAME = re.compile(r"[A-Za-z0-9._-]{0,253}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def _key32(text: Any) -> bytes:
    """Decode one spelling of a key or a nonce of 32 bytes."""
    if type(text) is not str:
        raise ValueError("a key is of another type")
    raw = strict_base64(text)
    if len(raw) != 32:
        raise ValueError("a key is not base64 of 32 bytes")
    return raw


def _subject(name: str, material: bytes) -> list[dict[str, Any]]:
    return [{"name": name, "digest": {"sha256": hashlib.sha256(material).hexdigest()}}]


_FIELDS = (
    "sandbox", "node", "serverKey", "clients", "owner", "nonce", "tenant", "template", "agent",
    "substrate", "time", "expires", "signer",
)  # fmt: skip


@dataclass(frozen=True)
class Statement:
    """A statement whose signature is that of the key that it names. check says whether to believe it."""

    sandbox: str
    node: str
    server_key: bytes
    clients: tuple[bytes, ...]
    owner: str
    nonce: bytes
    tenant: str
    time: datetime.datetime
    expires: datetime.datetime
    signer: PublicKey
    digest: bytes  # of the payload: the prologue of the handshake
    digests: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def about(self) -> str:
        return "node:" + self.node if self.node else self.sandbox

    @classmethod
    def open(cls, envelope: bytes) -> Statement:
        """Decode an untrusted envelope. The error has the fault "forged"."""
        try:
            return cls._open(envelope)
        except ValueError as e:
            raise fault_error("channel.verify", "forged", "the attestation", str(e)) from None

    @classmethod
    def _open(cls, envelope: bytes) -> Statement:
        sealed = Envelope(envelope)
        whole = sealed.statement(PREDICATE_TYPE, "a channel")
        p = whole["predicate"]
        if list(p) != [f for f in _FIELDS if f in p]:
            raise ValueError("is not spelled as turn writes it")
        text = {f: field_of(p, f, str, "") for f in _FIELDS if f != "clients"}
        clients = field_of(p, "clients", list)
        if any(f in p and not text[f] for f in ("sandbox", "node", "owner", "tenant", "template",
                                                "agent", "substrate")):  # fmt: skip
            raise ValueError("is not spelled as turn writes it")
        s = cls(
            sandbox=text["sandbox"], node=text["node"], server_key=_key32(text["serverKey"]),
            clients=tuple(_key32(k) for k in clients), owner=text["owner"],
            nonce=_key32(text["nonce"]), tenant=text["tenant"], time=parse_time(text["time"]),
            expires=parse_time(text["expires"]), signer=PublicKey(text["signer"]),
            digest=hashlib.sha256(sealed.payload).digest(),
            digests={k: text[k] for k in ("template", "agent", "substrate")},
        )  # fmt: skip
        s._check_form()
        whole["subject"] = _subject(s.about, s.server_key)
        if _dsse.compact(whole) != sealed.payload:
            raise ValueError("is not spelled as turn writes it, or its subject is not its key")
        sealed.verify(s.signer)
        return s

    def _check_form(self) -> None:
        """Report a statement that means nothing."""
        if bool(self.sandbox) == bool(self.node):
            raise ValueError("it is about neither or both of a sandbox and a node")
        names = (self.sandbox + self.node, self.tenant)
        if len(self.about) > 253 or not all(_NAME.fullmatch(n) for n in names):
            raise ValueError("it has a name that no sandbox, node or tenant has")
        if not 1 <= len(self.clients) <= _MAX_CLIENTS or len(set(self.clients)) < len(self.clients):
            raise ValueError("it admits no client, too many, or one twice")
        if self.nonce == bytes(32):
            raise ValueError("it has no nonce")
        if not datetime.timedelta(0) < self.expires - self.time <= _MAX_VALIDITY:
            raise ValueError("it is not valid for a time up to 24 hours")
        if any(_noise.is_weak(k) for k in (self.server_key, *self.clients)):
            raise ValueError("weak_key: a key is a point of low order")
        if any(d and not _DIGEST.fullmatch(d) for d in self.digests.values()):
            raise ValueError("it has a digest that is none")
        if self.owner:
            PublicKey(self.owner)

    def check(self, e: Expected, now: datetime.datetime) -> None:
        """Raise why a client must not use the statement. Each error has a fault."""

        def fail(fault: str, cause: str) -> TurnstoneError:
            return fault_error("channel.verify", fault, f"the attestation of {self.about}", cause)

        # the time of the check, and not of the statement: an attacker with an old key chooses that
        e.pins.vouch(self.signer, f"the attestation of {self.about}")
        if self.time > now + _SKEW:
            raise fail("expired", f"is valid from {_dsse.format_time(self.time)} only")
        if now >= self.expires:
            raise fail("expired", f"expired at {_dsse.format_time(self.expires)}")
        if not hmac.compare_digest(self.nonce, e.nonce):
            raise fail("replayed", "is the answer to another request")
        if self.about != e.about:
            raise fail("spliced", f"is not about {e.about[:200]}")
        if e.client not in self.clients:
            raise fail("spliced", f"does not admit this client's key {_b64(e.client)}")
        for k in self.clients:
            if k != e.client:
                raise fail("widened", f"admits the key {_b64(k)}, which this client did not name")
        if self.owner != e.owner:
            raise fail("widened", f"lets the key {self.owner[:200]!r} admit others, not {e.owner[:200]!r}")


def _b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


class Pins(Protocol):
    """Whom a client trusts to sign statements."""

    def vouch(self, signer: PublicKey, subject: str) -> None: ...


@dataclass(frozen=True)
class Expected:
    """What a client knows about the statement that it asked for."""

    pins: Pins
    about: str
    client: bytes
    nonce: bytes
    owner: str = ""


class AnyNode:
    """Trusts every key: the connection has shown whose the server is."""

    def vouch(self, signer: PublicKey, subject: str) -> None:
        pass


@dataclass(frozen=True)
class Pinned:
    """Trusts keys, "TYPE BASE64", except revoked ones (fingerprints)."""

    keys: frozenset[str]
    revoked: frozenset[str]

    def vouch(self, signer: PublicKey, subject: str) -> None:
        if signer.fingerprint in self.revoked:
            raise fault_error(
                "channel.verify", "untrusted", subject,
                f"the node's key {signer.fingerprint} is revoked",
                "ask the node's operator for its new key, and trust that with turn host add --pin "
                "FINGERPRINT: this client's list revokes the old one (turn key revoke)")  # fmt: skip
        if signer.text not in self.keys:
            raise fault_error(
                "channel.verify", "untrusted", subject,
                f"the node's key {signer.fingerprint} is not trusted",
                "compare the node's key with the server's operator; turn host add --pin FINGERPRINT "
                "trusts it")  # fmt: skip


@dataclass(frozen=True)
class Certificate:
    """What an operator's root says about a node's key."""

    node: str
    key: str
    epoch: int
    time: datetime.datetime
    expires: datetime.datetime
    signer: str


@dataclass(frozen=True)
class Succession:
    """What an operator's root says about the root that takes its place."""

    next: str
    epoch: int
    time: datetime.datetime
    signer: str


def _open_predicate(line: bytes, kind: str, what: str, fields: Sequence[str]) -> dict[str, Any]:
    sealed = Envelope(line)
    whole = sealed.statement(kind, what)
    p: dict[str, Any] = whole["predicate"]
    if list(p) != [f for f in fields if f in p] or p.get("node") == "":
        raise ValueError("is not spelled as turn writes it")
    epoch = field_of(p, "epoch", int)
    if not 1 <= epoch <= _MAX_EPOCH:
        raise ValueError(f"its epoch is not between 1 and {_MAX_EPOCH}")
    about = field_of(p, "key" if "key" in fields else "next", str)
    signer = field_of(p, "signer", str)
    if about == signer:
        raise ValueError("it is about the root's own key")
    PublicKey(about)
    name = "node:" + field_of(p, "node", str, "") if "key" in fields else "root"
    whole["subject"] = _subject(name, about.encode())
    if _dsse.compact(whole) != sealed.payload:
        raise ValueError("is not spelled as turn writes it, or its subject is not its key")
    sealed.verify(PublicKey(signer))
    return p


def _open_certificate(line: bytes) -> Certificate:
    p = _open_predicate(
        line, CERTIFICATE_TYPE, "the certificate", ("node", "key", "epoch", "time", "expires", "signer"))  # fmt: skip
    c = Certificate(
        field_of(p, "node", str, ""), p["key"], p["epoch"], parse_time(field_of(p, "time", str)),
        parse_time(field_of(p, "expires", str)), p["signer"])  # fmt: skip
    if not _NAME.fullmatch(c.node):
        raise ValueError("it has a name that no node has")
    if not datetime.timedelta(0) < c.expires - c.time <= _MAX_CERTIFICATE_VALIDITY:
        raise ValueError("it is not valid for a time up to 366 days")
    return c


def _open_succession(line: bytes) -> Succession:
    p = _open_predicate(line, SUCCESSION_TYPE, "the succession", ("next", "epoch", "time", "signer"))
    return Succession(p["next"], p["epoch"], parse_time(field_of(p, "time", str)), p["signer"])


_HINTS = {
    "uncertified": "ask the server's operator to certify the node: turn host root sign, and "
    "node.certificate of the node",
    "other_root": "compare the root with the server's operator; turn host add --root FINGERPRINT "
    "trusts another one",
    "certificate_expired": "ask the server's operator for a new certificate of the node, and compare "
    "the clocks of this machine and of the node: date -u",
    "certificate_not_yet_valid": "compare the clocks of this machine and of the node: date -u",
    "old_epoch": "ask the server's operator for a new certificate of the node: later ones of the same "
    "root are in use",
    "root_revoked": "do not rely on nodes that this root certified",
    "other_node": "ask the server's operator which key the node has: turn host root show",
}


def refuse(fault: str, cause: str) -> TurnstoneError:
    """The error of a certificate that a client does not believe."""
    return fault_error("root.verify", fault, "the node's certificate", cause, _HINTS.get(fault, ""))


@dataclass(frozen=True)
class Chain:
    """A node's certificate, and the successions of roots that lead to the one that signed it."""

    certificate: Certificate
    successions: tuple[Succession, ...]

    @classmethod
    def open(cls, text: bytes) -> Chain:
        """Decode an untrusted chain. The error has the fault "forged"."""
        try:
            return cls._open(text)
        except ValueError as e:
            raise fault_error("root.verify", "forged", "the certificate", str(e)) from None

    @classmethod
    def _open(cls, text: bytes) -> Chain:
        if len(text) > _MAX_CHAIN:
            raise ValueError(f"has {len(text)} bytes; the limit is {_MAX_CHAIN}")
        lines = text[:-1].split(b"\n")
        if not text.endswith(b"\n") or len(lines) > 1 + _MAX_SUCCESSIONS:
            raise ValueError(f"is not 1 to {1 + _MAX_SUCCESSIONS} lines")
        c = cls(_open_certificate(lines[0]), tuple(_open_succession(x) for x in lines[1:]))
        seen = {c.certificate.signer}
        for i, s in enumerate(c.successions):
            last = i + 1 == len(c.successions)
            follows = c.certificate.signer if last else c.successions[i + 1].signer
            epoch = c.certificate.epoch + 1 if last else c.successions[i + 1].epoch
            if s.next != follows:
                raise ValueError("its successions do not lead to the root that signed it")
            if s.epoch >= epoch:
                raise ValueError("its epochs go back")
            if s.signer in seen:
                raise ValueError("a root follows itself")
            seen.add(s.signer)
        return c

    @property
    def roots(self) -> list[str]:
        """The roots of the chain, the oldest first."""
        return [*(s.signer for s in self.successions), self.certificate.signer]

    def check(self, root: str, epoch: int, now: datetime.datetime) -> None:
        """Raise why a client that trusts root, and has seen epoch, does not believe the certificate."""
        c = self.certificate
        if root not in self.roots:
            raise refuse(
                "other_root", f"is signed by the root {fingerprint(c.signer)}, and this client trusts "
                f"{fingerprint(root)}")  # fmt: skip
        at = self.roots.index(root)
        if at < len(self.successions) and self.successions[at].epoch <= epoch:
            raise refuse(
                "old_epoch", f"has a succession of epoch {self.successions[at].epoch}, and this client "
                f"has seen epoch {epoch}")  # fmt: skip
        if c.epoch < epoch:
            raise refuse("old_epoch", f"has epoch {c.epoch}, and this client has seen epoch {epoch}")
        if c.time > now + _SKEW:
            raise refuse("certificate_not_yet_valid", f"is valid from {_dsse.format_time(c.time)} only")
        if now >= c.expires:
            raise refuse("certificate_expired", f"expired at {_dsse.format_time(c.expires)}")

    def check_node(self, name: str, key: PublicKey) -> None:
        """Raise that the certificate is not about the node with this name and key."""
        c = self.certificate
        if c.key != key.text:
            raise refuse(
                "other_node", f"is about the key {fingerprint(c.key)}, and the node has "
                f"{key.fingerprint}")  # fmt: skip
        if name and c.node and c.node != name:
            raise refuse("other_node", f"is about the node {c.node[:80]}, and not about {name[:80]}")


@dataclass
class Rooted:
    """Trusts pinned keys, and the node that a certificate is about."""

    pinned: Pinned
    node: str
    chain: Chain | None = None
    why: TurnstoneError | None = None  # there is no certificate to believe

    def vouch(self, signer: PublicKey, subject: str) -> None:
        if signer.fingerprint in self.pinned.revoked or signer.text in self.pinned.keys:
            self.pinned.vouch(signer, subject)
            return
        if self.why is not None:
            raise self.why
        if self.chain is None:
            raise refuse("uncertified", "is missing")
        self.chain.check_node(self.node, signer)
