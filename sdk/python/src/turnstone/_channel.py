"""The encrypted channel without I/O: docs/decisions/0019-channel.md.

A handshake and frames are bytes in and bytes out; the modules above move the bytes.
"""

from __future__ import annotations

from . import _noise
from ._noise import CipherState, KeyPair, Undecryptable, WeakKey
from .errors import DeadError, IntegrityError, InvalidError, NotFoundError, TurnstoneError, fault_error

MAGIC = b"TSC1"
PROLOGUE = b"turnstone channel 1\0"
SECOND_SIZE = 48
HEAD_SIZE = 10
MAX_NOISE = 65535
MIN_NOISE = 1 + _noise.TAG_SIZE
MAX_DATA = MAX_NOISE - MIN_NOISE
REKEY_EVERY = 1 << 16

KIND_DATA, KIND_END, KIND_CONFIRM, KIND_FAULT = range(4)
_REPORTABLE = ("altered", "repeated", "reordered", "reflected")
_OP = "channel.handshake"
_SUBJECT = "the channel"


class Half:
    """The cipher of one direction."""

    def __init__(self, state: CipherState, every: int = REKEY_EVERY) -> None:
        self.state = state
        self.every = every

    @property
    def next(self) -> int:
        return self.state.n

    def seal(self, plain: bytes) -> tuple[int, bytes]:
        number = self.state.n
        sealed = self.state.encrypt(plain)
        self._advance()
        return number, sealed

    def open(self, sealed: bytes) -> bytes:
        plain = self.state.decrypt(sealed)
        self._advance()
        return plain

    def _advance(self) -> None:
        if self.state.n % self.every == 0:
            self.state.rekey()

    def made(self, number: int, sealed: bytes) -> bool:
        """Report whether a frame is authentic under the current key or the one after it."""
        period = self.state.n // self.every
        if number // self.every not in (period, period + 1):
            return False
        trial = CipherState(self.state.key, number)
        if number // self.every == period + 1:
            trial.rekey()
        try:
            trial.decrypt(sealed)
        except Undecryptable:
            return False
        return True


class ClientHandshake:
    """The client's side of a handshake that is bound to a statement."""

    def __init__(
        self, key: KeyPair, server: bytes, statement: bytes, ephemeral: KeyPair | None = None
    ) -> None:
        self._noise = _noise.Initiator(key, server, PROLOGUE + statement, ephemeral)
        self._head = MAGIC + statement
        self._hello = b""
        self._server = server

    def hello(self) -> bytes:
        try:
            self._hello = self._head + self._noise.write()
        except WeakKey:
            raise fault_error(_OP, "weak_key", _SUBJECT, "the server's key is a point of low order")
        return self._hello

    def refusal(self, first: int) -> TurnstoneError | None:
        """Return the error of the answer's first byte; None: 48 bytes follow."""
        again = "request a new attestation"
        said = "refused, as the server or a relay says: "
        if first == 0:
            return None
        if first == 1:
            return NotFoundError(
                _OP, _SUBJECT, said + "the statement is not known there: it is another sandbox or "
                "node, or one that was paused or started since", hint=again)  # fmt: skip
        if first == 2:
            return InvalidError(_OP, _SUBJECT, said + "the statement has expired", hint=again)
        if first == 3:
            return InvalidError(
                _OP, _SUBJECT, said + "the statement does not name this client's key",
                hint="request an attestation for this key, with a grant of the owner")  # fmt: skip
        if first == 4:
            return IntegrityError(
                _OP, _SUBJECT, said + "the first message is not for the server's key and statement",
                hint=again)  # fmt: skip
        if first == MAGIC[0]:
            return fault_error(_OP, "reflected", _SUBJECT, "the first message of this side came back")
        return fault_error(_OP, "altered", _SUBJECT, f"the answer begins with byte {first:#x}")

    def finish(self, second: bytes) -> Frames:
        """Read message 2. The first frame to send is confirm."""
        if second in self._hello:
            raise fault_error(_OP, "reflected", _SUBJECT, "the first message of this side came back")
        try:
            payload, send, recv = self._noise.read(second)
        except WeakKey:
            raise fault_error(
                _OP, "weak_key", _SUBJECT, "the server's answer has a point of low order")  # fmt: skip
        except Undecryptable:
            raise fault_error(
                _OP, "key_swapped", _SUBJECT, "the answer is not of the attested key "
                f"{self._server.hex()}, or was changed on its way")  # fmt: skip
        if payload:
            raise fault_error(_OP, "altered", _SUBJECT, "the answer has a payload")
        return Frames(Half(send), Half(recv))


