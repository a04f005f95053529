"""Hostile frames of a channel, each of which has a name."""

from __future__ import annotations

import random

import pytest

from turnstone import DeadError, IntegrityError, TurnstoneError, _channel
from turnstone._channel import ClientHandshake, Frames, Half
from turnstone._noise import CipherState, KeyPair, Responder


def pair(every: int = _channel.REKEY_EVERY) -> tuple[Frames, Frames]:
    """Return both ends of a channel."""
    one, two = bytes([1]) * 32, bytes([2]) * 32
    a = Frames(Half(CipherState(one), every), Half(CipherState(two), every))
    return a, Frames(Half(CipherState(two), every), Half(CipherState(one), every))


def fault(f: Frames) -> str:
    assert f.failed is not None
    return f.failed.fault


def test_bytes_arrive_in_any_parts() -> None:
    a, b = pair()
    sent = [bytes([n]) * (n * 97 % 300 + 1) for n in range(50)]
    stream = b"".join(a.seal(_channel.KIND_DATA, s) for s in sent) + a.seal(_channel.KIND_END)
    got = b"".join(x for i in range(0, len(stream), 7) for x in b.feed(stream[i : i + 7]))
    assert got == b"".join(sent) and b.ended and b.failed is None


def test_rekey() -> None:
    a, b = pair(every=4)
    for n in range(21):
        assert b.feed(a.seal(_channel.KIND_DATA, b"%d" % n)) == [b"%d" % n]


@pytest.mark.parametrize("every", [_channel.REKEY_EVERY, 3])
def test_faults(every: int) -> None:
    frames = lambda a: [a.seal(_channel.KIND_DATA, b"%d" % n) for n in range(4)]  # noqa: E731

    a, b = pair(every)
    f = bytearray(frames(a)[0])
    f[-1] ^= 1
    assert b.feed(bytes(f)) == [] and fault(b) == "altered"
    assert isinstance(b.failed, IntegrityError) and not b.failed.retryable

    a, b = pair(every)
    f0 = a.seal(_channel.KIND_DATA, b"x")
    assert b.feed(f0 + f0) == [b"x"] and fault(b) == "repeated"

    a, b = pair(every)
    all_ = frames(a)
    assert b.feed(all_[1]) == [] and fault(b) == "reordered"

    a, b = pair(every)
    assert a.feed(a.seal(_channel.KIND_DATA, b"x")) == [] and fault(a) == "reflected"


def test_other_side_reports_a_fault() -> None:
    a, b = pair()
    f = bytearray(a.seal(_channel.KIND_DATA, b"x"))
    f[20] ^= 1
    b.feed(bytes(f))
    told = b.report()
    assert told and a.feed(told) == [] and fault(a) == "altered"
    assert "the other side received something else" in str(a.failed)


def test_a_short_frame_and_unknown_kinds() -> None:
    a, b = pair()
    b.feed(b"\x00\x05" + bytes(30))
    assert fault(b) == "altered"
    for kind, data in ((9, b""), (_channel.KIND_CONFIRM, b""), (_channel.KIND_DATA, b""),
                       (_channel.KIND_FAULT, b"nonsense"), (_channel.KIND_END, b"x")):  # fmt: skip
        a, b = pair()
        b.feed(a.seal(kind, data))
        assert b.failed is not None, kind


def test_random_bytes_never_crash() -> None:
    rng = random.Random(7)
    for _ in range(300):
        a, b = pair()
        stream = bytearray(a.seal(_channel.KIND_DATA, b"hello") + a.seal(_channel.KIND_END))
        for _ in range(rng.randrange(1, 4)):
            stream[rng.randrange(len(stream))] = rng.randrange(256)
        b.feed(bytes(stream) + rng.randbytes(rng.randrange(80)))


def shake() -> tuple[ClientHandshake, bytes, KeyPair, bytes]:
    server, statement = KeyPair.generate(), bytes(range(32))
    c = ClientHandshake(KeyPair.generate(), server.public, statement)
    return c, c.hello(), server, statement


def test_another_end_behind_the_statement() -> None:
    c, hello, _, statement = shake()
    other = KeyPair.generate()
    r = Responder(other, _channel.PROLOGUE + statement)
    with pytest.raises(Exception):  # noqa: B017
        r.read(hello[36:])
    # an end that cannot read the first message makes up an answer
    with pytest.raises(IntegrityError) as e:
        c.finish(KeyPair.generate().public + bytes(16))
    assert e.value.fault == "key_swapped"


def test_answers_of_a_handshake() -> None:
    c, hello, server, statement = shake()
    names = {1: "not_found", 2: "invalid", 3: "invalid", 4: "integrity"}
    for first, kind in names.items():
        refused = c.refusal(first)
        assert refused is not None and refused.kind == kind and refused.hint
    reflected, altered = c.refusal(hello[0]), c.refusal(77)
    assert reflected is not None and reflected.fault == "reflected"
    assert altered is not None and altered.fault == "altered"
    with pytest.raises(TurnstoneError) as e:
        c.finish(hello[36 : 36 + 48])
    assert e.value.fault == "reflected"
    with pytest.raises(TurnstoneError) as e:
        c.finish(bytes(48))
    assert e.value.fault == "weak_key"


def test_a_cut_stream_may_be_tried_again() -> None:
    e = _channel.truncated()
    assert isinstance(e, DeadError) and e.fault == "truncated" and e.retryable
