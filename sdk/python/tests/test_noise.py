"""Noise against the published vectors and our own: sdk/testdata/noise.json."""

from __future__ import annotations

from typing import Any

from conftest import vectors

from turnstone import _channel, _noise


def published(name: str) -> list[dict[str, Any]]:
    found = [v for v in vectors() if v.get("protocol_name") == name]
    assert found, f"no vector of {name}"
    return found


def h(text: str) -> bytes:
    return bytes.fromhex(text)


def test_published_ik() -> None:
    for v in published("Noise_IK_25519_ChaChaPoly_SHA256"):
        init = _noise.Initiator(
            _noise.KeyPair(h(v["init_static"])), h(v["init_remote_static"]), h(v["init_prologue"]),
            _noise.KeyPair(h(v["init_ephemeral"])))  # fmt: skip
        resp = _noise.Responder(
            _noise.KeyPair(h(v["resp_static"])), h(v["resp_prologue"]),
            _noise.KeyPair(h(v["resp_ephemeral"])))  # fmt: skip
        m = [(h(x["payload"]), h(x["ciphertext"])) for x in v["messages"]]
        assert init.write(m[0][0]) == m[0][1]
        assert resp.read(m[0][1])[1] == m[0][0]
        second, r_recv, r_send = resp.write(m[1][0])
        assert second == m[1][1]
        payload, send, recv = init.read(second)
        assert payload == m[1][0]
        for n, (plain, sealed) in enumerate(m[2:]):
            out, into = (send, r_recv) if n % 2 == 0 else (r_send, recv)
            assert out.encrypt(plain) == sealed
            assert into.decrypt(sealed) == plain


def test_published_x() -> None:
    for v in published("Noise_X_25519_ChaChaPoly_SHA256"):
        sender = _noise.OneWay(
            _noise.KeyPair(h(v["init_static"])), h(v["init_remote_static"]), h(v["init_prologue"]),
            _noise.KeyPair(h(v["init_ephemeral"])))  # fmt: skip
        first = v["messages"][0]
        assert sender.write(h(first["payload"])) == h(first["ciphertext"])
        reader = _noise.OneWayReader(_noise.KeyPair(h(v["resp_static"])), h(v["resp_prologue"]))
        assert reader.read(h(first["ciphertext"]))[1] == h(first["payload"])


def test_own_channel() -> None:
    own = [v for v in vectors() if "hello" in v]
    assert own
    for v in own:
        server = _noise.KeyPair(h(v["server_static"]))
        statement = h(v["statement"].removeprefix("sha256:"))
        client = _channel.ClientHandshake(
            _noise.KeyPair(h(v["client_static"])), server.public, statement,
            _noise.KeyPair(h(v["client_ephemeral"])))  # fmt: skip
        assert client.hello() == h(v["hello"])
        answer = h(v["answer"])
        assert client.refusal(answer[0]) is None
        frames = client.finish(answer[1:])
        sent = frames.seal(_channel.KIND_CONFIRM) + frames.seal(_channel.KIND_DATA, b"data")
        assert sent + frames.seal(_channel.KIND_END) == h(v["frames"])


def test_low_order_points() -> None:
    assert _noise.is_weak(bytes(32))
    assert _noise.is_weak(b"\x01" + bytes(31))
    assert not _noise.is_weak(_noise.KeyPair.generate().public)
    key = _noise.KeyPair.generate()
    try:
        _channel.ClientHandshake(key, bytes(32), bytes(32)).hello()
        raise AssertionError("a weak key was used")
    except Exception as e:
        assert getattr(e, "fault", "") == "weak_key"


def test_no_repr_shows_a_key() -> None:
    key = _noise.KeyPair.generate()
    assert key.private_bytes().hex() not in repr(key) and key.public.hex() in repr(key)
