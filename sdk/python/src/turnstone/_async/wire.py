"""The wire: commands, events and streams over a channel. docs/wire.md describes it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Any

from .._json import is_dict
from .. import _frames
from .._deadline import NEVER, Deadline
from .._frames import Chunk, Parser, protocol_error
from .._rt_async import Cond, Lock, spawn
from ..errors import CanceledError, DeadError, ExhaustedError, TurnstoneError, clean, error_of
from .channel import AsyncChannel

_MAX_CALLS = 256
_MAX_EVENTS = 4096
_CODES = {-32601: "unavailable", -32602: "invalid", -32001: "dead"}


class AsyncReceiver:
    """The reading end of a stream. wire's condition guards its fields."""

    def __init__(self, wire: AsyncWire, stream: int) -> None:
        self._wire = wire
        self.stream = stream
        self.queue: deque[bytes] = deque()
        self.got = 0
        self.taken = 0
        self.credit = _frames.WINDOW
        self.ended = False  # the stream is complete
        self.error: TurnstoneError | None = None

    @property
    def over(self) -> bool:
        return not self.queue and (self.ended or self.error is not None)

    def frame(self, c: Chunk) -> bool:
        """Take a frame, and report whether it is the last one."""
        if c.kind == _frames.RESET:
            why = clean(c.data.decode("utf-8", "replace"), 1000)
            self.error = self.error or CanceledError("wire.stream", why, "the other side aborted the stream")
            return True
        if c.offset != self.got:
            raise protocol_error(f"stream {self.stream} continues at byte {c.offset}, not {self.got}")
        if c.kind == _frames.END:
            self.ended = True
            return True
        self.got += len(c.data)
        if self.got > self.credit:
            raise protocol_error(f"stream {self.stream} exceeds its credit")
        if c.data and self.error is None:
            self.queue.append(c.data)
        return False

    def take(self) -> tuple[bytes, int]:
        """Return data, and the credit to grant for it, or 0. There is data."""
        data = self.queue.popleft()
        self.taken += len(data)
        grant = 0
        if not self.ended and self.error is None and self.credit - self.taken <= _frames.WINDOW // 2:
            grant = self.credit = self.taken + _frames.WINDOW
        return data, grant

    async def read(self, deadline: Deadline = NEVER) -> bytes:
        """Return data; empty at the stream's end."""
        async with self._wire.cond:
            while not self.queue and not self.over:
                await self._wire.cond.wait(deadline, "wire.stream")
            if not self.queue:
                if self.error is not None:
                    raise self.error
                return b""
            data, grant = self.take()
        if grant:
            await self._wire.send_chunk(Chunk(_frames.CREDIT, self.stream, grant))
        return data

    async def read_all(self, most: int, deadline: Deadline = NEVER) -> bytes:
        parts: list[bytes] = []
        size = 0
        while data := await self.read(deadline):
            parts.append(data)
            size += len(data)
            if size > most:
                await self.close()
                raise ExhaustedError("wire.stream", "the answer", f"has more than {most} bytes")
        return b"".join(parts)

    async def close(self) -> None:
        """Abort the stream if it has not ended."""
        async with self._wire.cond:
            live = not self.ended and self.error is None
            self.queue.clear()
            if live:
                self.error = CanceledError("wire.stream", "the stream", "was closed")
            self._wire.cond.notify_all()
        if live and self._wire.alive:
            await self._wire.send_chunk(Chunk(_frames.RESET, self.stream, 0))


