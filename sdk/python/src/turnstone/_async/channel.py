"""An encrypted byte stream in a WebSocket."""

from __future__ import annotations

from .. import _channel
from .._channel import ClientHandshake, Frames
from .._deadline import Deadline
from .._noise import KeyPair
from .._rt_async import Lock, WebSocket
from ..errors import DeadError, TurnstoneError

_HANDSHAKE_TIME = 10.0


class AsyncChannel:
    """A channel after its handshake. One task may read while others write."""

    def __init__(self, ws: WebSocket, frames: Frames) -> None:
        self._ws = ws
        self._frames = frames
        self._lock = Lock()
        self._ready: list[bytes] = []
        self._closed = False
        self._broken: TurnstoneError | None = None

    @classmethod
    async def open(
        cls, ws: WebSocket, key: KeyPair, server: bytes, statement: bytes, deadline: Deadline
    ) -> AsyncChannel:
        """Perform the handshake. The WebSocket is closed if it fails."""
        try:
            return await cls._shake(ws, key, server, statement, deadline.within(_HANDSHAKE_TIME))
        except BaseException:
            ws.abort()
            raise

    @classmethod
    async def _shake(
        cls, ws: WebSocket, key: KeyPair, server: bytes, statement: bytes, deadline: Deadline
    ) -> AsyncChannel:
        shake = ClientHandshake(key, server, statement)
        try:
            await ws.send(shake.hello())
            answer = b""
            while not answer or (answer[0] == 0 and len(answer) < 1 + _channel.SECOND_SIZE):
                part = await ws.recv(deadline)
                if not part:
                    raise _channel.gone("it was closed")
                answer += part
                refused = shake.refusal(answer[0])
                if refused is not None:
                    raise refused
            frames = shake.finish(answer[1 : 1 + _channel.SECOND_SIZE])
            channel = cls(ws, frames)
            await ws.send(frames.seal(_channel.KIND_CONFIRM))
        except OSError as e:
            raise _channel.gone(str(e)) from None
        channel._ready = frames.feed(answer[1 + _channel.SECOND_SIZE :])
        return channel

    async def read(self) -> bytes:
        """Return data; empty after the authenticated end of the other side."""
        while True:
            if self._ready:
                return self._ready.pop(0)
            failed = self._frames.failed
            if failed is not None:
                await self._report()
                raise failed
            if self._frames.ended:
                return b""
            data = await self._ws.recv()
            if not data:
                if self._closed:
                    return b""
                self._frames.failed = _channel.truncated()
                continue
            self._ready = self._frames.feed(data)

    async def _report(self) -> None:
        """Tell the other side what was done to its frames."""
        async with self._lock:
            frame = self._frames.report()
            if frame and self._broken is None:
                self._broken = self._frames.failed
                try:
                    await self._ws.send(frame)
                except OSError:
                    pass

    async def write(self, data: bytes) -> None:
        """Write data in as many frames as it needs."""
        for at in range(0, len(data), _channel.MAX_DATA):
            await self._write(_channel.KIND_DATA, data[at : at + _channel.MAX_DATA])

    async def _write(self, kind: int, data: bytes) -> None:
        async with self._lock:
            if self._broken is not None:
                raise self._broken
            if self._frames.failed is not None:
                raise self._frames.failed
            try:
                await self._ws.send(self._frames.seal(kind, data))
            except OSError:
                self._broken = self._frames.failed or _channel.truncated("channel.write")
                raise self._broken from None
            except BaseException:  # a part of a frame may have been written
                self._broken = DeadError("channel.write", "the channel", "a write was interrupted")
                self._ws.abort()
                raise

    async def close(self) -> None:
        """Send the end, and close the stream. It may be called again."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._write(_channel.KIND_END, b"")
        except (TurnstoneError, OSError):
            pass
        await self._ws.close()

    def abort(self) -> None:
        self._closed = True
        self._ws.abort()
