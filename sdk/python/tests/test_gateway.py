"""A gateway that manipulates: each manipulation has its name, as with turn itself."""

from __future__ import annotations

import base64
import hashlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from relay import Relay, cut
from test_attest import Signer

from turnstone import IntegrityError, Turnstone, TurnstoneError, _dsse
from turnstone._hosts import Host, HostList, Store, state_directory, write_private
from turnstone._noise import KeyPair

pytestmark = pytest.mark.server


class Gateway:
    """A relay, and a client that reaches the server through it."""

    def __init__(self, home: Path, server: str) -> None:
        self.relay = Relay(server)
        self.home = home
        known = Store(state_directory()).load().hosts["test"]
        Store(home).make()
        hosts = HostList(hosts={"relay": Host(self.relay.url, nodes=known.nodes)})
        write_private(home / "hosts.toml", hosts.encode().encode())
        shutil.copy(state_directory() / "client" / "key", home / "client" / "key")
        self.client = Turnstone("relay", home=home)


@pytest.fixture
def gateway(tmp_path: Path, client: Turnstone) -> Iterator[Gateway]:
    client.templates()  # which makes the client's key
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    g = Gateway(home, Store(state_directory()).load().hosts["test"].url)
    yield g
    g.relay.answer, g.relay.up, g.relay.down = (lambda m, a: a), (lambda n, m: [m]), (lambda n, m: [m])
    g.client.close()
    g.relay.close()


def fault(f: Any) -> str:
    with pytest.raises(TurnstoneError) as e:
        f()
    if e.value.fault and e.value.fault != "truncated":
        assert isinstance(e.value, IntegrityError) and not e.value.retryable and e.value.hint
    return e.value.fault


def attestation(a: dict[str, Any]) -> bytes:
    return base64.b64decode(a["channel"]["attestation"])


def put(a: dict[str, Any], envelope: bytes) -> dict[str, Any]:
    a["channel"]["attestation"] = base64.b64encode(envelope).decode()
    return a


def test_statements(gateway: Gateway) -> None:
    g = gateway
    log = lambda: g.client.at_node(lambda wire: wire.call("Session.expand", {"ref": "-", "session": "x"}))  # noqa: E731
    kept: list[bytes] = []
    calls = {"n": 0}

    def change(f: Any) -> None:
        def answer(method: str, a: dict[str, Any]) -> dict[str, Any]:
            if method == "ConnectNode":
                calls["n"] += 1
                return f(a)  # type: ignore[no-any-return]
            return a

        g.relay.answer = answer

    def flip(a: dict[str, Any]) -> dict[str, Any]:
        kept.append(attestation(a))
        e = bytearray(attestation(a))
        e[len(e) // 2] ^= 1
        return put(a, bytes(e))

    change(flip)
    assert fault(log) == "forged"
    change(lambda a: put(a, kept[0]))
    assert fault(log) == "replayed"

    own, evil = KeyPair.generate(), Signer(33)

    def swapped(by: Any, signer: str) -> Any:
        def f(a: dict[str, Any]) -> dict[str, Any]:
            s = _dsse.decode_json(_dsse.Envelope(attestation(a)).payload)
            s["predicate"]["serverKey"] = base64.b64encode(own.public).decode()
            s["subject"][0]["digest"]["sha256"] = hashlib.sha256(own.public).hexdigest()
            if signer:
                s["predicate"]["signer"] = signer
            return put(a, by.seal(s))

        return f

    change(swapped(evil, ""))
    assert fault(log) == "forged"
    change(swapped(evil, evil.public.text))
    assert fault(log) == "untrusted"
    change(lambda a: {**a, "channel": {**a["channel"], "path": "//elsewhere/turnstone/v1/x"}})
    with pytest.raises(IntegrityError):
        log()
    assert calls["n"] == 5  # nothing was tried again


def test_sandboxes_of_others(gateway: Gateway) -> None:
    g = gateway
    other: list[dict[str, Any]] = []
    with g.client.sandbox(session="") as a, g.client.sandbox(session="") as b:
        b.exec(["true"])
        for sandbox in (a, b):
            sandbox._disconnect()

        def answer(method: str, x: dict[str, Any]) -> dict[str, Any]:
            if method == "ConnectSandbox":
                other.append(x)
                return other[0]
            return x

        g.relay.answer = answer
        b.exec(["true"])
        assert fault(lambda: a.exec(["true"])) in ("replayed", "spliced")
        g.relay.answer = lambda m, x: x
        a.exec(["true"])


def test_frames(gateway: Gateway) -> None:
    g = gateway
    with g.client.sandbox(session="") as sb:

        def run(down: Any = None, up: Any = None) -> str:
            sb._disconnect()
            g.relay.down = down or (lambda n, m: [m])
            g.relay.up = up or (lambda n, m: [m])
            # it does not end before the connection does
            return fault(lambda: sb.exec(["sh", "-c", "while :; do echo x; sleep 0.1; done"], timeout=100))

        def flip(m: bytes) -> bytes:
            return m[:-1] + bytes([m[-1] ^ 1])

        sb.exec(["true"])
        # the first message of each direction is the handshake's
        assert run(down=lambda n, m: [m[:1] + KeyPair.generate().public + m[33:]] if n == 0 else [m]) == "key_swapped"
        assert run(down=lambda n, m: [b"\x63"] if n == 0 else [m]) == "altered"
        assert run(down=lambda n, m: [flip(m)] if n == 1 else [m]) == "altered"
        assert run(down=lambda n, m: [m, m] if n == 1 else [m]) == "repeated"
        assert run(down=lambda n, m: [] if n == 1 else [m]) == "reordered"
        assert run(up=lambda n, m: [flip(m)] if n == 2 else [m]) == "altered"
        assert run(up=lambda n, m: [m, m] if n == 2 else [m]) == "repeated"

        def reflect(n: int, m: bytes) -> list[bytes]:
            if n == 2:
                g.relay.to_client(m)
                return []
            return [m]

        assert run(up=reflect) == "reflected"
        sb._disconnect()
        g.relay.down = g.relay.up = lambda n, m: [m]
        assert sb.exec(["echo", "x"]).stdout == "x\n"


def test_a_lost_connection_loses_no_output(gateway: Gateway) -> None:
    g = gateway
    lost = threading.Event()
    with g.client.sandbox(session="") as sb:
        sb.exec(["true"])
        sb._disconnect()
        before = g.relay.channels

        def down(n: int, m: bytes) -> list[bytes]:
            if n == 4 and not lost.is_set():
                lost.set()
                return cut(n, m)
            return [m]

        g.relay.down = down
        script = "for i in $(seq 20); do echo $i; sleep 0.05; done; cat"
        r = sb.exec(["bash", "-c", script], stdin="end\n")
        assert lost.is_set() and g.relay.channels > before + 1
        assert r.stdout == "".join(f"{i}\n" for i in range(1, 21)) + "end\n"


def test_another_pin(gateway: Gateway, tmp_path: Path) -> None:
    hosts = gateway.home / "hosts.toml"
    known = Store(gateway.home).load()
    known.hosts["relay"].nodes = {"other": [Signer(44).public.text]}
    hosts.write_text(known.encode())
    with Turnstone("relay", home=gateway.home) as c:
        assert fault(lambda: c.sandbox(session="")) == "untrusted"