class AsyncSender:
    """The writing end of a stream, after its command was sent."""

    def __init__(self, wire: AsyncWire, stream: int) -> None:
        self._wire = wire
        self.stream = stream
        self.sent = 0
        self.limit = _frames.WINDOW
        self.error: TurnstoneError | None = None
        self.ended = False

    def frame(self, c: Chunk) -> None:
        if c.kind == _frames.RESET:
            why = clean(c.data.decode("utf-8", "replace"), 1000)
            self.error = self.error or CanceledError("wire.stream", why, "the other side aborted the stream")
        elif c.kind == _frames.CREDIT:
            if c.offset > self.sent + _frames.WINDOW:
                raise protocol_error(f"stream {self.stream} is granted {c.offset} bytes")
            self.limit = max(self.limit, c.offset)

    async def write(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            async with self._wire.cond:
                while self.error is None and self.sent >= self.limit:
                    await self._wire.cond.wait(NEVER, "wire.stream")
                if self.error is not None:
                    raise self.error
                n = min(len(data) - at, self.limit - self.sent, _frames.SEND_CHUNK)
                offset = self.sent
                self.sent += n
            await self._wire.send_chunk(Chunk(_frames.DATA, self.stream, offset, data[at : at + n]))
            at += n

    async def close(self) -> None:
        await self._end(_frames.END)

    async def abort(self) -> None:
        await self._end(_frames.RESET)

    async def _end(self, kind: int) -> None:
        async with self._wire.cond:
            if self.ended or not self._wire.alive:
                return
            self.ended = True
            offset = self.sent if kind == _frames.END else 0
            self.error = self.error or CanceledError("wire.stream", "the stream", "was closed")
            self._wire.drop_sender(self.stream)
            self._wire.cond.notify_all()
        await self._wire.send_chunk(Chunk(kind, self.stream, offset))


class AsyncWire:
    """A connection of the wire. Its methods may be used by several tasks."""

    def __init__(self, channel: AsyncChannel, subject: str) -> None:
        self._channel = channel
        self._subject = subject
        self.cond = Cond()
        self._lock = Lock()
        self._error: TurnstoneError | None = None
        self._ids = 0
        self._streams = 0
        self._calls: dict[int, dict[str, Any] | None] = {}
        self._dropped: set[int] = set()  # calls whose answers nobody waits for
        self._receivers: dict[int, AsyncReceiver] = {}
        self._senders: dict[int, AsyncSender] = {}
        self._refused: set[int] = set()
        self._events: dict[str, deque[tuple[str, dict[str, Any]]]] = {}
        self._past: deque[str] = deque(maxlen=1024)
        self.collect_new = False  # a watch begins, whose name its answer says
        self._loop = spawn(self._read_loop)

    @property
    def alive(self) -> bool:
        return self._error is None

    def dead(self, op: str) -> TurnstoneError:
        """The error of an operation on a connection that has ended."""
        e = self._error
        if e is None or e.kind == "dead":
            cause = e.cause if e is not None else "is closed"
            fault = e.fault if e is not None else ""
            return DeadError(op, self._subject, cause, hint="connect again", fault=fault)
        return e

    # commands

    async def begin(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        """Send a command. answer, or drop, follows."""
        async with self.cond:
            if self._error is not None:
                raise self.dead(method)
            if len(self._calls) + len(self._dropped) >= _MAX_CALLS:
                raise ExhaustedError(method, self._subject, f"{_MAX_CALLS} commands are not answered yet")
            self._ids += 1
            ident = self._ids
            self._calls[ident] = None
        message = {"id": ident, "method": method, "params": params or {}}
        try:
            await self._send(_frames.TEXT, json.dumps(message, separators=(",", ":")).encode())
        except BaseException:
            await self.drop(ident)
            raise
        return ident

    async def drop(self, ident: int) -> None:
        """Do not wait for an answer."""
        async with self.cond:
            if ident in self._calls and self._calls.pop(ident) is None:
                self._dropped.add(ident)

    async def answer(self, ident: int, method: str, deadline: Deadline = NEVER) -> dict[str, Any]:
        try:
            async with self.cond:
                while (m := self._calls[ident]) is None:
                    if self._error is not None:
                        raise self.dead(method)
                    await self.cond.wait(deadline, method)
        finally:
            await self.drop(ident)
        return _result(m, method)

    async def call(
        self, method: str, params: Mapping[str, Any] | None = None, deadline: Deadline = NEVER
    ) -> dict[str, Any]:
        return await self.answer(await self.begin(method, params), method, deadline)

    async def post(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a command whose answer nobody waits for."""
        await self.drop(await self.begin(method, params))

    # events

    def watch(self, key: str) -> deque[tuple[str, dict[str, Any]]]:
        """Collect the events about a process or a watch until unwatch."""
        return self._events.setdefault(key, deque())

    def unwatch(self, key: str) -> None:
        if self._events.pop(key, None) is not None:
            self._past.append(key)

    # streams

    def receiver(self) -> AsyncReceiver:
        """Return a new stream to read, for the next command."""
        self._streams += 1
        r = AsyncReceiver(self, self._streams)
        if self._error is not None:
            r.error = self.dead("wire.stream")
        self._receivers[r.stream] = r
        return r

    def sender(self) -> AsyncSender:
        """Return a new stream to write, for the next command."""
        self._streams += 1
        s = AsyncSender(self, self._streams)
        if self._error is not None:
            s.error = self.dead("wire.stream")
        self._senders[s.stream] = s
        return s

    def drop_sender(self, stream: int) -> None:
        self._senders.pop(stream, None)

    async def send_chunk(self, c: Chunk) -> None:
        await self._send(_frames.BINARY, c.encode())

    async def _send(self, opcode: int, payload: bytes) -> None:
        async with self._lock:
            await self._channel.write(_frames.encode(opcode, payload))

    # the reading side

    async def _read_loop(self) -> None:
        parser = Parser()
        why: TurnstoneError = DeadError("wire.read", self._subject, "the other side closed the connection")
        try:
            while data := await self._channel.read():
                for opcode, payload in parser.feed(data):
                    await self._take(opcode, payload)
        except TurnstoneError as e:
            why = e
        except Exception as e:
            why = protocol_error(f"a message cannot be read: {type(e).__name__}")
        finally:
            await self._end(why)

    async def _end(self, why: TurnstoneError) -> None:
        async with self.cond:
            if self._error is None:
                self._error = why
            for r in self._receivers.values():
                if not r.ended:
                    r.error = r.error or self.dead("wire.stream")
            for s in self._senders.values():
                s.error = s.error or self.dead("wire.stream")
            self.cond.notify_all()
        self._channel.abort()

    async def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == _frames.PING:
            await self._send(_frames.PONG, payload)
        elif opcode == _frames.CLOSE:
            raise _frames.closed(payload)
        elif opcode == _frames.BINARY:
            await self._chunk(Chunk.parse(payload))
        else:
            async with self.cond:
                self._message(_frames.parse_message(payload))
                self.cond.notify_all()

    def _message(self, m: dict[str, Any]) -> None:
        if "id" not in m:
            self._event(m.get("method"), m.get("params"))
            return
        ident = m["id"]
        if type(ident) is not int:
            raise protocol_error("an answer has no number")
        if ident in self._dropped:
            self._dropped.discard(ident)
        elif ident in self._calls and self._calls[ident] is None:
            self._calls[ident] = m
        else:
            raise protocol_error(f"an answer to command {ident}, which does not wait for one")

    def _event(self, method: Any, params: Any) -> None:
        if not isinstance(method, str) or not is_dict(params):
            raise protocol_error("a message is neither an answer nor an event")
        key = params.get("processId", params.get("watchId", ""))
        queue = self._events.get(key) if isinstance(key, str) else None
        if queue is None and self.collect_new and "watchId" in params and isinstance(key, str):
            queue = self._events.setdefault(key, deque())
        if queue is not None:
            if len(queue) >= _MAX_EVENTS:
                raise protocol_error("more events arrive than anybody reads")
            queue.append((method, params))
        elif method in ("Process.exited", "Shell.finished") and key not in self._past:
            raise protocol_error(f"an event {method} of a process that this connection did not start")

    async def _chunk(self, c: Chunk) -> None:
        refuse = False
        async with self.cond:
            if c.stream in self._senders and c.kind in (_frames.CREDIT, _frames.RESET):
                self._senders[c.stream].frame(c)
            elif c.stream in self._receivers and c.kind != _frames.CREDIT:
                if self._receivers[c.stream].frame(c):
                    del self._receivers[c.stream]
            elif not 1 <= c.stream <= self._streams:
                raise protocol_error(f"stream {c.stream} is none that this side chose")
            elif c.kind == _frames.DATA and c.stream not in self._refused:
                refuse = len(self._refused) < _MAX_EVENTS
                self._refused.add(c.stream)
            self.cond.notify_all()
        if refuse:
            await self.send_chunk(Chunk(_frames.RESET, c.stream, 0))

    async def close(self) -> None:
        if self._error is None:
            self._error = DeadError("wire.close", self._subject, "is closed")
        try:
            await self._channel.close()
        finally:
            self._loop.cancel()


def _result(m: dict[str, Any], method: str) -> dict[str, Any]:
    error = m.get("error")
    if error is None:
        result = m.get("result")
        if not is_dict(result):
            raise protocol_error("an answer has neither a result nor an error")
        return result
    if not is_dict(error):
        raise protocol_error("an answer has neither a result nor an error")
    data = error.get("data")
    if not is_dict(data):
        data = {}
    code = error.get("code")
    kind = data.get("kind") or _CODES.get(code if isinstance(code, int) else 0, "internal")
    message = clean(str(error.get("message", "")), 4000)
    subject, cause = (clean(str(data.get(k, "")), 4000) for k in ("subject", "cause"))
    return _raise(
        error_of(
            str(kind), clean(str(data.get("op", method)), 200), subject, cause or ("" if subject else message),
            hint=clean(str(data.get("hint", "")), 1000)))  # fmt: skip


def _raise(e: TurnstoneError) -> dict[str, Any]:
    raise e
