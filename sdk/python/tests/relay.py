"""A relay in front of a real server that does what a hostile gateway could do."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

Answer = Callable[[str, dict[str, Any]], dict[str, Any]]
Frames = Callable[[int, bytes], list[bytes]]


class Relay:
    """Relays control calls and channels to a server.

    answer changes the answer of a control call, by the method's name. down and up change the
    messages of a channel: they get the number of the message in its direction and the message, and
    return what is passed on; None: the connection ends.
    """

    def __init__(self, server: str) -> None:
        self._server = server.removeprefix("http://")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.answer: Answer = lambda method, a: a
        self.down: Frames = lambda n, m: [m]
        self.up: Frames = lambda n, m: [m]
        self.to_client: Callable[[bytes], None] = lambda m: None
        self.channels = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                c, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(c,), daemon=True).start()

    def _serve(self, c: socket.socket) -> None:
        with c, contextlib.suppress(OSError, http.client.HTTPException):
            while True:
                head = b""
                while b"\r\n\r\n" not in head:
                    part = c.recv(65536)
                    if not part:
                        return
                    head += part
                head, _, body = head.partition(b"\r\n\r\n")
                lines = head.decode().split("\r\n")
                method, path, _ = lines[0].split(" ")
                headers = {k.lower(): v for k, v in (x.split(": ", 1) for x in lines[1:])}
                if headers.get("upgrade", "").lower() == "websocket":
                    self._channel(c, head + b"\r\n\r\n" + body)
                    return
                while len(body) < int(headers.get("content-length", "0")):
                    body += c.recv(65536)
                self._call(c, method, path, headers, body)

    def _call(self, c: socket.socket, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        up = http.client.HTTPConnection(self._server, timeout=300)
        kept = {k: v for k, v in headers.items() if k in ("authorization", "content-type", "connect-protocol-version")}
        up.request(method, path, body, kept)
        a = up.getresponse()
        text = a.read()
        up.close()
        if a.status == 200 and a.headers.get("Content-Type") == "application/json":
            text = json.dumps(self.answer(path.rpartition("/")[2], json.loads(text))).encode()
        kind = a.headers.get("Content-Type", "text/plain")
        head = f"HTTP/1.1 {a.status} {a.reason}\r\nContent-Type: {kind}\r\nContent-Length: {len(text)}\r\n\r\n"
        c.sendall(head.encode() + text)

    def _channel(self, c: socket.socket, first: bytes) -> None:
        self.channels += 1
        host, port = self._server.rsplit(":", 1)
        s = socket.create_connection((host, int(port)))
        s.sendall(first)
        answer = b""
        while b"\r\n\r\n" not in answer:
            part = s.recv(65536)
            if not part:
                return
            answer += part
        head, _, rest = answer.partition(b"\r\n\r\n")
        c.sendall(head + b"\r\n\r\n")
        lock = threading.Lock()

        def inject(message: bytes) -> None:
            with lock:
                c.sendall(_frame(2, message, masked=False))

        self.to_client = inject
        up = threading.Thread(target=self._copy, args=(c, s, b"", self.up, True, threading.Lock()), daemon=True)
        up.start()
        self._copy(s, c, rest, self.down, False, lock)
        for x in (s, c):
            with contextlib.suppress(OSError):
                x.shutdown(socket.SHUT_RDWR)
        up.join()
        s.close()

    @staticmethod
    def _copy(
        source: socket.socket, to: socket.socket, buffer: bytes, change: Frames, masked: bool, lock: Any
    ) -> None:
        n = 0
        with contextlib.suppress(OSError, _Cut):
            while True:
                while (frame := _take(buffer)) is not None:
                    opcode, payload, buffer = frame
                    out = [payload]
                    if opcode == 2:
                        out = change(n, payload)
                        n += 1
                    for m in out:
                        with lock:
                            to.sendall(_frame(opcode, m, masked=masked))
                part = source.recv(65536)
                if not part:
                    break
                buffer += part
        with contextlib.suppress(OSError):
            to.shutdown(socket.SHUT_RDWR)


class _Cut(Exception):
    """The relay ends the connection."""


def cut(n: int, message: bytes) -> list[bytes]:
    raise _Cut


def _take(b: bytes) -> tuple[int, bytes, bytes] | None:
    """Return the first frame of a buffer, and the rest."""
    if len(b) < 2:
        return None
    n, at = b[1] & 127, 2
    if n >= 126:
        size = 2 if n == 126 else 8
        if len(b) < 2 + size:
            return None
        n, at = int.from_bytes(b[2 : 2 + size], "big"), 2 + size
    mask = b""
    if b[1] & 128:
        mask, at = b[at : at + 4], at + 4
    if len(b) < at + n:
        return None
    payload = b[at : at + n]
    if mask:
        payload = bytes(x ^ mask[i & 3] for i, x in enumerate(payload))
    return b[0] & 15, payload, b[at + n :]


def _frame(opcode: int, payload: bytes, *, masked: bool) -> bytes:
    n, bit = len(payload), 128 if masked else 0
    head = bytes([128 | opcode])
    if n < 126:
        head += bytes([bit | n])
    elif n < 65536:
        head += bytes([bit | 126]) + n.to_bytes(2, "big")
    else:
        head += bytes([bit | 127]) + n.to_bytes(8, "big")
    return head + (bytes(4) if masked else b"") + payload
