"""Commands of a sandbox, over connections that may be lost."""

from __future__ import annotations

import base64
import codecs
import secrets
from collections import deque
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from .._deadline import NEVER, Deadline
from .._language import language_of
from .._rt_async import sleep, spawn
from ..errors import (
    DeadError,
    IntegrityError,
    InvalidError,
    NotFoundError,
    TimeoutError,
    TurnstoneError,
    UnavailableError,
)
from ..results import Chunk, Command, ExecResult, Span, StreamName
from .wire import AsyncReceiver, AsyncSender, AsyncWire

if TYPE_CHECKING:
    from .sandbox import AsyncSandbox

LINGER = 600.0  # seconds in which a command and its client wait for each other
_KILL_TIME = 5.0
_FIRST_PAUSE = 0.2
_LAST_PAUSE = 5.0
_NAMES: tuple[StreamName, StreamName] = ("stdout", "stderr")
Input = bytes | str | IO[bytes]


def process_id() -> str:
    """Return a name that no other connection chooses."""
    return "p" + secrets.token_hex(8)


class AsyncProcess:
    """A command. Iterating yields its output; wait returns its end.

    As a context manager it kills a command that has not ended, unless it is in the background.
    """

    def __init__(
        self, sandbox: AsyncSandbox, argv: Sequence[str], *, background: bool, stdin: Input | None,
        deadline: Deadline, commands: tuple[Command, ...] = (), text: str = "",
    ) -> None:  # fmt: skip
        self._sandbox = sandbox
        self._argv = list(argv)
        self.id = process_id()
        self.background = background
        self._stdin = stdin
        self._deadline = deadline
        self._text = text
        self._commands = commands
        self._wire: AsyncWire | None = None
        self._outs: list[AsyncReceiver] = []
        self._events: deque[tuple[str, dict[str, Any]]] = deque()
        self._got = [0, 0]
        self._kept: tuple[list[bytes], list[bytes]] = ([], [])
        self._keep = True
        utf8 = codecs.getincrementaldecoder("utf-8")
        self._decoders = (utf8("replace"), utf8("replace"))
        self._started = False
        self._abandoned = False
        self._attached = False
        self._exit: dict[str, Any] | None = None
        self._result: ExecResult | None = None

    # starting

    async def run(self, params: dict[str, Any]) -> ExecResult:
        """Start the command and wait for its end."""
        try:
            await self.start(params)
            return await self.wait()
        except KeyboardInterrupt:  # also between the two
            await self._abandon()
            raise

    async def start(self, params: dict[str, Any]) -> None:
        """Start the command."""
        deadline = self._deadline
        wire = await self._sandbox.wire(deadline)
        params = {"processId": self.id, "argv": self._argv, **params}
        if self.background:
            await wire.call("Process.start", {**params, "detach": True}, deadline)
            self._started = True
            return
        try:
            await self._first(wire, {**params, "linger": int(LINGER * 1000)})
        except DeadError:
            if not self._started:
                raise
        except BaseException:
            await self._abandon()
            raise

    async def _first(self, wire: AsyncWire, params: dict[str, Any]) -> None:
        self._use(wire)
        params |= {"stdoutStream": self._outs[0].stream, "stderrStream": self._outs[1].stream}
        feed = wire.sender() if self._stdin is not None else None
        if feed is not None:
            params["stdinStream"] = feed.stream
        ident = await wire.begin("Process.start", params)
        self._started = True  # perhaps: a lost answer says nothing
        if feed is not None:
            spawn(self._feed, feed, 0)
        try:
            await wire.answer(ident, "Process.start", self._deadline)
        except TurnstoneError as e:
            self._started = isinstance(e, DeadError)
            wire.unwatch(self.id)
            for r in self._outs:
                await r.close()
            raise

    def _use(self, wire: AsyncWire) -> None:
        self._wire = wire
        self._events = wire.watch(self.id)
        self._outs = [wire.receiver(), wire.receiver()]

    async def _feed(self, to: AsyncSender, offset: int) -> None:
        """Send the standard input from an offset on."""
        source = self._stdin
        try:
            if isinstance(source, str):
                source = source.encode()
            if isinstance(source, (bytes, bytearray)):
                await to.write(bytes(source[offset:]))
            elif source is not None:
                while part := source.read(60 << 10):
                    await to.write(part)
            await to.close()
        except TurnstoneError:
            pass  # the process has ended, or its connection
        except BaseException:
            await to.abort()
            raise

    # following

    async def _next(self) -> Chunk | None:
        """Return the next part of the output; None: the command has ended."""
        since = Deadline(LINGER)
        pause = _FIRST_PAUSE
        while True:
            if self._exit is not None:
                return None
            try:
                if self._wire is None or not self._attached:
                    await self._attach()
                return await self._once()
            except TimeoutError:
                if self._deadline.passed:
                    raise
                failed: TurnstoneError = UnavailableError("sandbox.exec", self._sandbox.id, "does not answer")
            except (DeadError, UnavailableError) as e:
                failed = e
            if since.passed or self._deadline.passed:
                raise failed
            self._wire, self._attached = None, False
            reason = await self._sandbox.end_reason(failed)
            if reason is not None:
                raise reason
            await sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    async def _attach(self) -> None:
        """Attach to the command, where the output was left."""
        if self._wire is not None and not self.background:
            self._attached = True  # by its start
            return
        wire = await self._sandbox.wire(self._deadline)
        self._use(wire)
        params: dict[str, Any] = {
            "processId": self.id, "stdoutOffset": self._got[0], "stderrOffset": self._got[1],
            "stdoutStream": self._outs[0].stream, "stderrStream": self._outs[1].stream,
            "takeOver": not self.background,
        }  # fmt: skip
        feed = None
        if isinstance(self._stdin, (bytes, str)):
            feed = wire.sender()
            params["stdinStream"] = feed.stream
        try:
            a = await wire.call("Process.attach", params, self._deadline)
        except NotFoundError:
            raise IntegrityError(
                "sandbox.exec", " ".join(self._argv)[:80], "the sandbox does not know the command any more",
                hint="its outcome is unknown: look at what it has written") from None  # fmt: skip
        for n, key in enumerate(("stdoutOffset", "stderrOffset")):
            if a.get(key, 0) > self._got[n] and not self.background:
                raise IntegrityError(
                    "sandbox.exec", " ".join(self._argv)[:80], "a part of its output was lost with a connection")  # fmt: skip
            if a.get(key, 0) > self._got[n]:  # a part is lost
                self._got[n] = int(a[key])
                self._decoders[n].reset()
        if feed is not None:
            spawn(self._feed, feed, int(a.get("stdinOffset", 0)))
        self._attached = True

    async def _once(self) -> Chunk | None:
        wire = self._wire
        assert wire is not None
        grant = 0
        async with wire.cond:
            while True:
                ready = [n for n in (0, 1) if self._outs[n].queue]
                if ready:
                    n = ready[0]
                    data, grant = self._outs[n].take()
                    break
                if all(r.over for r in self._outs) and (
                    self._events or any(r.error for r in self._outs) or self.background
                ):
                    n, data = -1, b""
                    break
                if not wire.alive:
                    raise wire.dead("sandbox.exec")
                await wire.cond.wait(self._deadline, "sandbox.exec")
        if n >= 0:
            from .._frames import CREDIT
            from .._frames import Chunk as Frame

            self._got[n] += len(data)
            if self._keep:
                self._kept[n].append(data)
            if grant:
                await wire.send_chunk(Frame(CREDIT, self._outs[n].stream, grant))
            return Chunk(_NAMES[n], data, self._decoders[n].decode(data))
        for name, decoder in zip(_NAMES, self._decoders):
            if rest := decoder.decode(b"", final=True):  # the output ends in the middle of a character
                return Chunk(name, b"", rest)
        for r in self._outs:
            if r.error is not None and not r.ended:
                if r.error.kind != "canceled":  # a manipulation stays one
                    raise r.error
                raise DeadError("sandbox.exec", self._sandbox.id, r.error.cause)
        await self._end(wire)
        return None

    async def _end(self, wire: AsyncWire) -> None:
        """Take the end of the command, whose output is complete."""
        ended = next((p for m, p in self._events if m == "Process.exited"), None)
        if ended is None:
            ended = await wire.call("Process.wait", {"processId": self.id}, self._deadline)
        for n, key in enumerate(("stdoutEnd", "stderrEnd")):
            if ended.get(key, 0) > self._got[n] and not self.background:
                raise IntegrityError("process.wait", _NAMES[n], "a part of it was lost")
        self._exit = ended.get("exit", {})
        wire.unwatch(self.id)
        try:  # nothing depends on the answer
            await wire.post("Process.release", {"processId": self.id})
        except TurnstoneError:
            pass

    async def _abandon(self) -> None:
        """End a command whose caller does not want it any more, if the sandbox reacts soon."""
        if self._exit is not None or not self._started or self.background or self._abandoned:
            return
        bound = Deadline(_KILL_TIME)
        try:
            wire = self._wire
            if wire is None or not wire.alive:
                wire = await self._sandbox.wire(bound)
            await wire.call("Process.signal", {"processId": self.id, "signal": "KILL"}, bound)
            self._abandoned = True
        except TurnstoneError:
            pass  # the process has ended, or its sandbox

    # for users

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        while (chunk := await self._step()) is not None:
            yield chunk

    async def _step(self) -> Chunk | None:
        try:
            return await self._next()
        except BaseException:
            await self._abandon()
            raise

    async def wait(self, timeout: float | None = None) -> ExecResult:
        """Read the output to its end, and return the result with the output that was kept.

        A timeout kills the command, unless it runs in the background; the error's result has the
        output until then.
        """
        if timeout is not None:
            self._deadline = Deadline(timeout)
        try:
            while await self._step() is not None:
                pass
        except TimeoutError as e:
            e.result = self._of({"exitCode": -1, "killed": not self.background})
            raise
        return self.result

    @property
    def result(self) -> ExecResult:
        """The result. An error says that the command has not ended."""
        if self._exit is None:
            raise InvalidError("sandbox.exec", self.id, "has not ended", hint="call wait")
        if self._result is None:
            self._result = self._of(self._exit)
        return self._result

    def _of(self, exit: dict[str, Any]) -> ExecResult:
        duration = exit.get("duration", 0) / 1e9
        code = int(exit.get("exitCode", -1))
        language = language_of(self._argv)
        commands = self._commands
        if not commands:
            text = self._text
            commands = (
                Command(text, language, span=Span(0, len(text.encode()), 1, 1), exit_code=code, duration=duration),)  # fmt: skip
        return ExecResult(
            code, b"".join(self._kept[0]), b"".join(self._kept[1]), duration, language, commands,
            signal=str(exit.get("signal", "")), killed=bool(exit.get("killed")),
            oom_killed=bool(exit.get("oomKilled")), disk_full=bool(exit.get("diskFull")))  # fmt: skip

    async def _command(self, method: str, params: dict[str, Any]) -> None:
        wire = self._wire
        if wire is None or not wire.alive:
            wire = await self._sandbox.wire(NEVER)
        await wire.call(method, {"processId": self.id, **params}, Deadline(30.0))

    async def write(self, data: bytes | str) -> None:
        """Write to standard input, of a command with stdin=True or a terminal."""
        raw = data.encode() if isinstance(data, str) else data
        for at in range(0, len(raw), 60 << 10):
            part = base64.b64encode(raw[at : at + (60 << 10)]).decode()
            await self._command("Process.write", {"data": part})

    async def close_stdin(self) -> None:
        await self._command("Process.closeStdin", {})

    async def signal(self, name: str) -> None:
        """Send a signal, such as "INT", to the command's processes."""
        await self._command("Process.signal", {"signal": name})

    async def kill(self) -> None:
        await self.signal("KILL")

    async def resize(self, columns: int, rows: int) -> None:
        await self._command("Process.resize", {"columns": columns, "rows": rows})

    async def __aenter__(self) -> AsyncProcess:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._abandon()
