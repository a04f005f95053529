"""What a gateway can do to a statement, and the name that it has."""

from __future__ import annotations

import base64
import copy
import datetime
import hashlib
import json
import random
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from turnstone import TurnstoneError, _dsse
from turnstone._attest import (
    CERTIFICATE_TYPE,
    PREDICATE_TYPE,
    SUCCESSION_TYPE,
    Chain,
    Expected,
    Pinned,
    Rooted,
    Statement,
)
from turnstone._noise import KeyPair
from turnstone._sshkey import PublicKey

NOW = datetime.datetime(2026, 5, 1, 12, 0, 0, tzinfo=datetime.timezone.utc)
SANDBOX = "sb_06h1hf6rt85u7mbfd4"


class Signer:
    """A key that signs statements."""

    def __init__(self, seed: int = 1) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
        self.public = PublicKey.of_ed25519(self._key.public_key().public_bytes_raw())

    def seal(self, value: Any) -> bytes:
        payload = value if isinstance(value, bytes) else _dsse.compact(value)
        sig = self._key.sign(_dsse.pae(payload))
        return _dsse.compact({
            "payloadType": _dsse.PAYLOAD_TYPE, "payload": base64.b64encode(payload).decode(),
            "signatures": [{"keyid": self.public.fingerprint, "sig": base64.b64encode(sig).decode()}],
        })  # fmt: skip


NODE = Signer(1)
CLIENT, SERVER = KeyPair(bytes([3]) * 32), KeyPair(bytes([4]) * 32)
NONCE = bytes([9]) * 32


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def whole(**changes: Any) -> dict[str, Any]:
    predicate: dict[str, Any] = {
        "sandbox": SANDBOX, "serverKey": b64(SERVER.public), "clients": [b64(CLIENT.public)],
        "nonce": b64(NONCE), "time": "2026-05-01T12:00:00Z", "expires": "2026-05-01T13:00:00Z",
        "signer": NODE.public.text,
    }  # fmt: skip
    order = ("sandbox", "node", "serverKey", "clients", "owner", "nonce", "tenant", "template", "agent",
             "substrate", "time", "expires", "signer")  # fmt: skip
    predicate.update(changes)
    predicate = {k: predicate[k] for k in order if predicate.get(k) is not None}
    about = "node:" + predicate["node"] if predicate.get("node") else predicate.get("sandbox", "")
    key = base64.b64decode(predicate["serverKey"])
    return {
        "_type": _dsse.STATEMENT_TYPE,
        "subject": [{"name": about, "digest": {"sha256": hashlib.sha256(key).hexdigest()}}],
        "predicateType": PREDICATE_TYPE, "predicate": predicate,
    }  # fmt: skip


def expected(**changes: Any) -> Expected:
    given: dict[str, Any] = {
        "pins": Pinned(frozenset({NODE.public.text}), frozenset()), "about": SANDBOX,
        "client": CLIENT.public, "nonce": NONCE}  # fmt: skip
    return Expected(**{**given, **changes})


def fault_of(envelope: bytes, e: Expected | None = None, now: datetime.datetime = NOW) -> str:
    try:
        Statement.open(envelope).check(e or expected(), now)
    except TurnstoneError as err:
        assert err.kind == "integrity" and not err.retryable and err.hint
        return err.fault
    return ""


def test_a_good_statement() -> None:
    s = Statement.open(NODE.seal(whole()))
    s.check(expected(), NOW)
    assert s.about == SANDBOX and s.server_key == SERVER.public
    assert fault_of(NODE.seal(whole(node="n1", sandbox=None, tenant="acme")), expected(about="node:n1")) == ""


def test_faults() -> None:
    good = NODE.seal(whole())
    other = KeyPair(bytes([5]) * 32)
    signer = Signer(2)
    mine = whole(signer=signer.public.text)
    weak = whole(serverKey=b64(bytes(32)))
    hour = datetime.timedelta(hours=1)
    assert fault_of(signer.seal(mine)) == "untrusted"
    assert fault_of(signer.seal(whole())) == "forged"
    assert fault_of(good, expected(nonce=bytes(32))) == "replayed"
    assert fault_of(good, now=NOW + hour) == "expired"
    assert fault_of(good, now=NOW - hour) == "expired"
    assert fault_of(good, expected(about="sb_06h1hf6rt85u7mbfd5")) == "spliced"
    assert fault_of(NODE.seal(whole(clients=[b64(other.public)]))) == "spliced"
    assert fault_of(NODE.seal(whole(clients=[b64(CLIENT.public), b64(other.public)]))) == "widened"
    assert fault_of(NODE.seal(whole(owner=signer.public.text))) == "widened"
    assert fault_of(NODE.seal(weak)) == "forged"
    revoked = Pinned(frozenset({NODE.public.text}), frozenset({NODE.public.fingerprint}))
    assert fault_of(good, expected(pins=revoked)) == "untrusted"


