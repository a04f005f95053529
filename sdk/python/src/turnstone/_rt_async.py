"""What the asynchronous client is built on: asyncio. _rt_sync has the same names for threads."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, TypeVar

import websockets
from websockets.asyncio.client import ClientConnection, connect

from ._deadline import NEVER, Deadline

T = TypeVar("T")
Lock = asyncio.Lock
MAX_WEBSOCKET = 1 << 17


class Cond:
    """A condition: its state is read and changed inside of a with block."""

    def __init__(self) -> None:
        self._c = asyncio.Condition()

    async def __aenter__(self) -> None:
        await self._c.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._c.release()

    async def wait(self, deadline: Deadline, op: str) -> None:
        left = deadline.left()
        if left is None:
            await self._c.wait()
            return
        try:
            await asyncio.wait_for(self._c.wait(), left)
        except (asyncio.TimeoutError, TimeoutError):
            raise deadline.error(op) from None

    def notify_all(self) -> None:
        self._c.notify_all()


class Task:
    """A function that runs beside its caller."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def cancel(self) -> None:
        self._task.cancel()

    async def join(self) -> None:
        await asyncio.wait([self._task])


def spawn(f: Callable[..., Awaitable[None]], *args: Any) -> Task:
    async def run() -> None:
        await f(*args)

    task = asyncio.get_running_loop().create_task(run())
    task.add_done_callback(lambda t: None if t.cancelled() else t.exception())
    return Task(task)


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def blocking(f: Callable[..., T], *args: Any) -> T:
    """Run a function that blocks."""
    return await asyncio.to_thread(f, *args)


def at_exit(f: Callable[[], object]) -> Callable[[], object]:
    """There is no loop any more when the program ends: its author closes the client."""
    return f


def not_at_exit(f: Callable[[], object]) -> None:
    pass


class WebSocket:
    """A WebSocket that carries a byte stream."""

    def __init__(self, connection: ClientConnection) -> None:
        self._c = connection

    @classmethod
    async def open(
        cls, sock: socket.socket, uri: str, headers: dict[str, str], tls: ssl.SSLContext | None,
        host: str, timeout: float,
    ) -> WebSocket:  # fmt: skip
        sock.setblocking(False)
        options: dict[str, Any] = {"ssl": tls, "server_hostname": host} if tls else {}
        connection = await connect(
            uri, sock=sock, additional_headers=headers, compression=None, proxy=None,
            max_size=MAX_WEBSOCKET, open_timeout=timeout, close_timeout=1, ping_interval=30,
            ping_timeout=90, user_agent_header=None, **options)  # fmt: skip
        return cls(connection)

    async def send(self, data: bytes) -> None:
        """Send a message. A lost connection is an OSError."""
        try:
            await self._c.send(data)
        except websockets.ConnectionClosed as e:
            raise ConnectionError(str(e)) from None

    async def recv(self, deadline: Deadline = NEVER) -> bytes:
        """Return a message; empty: the connection has ended."""
        while True:
            left = deadline.left()
            try:
                if left is None:
                    data = await self._c.recv(decode=False)
                else:
                    data = await asyncio.wait_for(self._c.recv(decode=False), left)
            except websockets.ConnectionClosed:
                return b""
            except (asyncio.TimeoutError, TimeoutError):
                raise deadline.error("websocket.read") from None
            if data:
                return data

    async def close(self) -> None:
        try:
            await asyncio.wait_for(self._c.close(), 2)
        except (asyncio.TimeoutError, TimeoutError, OSError):
            self._c.transport.abort()

    def abort(self) -> None:
        self._c.transport.abort()
