"""What the synchronous client is built on: threads. _rt_async has the same names for asyncio."""

from __future__ import annotations

import atexit
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, cast

import websockets
from websockets.sync.client import ClientConnection, connect

from ._deadline import NEVER, Deadline

T = TypeVar("T")
Lock = threading.Lock
MAX_WEBSOCKET = 1 << 17


class Cond:
    """A condition: its state is read and changed inside of a with block."""

    def __init__(self) -> None:
        self._c = threading.Condition()

    def __enter__(self) -> None:
        self._c.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._c.release()

    def wait(self, deadline: Deadline, op: str) -> None:
        if not self._c.wait(deadline.left()) and deadline.passed:
            raise deadline.error(op)

    def notify_all(self) -> None:
        self._c.notify_all()


class Task:
    """A function that runs beside its caller."""

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    def cancel(self) -> None:
        """Do nothing: the function ends with what it waits for."""

    def join(self) -> None:
        self._thread.join()


def spawn(f: Callable[..., None], *args: Any) -> Task:
    def run() -> None:
        with contextlib.suppress(Exception):
            f(*args)

    thread = threading.Thread(target=run, daemon=True, name="turnstone")
    thread.start()
    return Task(thread)


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def blocking(f: Callable[..., T], *args: Any) -> T:
    """Run a function that blocks."""
    return f(*args)


def at_exit(f: Callable[[], object]) -> Callable[[], object]:
    return atexit.register(f)


def not_at_exit(f: Callable[[], object]) -> None:
    atexit.unregister(f)


class WebSocket:
    """A WebSocket that carries a byte stream."""

    def __init__(self, connection: ClientConnection) -> None:
        self._c = connection

    @classmethod
    def open(
        cls, sock: socket.socket, uri: str, headers: dict[str, str], tls: ssl.SSLContext | None,
        host: str, timeout: float,
    ) -> WebSocket:  # fmt: skip
        options: dict[str, Any] = {"ssl": tls, "server_hostname": host} if tls else {}
        dial = cast("Callable[..., ClientConnection]", connect)
        connection = dial(
            uri, sock=sock, additional_headers=headers, compression=None, proxy=None,
            max_size=MAX_WEBSOCKET, open_timeout=timeout, close_timeout=1, ping_interval=30,
            ping_timeout=90, user_agent_header=None, **options)  # fmt: skip
        return cls(connection.__enter__())  # close ends it

    def send(self, data: bytes) -> None:
        """Send a message. A lost connection is an OSError."""
        try:
            self._c.send(data)
        except websockets.ConnectionClosed as e:
            raise ConnectionError(str(e)) from None

    def recv(self, deadline: Deadline = NEVER) -> bytes:
        """Return a message; empty: the connection has ended."""
        while True:
            try:
                data = self._c.recv(deadline.left(), decode=False)
            except websockets.ConnectionClosed:
                return b""
            except TimeoutError:
                raise deadline.error("websocket.read") from None
            if data:
                return data

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._c.close()

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._c.socket.shutdown(socket.SHUT_RDWR)
