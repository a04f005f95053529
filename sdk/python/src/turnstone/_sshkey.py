"""Public keys of nodes and roots, as OpenSSH writes them: "TYPE BASE64"."""

from __future__ import annotations

import base64
import binascii
import hashlib

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

ED25519 = "ssh-ed25519"
_HARDWARE = ("sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com")
_MAX_KEY = 4096


def strict_base64(text: str) -> bytes:
    """Decode the only spelling of base64. The error is a ValueError."""
    try:
        raw = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as e:
        raise ValueError("is not base64") from e
    if base64.b64encode(raw).decode() != text:
        raise ValueError("is base64 in another spelling")
    return raw


class PublicKey:
    """A public key that signs statements."""

    __slots__ = ("_blob", "kind", "text")

    def __init__(self, text: str) -> None:
        """Parse exactly "TYPE BASE64". The error is a ValueError."""
        kind, sep, encoded = text.partition(" ")
        if len(text) > _MAX_KEY or not sep:
            raise ValueError("the key does not have the form TYPE BASE64")
        self._blob = strict_base64(encoded)
        named, rest = _string(self._blob)
        if named != kind.encode():
            raise ValueError("the key is of another type than its line says")
        if kind == ED25519:
            raw, rest = _string(rest)
            if len(raw) != 32 or rest:
                raise ValueError("the key cannot be parsed")
        elif kind not in _HARDWARE:
            raise ValueError(f"the key is of type {kind[:60]!r}")
        self.kind = kind
        self.text = text

    @property
    def fingerprint(self) -> str:
        """The fingerprint as OpenSSH prints it."""
        digest = hashlib.sha256(self._blob).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")

    def verifies(self, data: bytes, signature: bytes) -> bool:
        """Report whether the key has signed data. Keys of security tokens are not supported."""
        if self.kind != ED25519 or len(signature) != 64:
            return False
        try:
            Ed25519PublicKey.from_public_bytes(self._blob[-32:]).verify(signature, data)
        except InvalidSignature:
            return False
        return True

    @classmethod
    def of_ed25519(cls, raw: bytes) -> PublicKey:
        blob = _pack(ED25519.encode()) + _pack(raw)
        return cls(f"{ED25519} {base64.b64encode(blob).decode()}")


def fingerprint(text: str) -> str:
    """Return the fingerprint of a key, for messages."""
    try:
        return PublicKey(text).fingerprint
    except ValueError:
        return "an unknown key"


def _string(blob: bytes) -> tuple[bytes, bytes]:
    if len(blob) < 4:
        raise ValueError("the key cannot be parsed")
    n = int.from_bytes(blob[:4], "big")
    if n > len(blob) - 4:
        raise ValueError("the key cannot be parsed")
    return blob[4 : 4 + n], blob[4 + n :]


def _pack(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value