def test_forms_that_nobody_signs() -> None:
    bad = [
        whole(node="n1"), whole(sandbox=None), whole(clients=[]), whole(clients=[b64(CLIENT.public)] * 2),
        whole(nonce=b64(bytes(32))), whole(expires="2026-05-01T12:00:00Z"), whole(expires="2026-05-03T12:00:00Z"),
        whole(time="2026-05-01T12:00:00.5Z"), whole(time="1969-05-01T12:00:00Z"), whole(sandbox="sb_\n"),
        whole(template="sha256:0"), whole(tenant=""), whole(signer="ssh-ed25519 x"), whole(owner="nobody"),
        whole(clients=[b64(CLIENT.public)[:-1]]), whole(serverKey=b64(b"short" * 6)),
        {**whole(), "predicateType": CERTIFICATE_TYPE}, {**whole(), "_type": "x"},
        {**whole(), "subject": []}, {**whole(), "more": 1},
    ]  # fmt: skip
    extra = whole()
    extra["predicate"]["extra"] = 1
    for value in [*bad, extra]:
        assert fault_of(NODE.seal(value)) == "forged", value
    good = whole()
    spaced = json.dumps(good).encode()
    twice = _dsse.compact(good).replace(b'"nonce"', b'"nonce":"x","nonce"')
    for payload in (spaced, twice, b"", b"[" * 1000, b"\xff"):
        assert fault_of(NODE.seal(payload)) == "forged"


def test_envelopes_have_one_spelling() -> None:
    good = NODE.seal(whole())
    e = json.loads(good)
    two = copy.deepcopy(e)
    two["signatures"] *= 2
    none = copy.deepcopy(e)
    none["signatures"] = []
    kind = {**e, "payloadType": "text/plain"}
    swapped = {"signatures": e["signatures"], "payload": e["payload"], "payloadType": e["payloadType"]}
    keyid = copy.deepcopy(e)
    keyid["signatures"][0]["keyid"] = "SHA256:" + "A" * 43
    for value in (two, none, kind, swapped, keyid):
        assert fault_of(_dsse.compact(value)) == "forged"
    for raw in (good + b"\n", b" " + good, good.replace(b":", b": ", 1), b"", b"{}", b"null", b"x" * (600 << 10)):
        assert fault_of(raw) == "forged"


def test_random_changes_never_pass() -> None:
    rng = random.Random(5)
    good = NODE.seal(whole())
    for _ in range(400):
        raw = bytearray(good)
        at = rng.randrange(len(raw))
        new = rng.randrange(256)
        if raw[at] == new:
            continue
        raw[at] = new
        assert fault_of(bytes(raw)) != "", (at, new)


ROOT, NEXT = Signer(11), Signer(12)


def certificate(by: Signer = ROOT, key: str = NODE.public.text, **changes: Any) -> bytes:
    p: dict[str, Any] = {
        "node": "n1", "key": key, "epoch": 1, "time": "2026-05-01T00:00:00Z",
        "expires": "2026-06-01T00:00:00Z", "signer": by.public.text}  # fmt: skip
    p.update(changes)
    return by.seal(in_toto(CERTIFICATE_TYPE, "node:" + p["node"], p["key"], p))


def succession(by: Signer, next_: Signer, epoch: int) -> bytes:
    p = {"next": next_.public.text, "epoch": epoch, "time": "2026-05-01T00:00:00Z", "signer": by.public.text}
    return by.seal(in_toto(SUCCESSION_TYPE, "root", next_.public.text, p))


def in_toto(kind: str, name: str, key: str, p: dict[str, Any]) -> dict[str, Any]:
    digest = hashlib.sha256(key.encode()).hexdigest()
    return {"_type": _dsse.STATEMENT_TYPE, "subject": [{"name": name, "digest": {"sha256": digest}}],
            "predicateType": kind, "predicate": p}  # fmt: skip


def chain_fault(text: bytes, root: str = ROOT.public.text, epoch: int = 0, node: str = "n1",
                now: datetime.datetime = NOW) -> str:  # fmt: skip
    try:
        chain = Chain.open(text)
        chain.check(root, epoch, now)
        chain.check_node(node, NODE.public)
    except TurnstoneError as e:
        assert e.kind == "integrity" and e.hint
        return e.fault
    return ""


def test_certificates_of_a_root() -> None:
    good = certificate() + b"\n"
    moved = certificate(NEXT, epoch=3) + b"\n" + succession(ROOT, NEXT, 2) + b"\n"
    month = datetime.timedelta(days=40)
    assert chain_fault(good) == ""
    assert chain_fault(moved) == ""
    assert chain_fault(moved, epoch=2) == "old_epoch"
    assert chain_fault(good, root=NEXT.public.text) == "other_root"
    assert chain_fault(good, epoch=2) == "old_epoch"
    assert chain_fault(good, now=NOW + month) == "certificate_expired"
    assert chain_fault(good, now=NOW - month) == "certificate_not_yet_valid"
    assert chain_fault(good, node="n2") == "other_node"
    assert chain_fault(certificate(key=NEXT.public.text) + b"\n") == "other_node"
    forged = [
        good[:-1], b"", b"\n", good + good, certificate(epoch=0) + b"\n", certificate(node="a b") + b"\n",
        certificate(key=ROOT.public.text) + b"\n", certificate(expires="2028-06-01T00:00:00Z") + b"\n",
        certificate(NEXT, epoch=1) + b"\n" + succession(ROOT, NEXT, 2) + b"\n",
        certificate(epoch=3) + b"\n" + succession(ROOT, NEXT, 2) + b"\n", b"x" * (17 << 10),
    ]  # fmt: skip
    for text in forged:
        assert chain_fault(text) == "forged", text


def test_a_rooted_client_needs_a_certificate() -> None:
    nobody = Pinned(frozenset(), frozenset())
    with pytest.raises(TurnstoneError) as e:
        Rooted(nobody, "n1").vouch(NODE.public, "x")
    assert e.value.fault == "uncertified"
    Rooted(nobody, "n1", Chain.open(certificate() + b"\n")).vouch(NODE.public, "x")