class Frames:
    """Frames of a channel after its handshake. A fault stays."""

    def __init__(self, send: Half, recv: Half) -> None:
        self._send = send
        self._recv = recv
        self._buffer = bytearray()
        self.ended = False  # the other side's authenticated end has arrived
        self.failed: TurnstoneError | None = None

    def seal(self, kind: int, data: bytes = b"") -> bytes:
        number, sealed = self._send.seal(bytes([kind]) + data)
        return len(sealed).to_bytes(2, "big") + number.to_bytes(8, "big") + sealed

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of whole frames. After the end, or with a fault, it raises.

        A fault raises only when no data of earlier frames is left to return: it is in failed.
        """
        self._buffer += data
        out: list[bytes] = []
        while self.failed is None and len(self._buffer) >= HEAD_SIZE:
            size = int.from_bytes(self._buffer[:2], "big")
            if size < MIN_NOISE:
                self.failed = self._fault("altered", f"a frame of {size} bytes is too short")
                break
            if len(self._buffer) < HEAD_SIZE + size:
                break
            number = int.from_bytes(self._buffer[2:HEAD_SIZE], "big")
            sealed = bytes(self._buffer[HEAD_SIZE : HEAD_SIZE + size])
            del self._buffer[: HEAD_SIZE + size]
            self._one(number, sealed, out)
        return out

    def _one(self, number: int, sealed: bytes, out: list[bytes]) -> None:
        due = self._recv.next
        if number != due:
            self.failed = self._name(number, due, sealed)
            return
        try:
            plain = self._recv.open(sealed)
        except Undecryptable:
            self.failed = self._name(number, due, sealed)
            return
        kind, body = plain[0], plain[1:]
        if self.ended:
            self.failed = InvalidError("channel.read", _SUBJECT, "a frame comes after the end")
        elif kind == KIND_DATA and body:
            out.append(body)
        elif kind == KIND_END and not body:
            self.ended = True
        elif kind == KIND_FAULT and body.decode("ascii", "replace") in _REPORTABLE:
            self.failed = self._fault(
                body.decode(), "the other side received something else than this side sent")  # fmt: skip
        else:
            self.failed = InvalidError(
                "channel.read", _SUBJECT,
                f"the other side sent a frame that has no meaning here (kind {kind})")  # fmt: skip

    def _name(self, number: int, due: int, sealed: bytes) -> TurnstoneError:
        """Say what was done to a frame that is not the one that is due."""
        if number < due and self._recv.made(number, sealed):
            return self._fault("repeated", f"frame {number} came again where frame {due} was due")
        if number > due and self._recv.made(number, sealed):
            return self._fault("reordered", f"frame {number} came where frame {due} was due")
        if self._send.made(number, sealed):
            return self._fault("reflected", f"frame {number} of this side came back")
        return self._fault("altered", f"frame {due} is not what the other side sent")

    @staticmethod
    def _fault(fault: str, cause: str) -> TurnstoneError:
        return fault_error("channel.read", fault, _SUBJECT, cause)

    def report(self) -> bytes:
        """Return the frame that tells the other side of this side's fault, or nothing."""
        if self.failed is None or self.failed.fault not in _REPORTABLE:
            return b""
        return self.seal(KIND_FAULT, self.failed.fault.encode())


def truncated(op: str = "channel.read") -> TurnstoneError:
    """The error of a stream that ended without the authenticated end."""
    return fault_error(op, "truncated", _SUBJECT, "the stream ended without the end of the other side")


def gone(cause: str) -> TurnstoneError:
    """The error of a stream that ended during the handshake."""
    return DeadError(
        _OP, _SUBJECT, f"the stream ended during the handshake: {cause}", hint="connect again")  # fmt: skip
