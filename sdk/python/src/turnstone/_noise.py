"""Noise_IK and Noise_X with 25519, ChaChaPoly and SHA256 (Noise Protocol Framework, revision 34)."""

from __future__ import annotations

import hashlib
import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

KEY_SIZE = 32
TAG_SIZE = 16
_LAST = 2**64 - 1


class WeakKey(Exception):
    """X25519 gives zero: the other key is a point of low order."""


class Undecryptable(Exception):
    """A ciphertext is not authentic."""


class KeyPair:
    """An X25519 key with its private part, which no way of printing shows."""

    __slots__ = ("_private", "public")

    def __init__(self, private: bytes) -> None:
        if len(private) != KEY_SIZE:
            raise ValueError("the private key has another length than 32 bytes")
        self._private = X25519PrivateKey.from_private_bytes(private)
        self.public = self._private.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> KeyPair:
        return cls(X25519PrivateKey.generate().private_bytes_raw())

    def private_bytes(self) -> bytes:
        return self._private.private_bytes_raw()

    def dh(self, public: bytes) -> bytes:
        """Return the shared secret; a point of low order raises WeakKey."""
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise WeakKey from None

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public.hex()})"


def is_weak(public: bytes) -> bool:
    """Report a key of low order: with it, everybody knows the secret."""
    try:
        KeyPair(b"\x08" + bytes(30) + b"\x40").dh(public)
    except WeakKey:
        return True
    return False


class CipherState:
    """A key with its nonce, which counts messages across rekeys."""

    __slots__ = ("_aead", "key", "n")

    def __init__(self, key: bytes, n: int = 0) -> None:
        self.key = key
        self.n = n
        self._aead = ChaCha20Poly1305(key)

    def encrypt(self, plain: bytes, ad: bytes = b"") -> bytes:
        out = self._aead.encrypt(_nonce(self.n), plain, ad)
        self.n += 1
        return out

    def decrypt(self, sealed: bytes, ad: bytes = b"") -> bytes:
        try:
            plain = self._aead.decrypt(_nonce(self.n), sealed, ad)
        except InvalidTag:
            raise Undecryptable from None
        self.n += 1
        return plain

    def rekey(self) -> None:
        self.key = self._aead.encrypt(_nonce(_LAST), bytes(KEY_SIZE), b"")[:KEY_SIZE]
        self._aead = ChaCha20Poly1305(self.key)


def _nonce(n: int) -> bytes:
    return bytes(4) + n.to_bytes(8, "little")


def _hkdf(chaining: bytes, material: bytes) -> tuple[bytes, bytes]:
    temp = hmac.digest(chaining, material, "sha256")
    one = hmac.digest(temp, b"\x01", "sha256")
    return one, hmac.digest(temp, one + b"\x02", "sha256")


class _Symmetric:
    def __init__(self, name: bytes, prologue: bytes) -> None:
        self.h = name.ljust(32, b"\0") if len(name) <= 32 else hashlib.sha256(name).digest()
        self.ck = self.h
        self.cipher: CipherState | None = None
        self.mix_hash(prologue)

    def mix_hash(self, data: bytes) -> None:
        self.h = hashlib.sha256(self.h + data).digest()

    def mix_key(self, material: bytes) -> None:
        self.ck, key = _hkdf(self.ck, material)
        self.cipher = CipherState(key)

    def encrypt(self, plain: bytes) -> bytes:
        out = self.cipher.encrypt(plain, self.h) if self.cipher else plain
        self.mix_hash(out)
        return out

    def decrypt(self, sealed: bytes) -> bytes:
        plain = self.cipher.decrypt(sealed, self.h) if self.cipher else sealed
        self.mix_hash(sealed)
        return plain

    def split(self) -> tuple[CipherState, CipherState]:
        one, two = _hkdf(self.ck, b"")
        return CipherState(one), CipherState(two)


