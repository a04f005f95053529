"""Sandboxes: machines that stay between commands."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from .._json import is_dict
from .._deadline import NEVER, Deadline
from .._language import language_of
from .._rt_async import Lock, sleep
from ..errors import (
    CommandError,
    DeadError,
    InvalidError,
    NotFoundError,
    TimeoutError,
    TurnstoneError,
    UnavailableError,
)
from ..results import Command, ExecResult, Receipt, Span, command_of_record, receipt_of
from .files import AsyncFiles
from .process import AsyncProcess, Input, process_id
from .server import Offer
from .wire import AsyncReceiver, AsyncWire

if TYPE_CHECKING:
    from .client import AsyncTurnstone

_END_TIME = 2.0
_ENDED = ("SANDBOX_STATE_STOPPED", "SANDBOX_STATE_FAILED")
_REASONS = {
    "SANDBOX_REASON_STOP_REQUESTED": "on request",
    "SANDBOX_REASON_TIME_UP": "its time was up",
    "SANDBOX_REASON_CREATE_FAILED": "it could not be created",
    "SANDBOX_REASON_MACHINE_DIED": "its machine died",
    "SANDBOX_REASON_HOLDER_DIED": "its holder died",
    "SANDBOX_REASON_NODE_LOST": "the node lost it",
}


class AsyncSandbox:
    """A machine. As a context manager it is closed, and its session keeps a turn of it.

    Make one with the client's method sandbox.
    """

    def __init__(
        self, client: AsyncTurnstone, info: Mapping[str, Any], offer: Offer | None, branch: str = ""
    ) -> None:
        self._client = client
        self._info = dict(info)
        self._offer = offer
        self._wire: AsyncWire | None = None
        self._lock = Lock()
        self.branch = branch
        self.turn: Receipt | None = None
        """The newest turn that was kept of this sandbox."""
        self.closed = False
        self.files = AsyncFiles(self)

    @property
    def id(self) -> str:
        return str(self._info.get("sandboxId", ""))

    @property
    def name(self) -> str:
        return str(self._info.get("name", ""))

    @property
    def session(self) -> str:
        """The session's name, or its ID; empty: none."""
        return str(self._info.get("contextId", ""))

    @property
    def workdir(self) -> str:
        """Where relative paths begin."""
        return str(self._info.get("workdir", "")) or "/workspace"

    @property
    def info(self) -> Mapping[str, Any]:
        """What the server said last of the sandbox: the message Sandbox of docs/api.md."""
        return self._info

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.name} session={self.session!r}>"

    # connections

    async def wire(self, deadline: Deadline = NEVER) -> AsyncWire:
        """Return the connection to the sandbox, which is made if there is none."""
        if self.closed:
            raise DeadError("sandbox.use", f"sandbox {self.id}", "is closed", hint="make another one")
        async with self._lock:
            if self._wire is not None and self._wire.alive:
                return self._wire
            self._wire = None
            server = await self._client.server()
            channel = None
            if self._offer is not None:  # a statement that may still be known
                try:
                    channel = await server.open(self._offer, deadline)
                except TurnstoneError as e:
                    if e.kind == "integrity":
                        raise
                self._offer = None if channel is None else self._offer
            if channel is None:
                try:
                    offer = await server.sandbox_offer(self.id, deadline)
                except InvalidError as e:  # a server that refuses does not say why the sandbox has ended
                    raise (await self._ended()) or e from None
                channel = await server.open(offer, deadline)
                self._offer = offer
            self._wire = AsyncWire(channel, "the connection to the sandbox")
            return self._wire

    async def _ended(self) -> TurnstoneError | None:
        """Return the error about a sandbox that has ended; None: it has not, or nobody knows."""
        try:
            await self.refresh(timeout=10.0)
        except NotFoundError:
            return DeadError("sandbox.use", f"sandbox {self.id}", "it was removed", hint="make another one")
        except TurnstoneError:
            return None
        if self._info.get("state") not in _ENDED:
            return None
        why = _REASONS.get(str(self._info.get("reason", "")), "for an unknown reason")
        state = str(self._info["state"]).removeprefix("SANDBOX_STATE_").lower()
        return DeadError(
            "sandbox.use", f"sandbox {self.id}", f"it is {state}: {why}", hint="make another one")  # fmt: skip

    async def end_reason(self, failed: TurnstoneError) -> TurnstoneError | None:
        """Return the recorded cause of a sandbox's end, which may follow a lost connection soon."""
        if self.closed:
            return failed
        bound = Deadline(_END_TIME)
        while True:
            ended = await self._ended()
            if ended is not None:
                return ended
            if bound.passed or isinstance(failed, UnavailableError):
                return None
            try:
                if (await self.wire(bound)).alive:
                    return None
            except TurnstoneError:
                await sleep(0.2)

    # commands

    @overload
    async def exec(
        self, command: Sequence[str] | str, *, stream: Literal[False] = False,
        background: Literal[False] = False, stdin: Input | None = None, pty: Literal[False] = False,
        env: Mapping[str, str] | None = None, secrets: Mapping[str, str] | None = None,
        cwd: str = "", user: str = "", timeout: float | None = None, check: bool = False,
    ) -> ExecResult: ...  # fmt: skip

    @overload
    async def exec(
        self, command: Sequence[str] | str, *, stream: Literal[True], background: Literal[False] = False,
        stdin: Input | Literal[True] | None = None, pty: bool | tuple[int, int] = False,
        env: Mapping[str, str] | None = None, secrets: Mapping[str, str] | None = None,
        cwd: str = "", user: str = "", timeout: float | None = None, check: bool = False,
    ) -> AsyncProcess: ...  # fmt: skip

    @overload
    async def exec(
        self, command: Sequence[str] | str, *, stream: bool = False, background: Literal[True],
        stdin: Literal[True] | None = None, pty: bool | tuple[int, int] = False,
        env: Mapping[str, str] | None = None, secrets: Mapping[str, str] | None = None,
        cwd: str = "", user: str = "", timeout: float | None = None, check: bool = False,
    ) -> AsyncProcess: ...  # fmt: skip

    async def exec(
        self, command: Sequence[str] | str, *, stream: bool = False, background: bool = False,
        stdin: Input | Literal[True] | None = None, pty: bool | tuple[int, int] = False,
        env: Mapping[str, str] | None = None, secrets: Mapping[str, str] | None = None,
        cwd: str = "", user: str = "", timeout: float | None = None, check: bool = False,
    ) -> ExecResult | AsyncProcess:  # fmt: skip
        """Run a command and return its end.

        A list is a program and its arguments, looked up in the sandbox. A text is a script of bash
        in the sandbox's shell: what it exports, and its directory, stay for the next text; with
        env, cwd, user or stdin it is a process of its own. stream=True returns the process, whose
        output is iterated; background=True too, and it outlives this connection. stdin is the
        input, or True for a process that is written to. A timeout kills the command and raises
        TimeoutError; so does the end of the caller's task, or Ctrl-C. check=True raises
        CommandError if the command fails.
        """
        deadline = Deadline(timeout)
        script = command if isinstance(command, str) else None
        alone = not (stream or background or pty or stdin or env or secrets or cwd or user)
        if script is not None and alone:
            result = await self._script(script, deadline)
            return _checked(result, command) if check else result
        if script is not None:
            commands = await self._parse(script, deadline)
            argv: Sequence[str] = ["/bin/bash", "-c", script]
        else:
            commands, argv = (), list(command)
        if not argv:
            raise InvalidError("sandbox.exec", "the command", "is empty")
        given = secrets or {}
        params: dict[str, Any] = {"env": [f"{k}={v}" for k, v in {**(env or {}), **given}.items()]}
        if given:
            params["secrets"] = list(given)
        if cwd:
            params["cwd"] = cwd
        if user:
            params["user"] = user
        if pty:
            columns, rows = pty if isinstance(pty, tuple) else (80, 24)
            params["terminal"] = {"columns": columns, "rows": rows}
        interactive = stdin is True or bool(pty and not isinstance(stdin, (bytes, str)))
        if interactive:
            params["stdin"] = True
        source = None if interactive or isinstance(stdin, bool) else stdin
        process = AsyncProcess(
            self, argv, background=background, stdin=source, deadline=deadline, commands=commands,
            text=script if script is not None else shlex.join(argv))  # fmt: skip
        if stream or background:
            await process.start(params)
            return process
        ended = await process.run(params)
        return _checked(ended, command) if check else ended

    async def _parse(self, script: str, deadline: Deadline) -> tuple[Command, ...]:
        """Return the commands of a script, which has not run."""
        try:
            a = await (await self.wire(deadline)).call("Shell.parse", {"script": script}, deadline)
        except (InvalidError, UnavailableError):
            return ()
        raw = script.encode()
        found: list[Command] = []
        for c in a.get("commands", []):
            record = command_of_record({**c, "text": ""})
            if record.span is not None:
                text = raw[record.span.start : record.span.end].decode("utf-8", "replace")
                record = command_of_record({**c, "text": text})
            found.append(record)
        return tuple(found)

    async def _script(self, script: str, deadline: Deadline) -> ExecResult:
        """Run a script in the sandbox's shell."""
        wire = await self.wire(deadline)
        key = process_id()
        events = wire.watch(key)
        outs = (wire.receiver(), wire.receiver())
        params = {
            "processId": key, "script": script, "stdoutStream": outs[0].stream,
            "stderrStream": outs[1].stream, "killOnDisconnect": True,
        }  # fmt: skip
        kept: tuple[list[bytes], list[bytes]] = ([], [])
        try:
            await wire.call("Shell.execute", params, deadline)
            while (part := await _either(wire, outs, deadline)) is not None:
                kept[part[0]].append(part[1])
            async with wire.cond:
                while not any(m == "Shell.finished" for m, _ in events):
                    if not wire.alive:
                        raise wire.dead("shell.execute")
                    await wire.cond.wait(deadline, "shell.execute")
        except BaseException as e:
            await _end(wire, key, outs)
            if isinstance(e, TimeoutError):
                e.result = ExecResult(-1, b"".join(kept[0]), b"".join(kept[1]), deadline.seconds or 0.0, killed=True)
            if isinstance(e, DeadError):
                raise (await self.end_reason(e)) or e from None
            raise
        finally:
            wire.unwatch(key)
        end = next(p for m, p in events if m == "Shell.finished")
        commands = tuple(
            command_of_record(r) for m, p in events if m == "Shell.commands" for r in p.get("records", []))  # fmt: skip
        exit = end.get("exit", {})
        languages = [c.language for c in commands if c.language and c.language != "bash"]
        return ExecResult(
            int(exit.get("exitCode", -1)), b"".join(kept[0]), b"".join(kept[1]),
            exit.get("duration", 0) / 1e9, languages[0] if len(set(languages)) == 1 else "bash",
            commands or (Command(script, language_of(()), span=Span(0, len(script.encode()), 1, 1)),),
            signal=str(exit.get("signal", "")), killed=bool(exit.get("killed")),
            oom_killed=bool(exit.get("oomKilled")), disk_full=bool(exit.get("diskFull")),
            cwd=str(end.get("cwd", "")))  # fmt: skip

    async def processes(self) -> list[dict[str, Any]]:
        """Return the running commands, and the newest that have ended."""
        a = await (await self.wire()).call("Process.list", {}, Deadline(30.0))
        return list(a.get("processes", []))

    # life

    async def _control(
        self, method: str, request: dict[str, Any] | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        server = await self._client.server()
        a = await server.call(
            f"SandboxService/{method}", {"sandboxId": self.id, **(request or {})}, Deadline(timeout))  # fmt: skip
        if is_dict(a.get("sandbox")):
            self._info = a["sandbox"]
        return a

    async def refresh(self, *, timeout: float | None = None) -> Mapping[str, Any]:
        """Ask the server what the sandbox is now."""
        await self._control("GetSandbox", timeout=timeout)
        if self._info.get("removed"):
            raise NotFoundError("sandbox.find", f"sandbox {self.id}", "no such sandbox")
        return self._info

    async def pause(self, *, timeout: float | None = None) -> None:
        """Pause the machine; its connections end."""
        await self._control("PauseSandbox", timeout=timeout)
        await self._disconnect()

    async def resume(self, *, timeout: float | None = None) -> None:
        await self._control("ResumeSandbox", timeout=timeout)

    async def set_timeout(self, seconds: float) -> None:
        """Set the time to the sandbox's stop, from now."""
        await self._control("SetSandboxTimeout", {"timeout": seconds})

    async def expose(self, port: int, *, ttl: float | None = None) -> str:
        """Make a port reachable through the node, which sees its traffic, and return its URL."""
        a = await self._control("ExposePort", {"port": port, "ttl": ttl})
        return str(a.get("url", ""))

    async def snapshot(self, *, with_secrets: bool = False) -> str:
        """Keep the machine, and return the ID from which the client's sandbox starts others."""
        request = {"idempotencyKey": secrets.token_hex(16), "secrets": with_secrets}
        a = await self._control("SnapshotSandbox", request)
        return str(a.get("snapshot", {}).get("snapshotId", ""))

    async def fork(
        self, count: int = 1, *, ttl: float | None = None, with_secrets: bool = False
    ) -> list[AsyncSandbox]:
        """Clone the running machine with its processes and their memory."""
        server = await self._client.server()
        clients = [server.asker() for _ in range(count)]
        request = {
            "sandboxId": self.id, "idempotencyKey": secrets.token_hex(16), "clients": clients,
            "timeout": ttl, "secrets": with_secrets,
        }  # fmt: skip
        a = await server.call("SandboxService/ForkSandbox", request)
        clones: list[AsyncSandbox] = []
        for made, client in zip(a.get("clones", []), clients, strict=False):
            info = made.get("sandbox", {})
            offer = Offer(made.get("channel", {}), str(info.get("sandboxId", "")), client["nonce"])
            clones.append(self._client.adopt(AsyncSandbox(self._client, info, offer, self.branch)))
        await self._disconnect()
        if len(clones) < count:
            raise UnavailableError(
                "sandbox.fork", f"sandbox {self.id}", f"the server made {len(clones)} of {count} clones")  # fmt: skip
        return clones

    async def clone(self) -> AsyncSandbox:
        """Return another sandbox with the same workspace, environment and output.

        Of a running sandbox, it has the processes too, if the substrate can fork. Of a closed one,
        it begins on the turn that was kept of it, in a branch of its own.
        """
        if not self.closed:
            try:
                return (await self.fork(1))[0]
            except (InvalidError, UnavailableError):
                if not self.session:
                    raise
                await self.commit()
        if not self.session:
            raise InvalidError(
                "sandbox.clone", f"sandbox {self.id}", "it belonged to no session, so nothing was kept of it",
                hint="clone it before it is closed")  # fmt: skip
        branch = f"clone-{secrets.token_hex(4)}"
        ref = self.turn.id if self.turn is not None else f"{self.session}@{self.branch or 'main'}"
        await self._client.session(self.session).fork(ref, branch)
        return await self._client.sandbox(context_id=self.session, branch=branch)

    async def commit(self, *, timeout: float | None = None) -> Receipt | None:
        """Keep what was done as a turn, and go on. None: nothing was done since the last turn."""
        session = self._client.session(self.session)
        raw = await session.report("commitSandbox", {"sandbox": self.id}, Deadline(timeout), node=self._node)
        await self._disconnect()
        if not is_dict(raw):
            return None
        self.turn = receipt_of(raw)
        return self.turn

    @property
    def _node(self) -> str:
        return str(self._info.get("node", ""))

    async def _disconnect(self) -> None:
        wire, self._wire, self._offer = self._wire, None, None
        if wire is not None:
            await wire.close()

    async def close(self, *, discard: bool = False) -> None:
        """End the sandbox. Its session keeps a turn of what was done, unless discard is set.

        If the turn cannot be kept, the sandbox stays, and the error says why.
        """
        if self.closed:
            return
        try:
            if self.session and discard:
                session = self._client.session(self.session)
                await session.command("discardSandbox", {"sandbox": self.id}, NEVER, node=self._node)
            elif self.session:
                await self.commit()
            self.closed = True
            await self._control("DeleteSandbox")
        except (NotFoundError, DeadError):
            if await self._ended() is None:
                self.closed = False
                raise
            self.closed = True
        except TurnstoneError:
            self.closed = False
            raise
        finally:
            await self._disconnect()
            if self.closed:
                self._client.release(self)

    async def end_quietly(self) -> None:
        """End the sandbox by one control call, which keeps its turn, too."""
        self.closed = True
        await self._control("DeleteSandbox", timeout=120.0)

    def detach(self) -> AsyncSandbox:
        """Let the sandbox outlive its client: it ends at its time."""
        self._client.release(self)
        return self

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except TurnstoneError:
            if err is None:
                raise  # else the error of the block counts


def _checked(result: ExecResult, command: Sequence[str] | str) -> ExecResult:
    if not result.ok:
        text = command if isinstance(command, str) else shlex.join(command)
        last = result.stderr.strip().splitlines()[-1:] or [""]
        e = CommandError(
            "sandbox.exec", text[:200], f"exit status {result.exit_code}" + (f": {last[0][:300]}" if last[0] else ""))  # fmt: skip
        e.result = result
        raise e
    return result


async def _either(
    wire: AsyncWire, outs: Sequence[AsyncReceiver], deadline: Deadline
) -> tuple[int, bytes] | None:
    """Return the next data of two streams; None: both are complete."""
    from .._frames import CREDIT, Chunk

    async with wire.cond:
        while True:
            ready = [n for n in (0, 1) if outs[n].queue]
            if ready:
                n = ready[0]
                data, grant = outs[n].take()
                break
            for r in outs:
                if r.error is not None and not r.ended:
                    raise r.error
            if all(r.over for r in outs):
                return None
            await wire.cond.wait(deadline, "shell.execute")
    if grant:
        await wire.send_chunk(Chunk(CREDIT, outs[n].stream, grant))
    return n, data


async def _end(wire: AsyncWire, key: str, outs: Sequence[AsyncReceiver]) -> None:
    """End a step whose caller does not want it any more."""
    try:
        if wire.alive:
            await wire.call("Process.signal", {"processId": key, "signal": "KILL"}, Deadline(5.0))
        for r in outs:
            await r.close()
    except TurnstoneError:
        pass