class _Handshake:
    """What IK and X have in common: the responder's static key is known."""

    NAME = b""

    def __init__(
        self, static: KeyPair, remote: bytes, prologue: bytes, ephemeral: KeyPair | None
    ) -> None:
        self._s = static
        self._e = ephemeral
        self._rs = remote
        self._sym = _Symmetric(self.NAME, prologue)

    def _first(self, payload: bytes) -> bytes:
        """Write e, es, s, ss."""
        self._sym.mix_hash(self._rs)
        self._e = self._e or KeyPair.generate()
        self._sym.mix_hash(self._e.public)
        self._sym.mix_key(self._e.dh(self._rs))
        static = self._sym.encrypt(self._s.public)
        self._sym.mix_key(self._s.dh(self._rs))
        return self._e.public + static + self._sym.encrypt(payload)

    def _read_first(self, message: bytes) -> tuple[bytes, bytes, bytes]:
        """Read e, es, s, ss: the other side's ephemeral and static keys, and the payload."""
        self._sym.mix_hash(self._s.public)
        if len(message) < 2 * KEY_SIZE + 2 * TAG_SIZE:
            raise Undecryptable
        re = message[:KEY_SIZE]
        self._sym.mix_hash(re)
        self._sym.mix_key(self._s.dh(re))
        rs = self._sym.decrypt(message[KEY_SIZE : 2 * KEY_SIZE + TAG_SIZE])
        self._sym.mix_key(self._s.dh(rs))
        return re, rs, self._sym.decrypt(message[2 * KEY_SIZE + TAG_SIZE :])


class Initiator(_Handshake):
    """The client of Noise_IK."""

    NAME = b"Noise_IK_25519_ChaChaPoly_SHA256"

    def __init__(
        self, static: KeyPair, remote: bytes, prologue: bytes, ephemeral: KeyPair | None = None
    ) -> None:
        super().__init__(static, remote, prologue, ephemeral)

    def write(self, payload: bytes = b"") -> bytes:
        return self._first(payload)

    def read(self, message: bytes) -> tuple[bytes, CipherState, CipherState]:
        """Return the payload, and the ciphers to send and to receive with."""
        if self._e is None or len(message) < KEY_SIZE + TAG_SIZE:
            raise Undecryptable
        re = message[:KEY_SIZE]
        self._sym.mix_hash(re)
        self._sym.mix_key(self._e.dh(re))
        self._sym.mix_key(self._s.dh(re))
        payload = self._sym.decrypt(message[KEY_SIZE:])
        return payload, *self._sym.split()


class Responder(_Handshake):
    """The server of Noise_IK, which tests need."""

    NAME = Initiator.NAME

    def __init__(self, static: KeyPair, prologue: bytes, ephemeral: KeyPair | None = None) -> None:
        super().__init__(static, b"", prologue, ephemeral)
        self._re = b""

    def read(self, message: bytes) -> tuple[bytes, bytes]:
        """Return the client's static key, and the payload."""
        self._re, self._rs, payload = self._read_first(message)
        return self._rs, payload

    def write(self, payload: bytes = b"") -> tuple[bytes, CipherState, CipherState]:
        """Return the message, and the ciphers to receive and to send with."""
        self._e = self._e or KeyPair.generate()
        self._sym.mix_hash(self._e.public)
        self._sym.mix_key(self._e.dh(self._re))
        self._sym.mix_key(self._e.dh(self._rs))
        message = self._e.public + self._sym.encrypt(payload)
        return message, *self._sym.split()


class OneWay(_Handshake):
    """The sender of Noise_X."""

    NAME = b"Noise_X_25519_ChaChaPoly_SHA256"

    def __init__(
        self, static: KeyPair, remote: bytes, prologue: bytes, ephemeral: KeyPair | None = None
    ) -> None:
        super().__init__(static, remote, prologue, ephemeral)

    def write(self, payload: bytes) -> bytes:
        return self._first(payload)


class OneWayReader(_Handshake):
    """The receiver of Noise_X, which tests need."""

    NAME = OneWay.NAME

    def __init__(self, static: KeyPair, prologue: bytes) -> None:
        super().__init__(static, b"", prologue, None)

    def read(self, message: bytes) -> tuple[bytes, bytes]:
        """Return the sender's static key, and the payload."""
        _, rs, payload = self._read_first(message)
        return rs, payload
