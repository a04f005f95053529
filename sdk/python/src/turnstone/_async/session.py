"""Sessions: trees of turns, at the node that has them."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from .._json import dicts, is_dict
from .._deadline import NEVER, Deadline
from .._rt_async import blocking, spawn
from ..errors import DeadError, IntegrityError, TurnstoneError, clean, error_of
from ..results import FileInfo, Receipt, file_of
from .wire import AsyncReceiver, AsyncWire

if TYPE_CHECKING:
    from .client import AsyncTurnstone

_MAX_REPORT = 1 << 30
Ref = str | int
Progress = Callable[[Mapping[str, Any]], None]


def decode(text: bytes) -> Any:
    """Decode JSON of a node, which may be another than it says."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise IntegrityError(
            "remote.report", "the node's answer", "is not JSON",
            hint="use a client and a server of the same version") from None  # fmt: skip


class AsyncSession:
    """A session. A turn is named by its number, a branch or tag, its ID, or SESSION@REF.

    Reports are dictionaries, as turn prints them with --json: docs/json.md.
    """

    def __init__(self, client: AsyncTurnstone, name: str) -> None:
        self._client = client
        self.name = name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def ref(self, ref: Ref | None = None) -> str:
        """Return the reference of a turn of this session."""
        if ref is None:
            return self.name
        if isinstance(ref, Receipt):
            return ref.id
        text = str(ref)
        whole = text.startswith("t_") or "@" in text or text == self.name or text.startswith("s_")
        return text if whole else f"{self.name}@{text}"

    # commands at the node

    async def command(
        self, name: str, params: Mapping[str, Any], deadline: Deadline = NEVER, *, node: str = ""
    ) -> dict[str, Any]:
        """Run a command of the domain Session, at the node that knows what it is about."""

        async def f(wire: AsyncWire) -> dict[str, Any]:
            return await wire.call(f"Session.{name}", params, deadline)

        return await self._client.at_node(f, node, deadline)

    async def report(
        self, name: str, params: Mapping[str, Any], deadline: Deadline = NEVER, *, node: str = ""
    ) -> Any:
        """Run a command that sends a report."""
        return decode(await self.data(name, params, "report", deadline, node=node))

    async def data(
        self, name: str, params: Mapping[str, Any], key: str, deadline: Deadline = NEVER, *, node: str = ""
    ) -> bytes:
        """Run a command that sends a stream, and return what was in it."""

        async def f(wire: AsyncWire) -> bytes:
            stream = wire.receiver()
            method = f"Session.{name}"
            ident = await wire.begin(method, {**params, key: stream.stream})
            return await _received(wire, method, ident, stream, deadline)

        return await self._client.at_node(f, node, deadline)

    async def job(
        self, name: str, params: Mapping[str, Any], deadline: Deadline = NEVER,
        progress: Progress | None = None, source: tuple[str, IO[bytes]] | None = None,
    ) -> Any:  # fmt: skip
        """Run a command with progress, and return its report. The caller's end cancels it."""

        async def f(wire: AsyncWire) -> Any:
            journal, hold = wire.receiver(), wire.sender()
            given = {**params, "journal": journal.stream, "hold": hold.stream}
            method = f"Session.{name}"
            to = None
            if source is not None:
                to = wire.sender()
                given[source[0]] = to.stream
            ident = await wire.begin(method, given)
            if to is not None and source is not None:
                from .files import pump

                spawn(pump, to, source[1])
            reader = JournalReader(progress)
            try:
                while not reader.ended and (part := await journal.read(deadline)):
                    reader.feed(part)
            except DeadError:
                raise
            except TurnstoneError:
                await wire.answer(ident, method, deadline)
                raise
            finally:
                await hold.abort()
                await journal.close()
            await wire.answer(ident, method, deadline)
            return reader.result()

        return await self._client.at_node(f, "", deadline)

    # reading

    async def get(self) -> dict[str, Any]:
        """Return the session with its turns, branches and tags."""
        return dict(await self.report("get", {"session": self.name}))

    async def log(self, ref: Ref | None = None, limit: int = 0) -> list[dict[str, Any]]:
        """Return the turns of the session, or a turn and its ancestors, the newest first."""
        graph = await self.report("log", {"ref": self.ref(ref), "limit": limit})
        return list(graph.get("turns") or [])

    async def branches(self) -> dict[str, str]:
        """Return the branches, each with the ID of its head."""
        graph = await self.get()
        return {str(b.get("name", "")): str(b.get("head", "")) for b in dicts(graph.get("branches"))}

    async def head(self, branch: str = "main") -> dict[str, Any]:
        """Return the newest turn of a branch."""
        info = await self.show(branch)
        return dict(info.get("turn") or info)

    async def show(self, ref: Ref | None = None) -> dict[str, Any]:
        """Return the stored data of a turn."""
        return dict(await self.report("show", {"ref": self.ref(ref)}))

    async def receipt(self, ref: Ref | None = None) -> str:
        """Return the receipt of a turn."""
        return (await self.data("receipt", {"ref": self.ref(ref)}, "receipt")).decode("utf-8", "replace")

    async def diff(
        self, a: Ref, b: Ref | None = None, *, text: bool = False, stat: bool = False, results: bool = False
    ) -> dict[str, Any]:
        """Compare the states of two turns; with one, its own changes."""
        params: dict[str, Any] = {"from": self.ref(a), "text": text, "stat": stat, "results": results}
        if b is not None:
            params["to"] = self.ref(b)
        return dict(await self.report("diff", params))

    async def compare(self, *refs: Ref) -> dict[str, Any]:
        """Compare the results of turns, side by side."""
        return dict(await self.report("compare", {"refs": [self.ref(r) for r in refs]}))

    async def trace(self, ref: Ref) -> list[dict[str, Any]]:
        """Return the recorded commands of a turn."""
        return [decode(line) for line in (await self.data("trace", {"ref": self.ref(ref)}, "lines")).splitlines()]

    async def heads(self) -> list[dict[str, Any]]:
        """Return the log of heads, oldest first."""
        return list(await self.report("heads", {"session": self.name}) or [])

    async def list_files(self, ref: Ref, path: str = "", *, recursive: bool = False) -> list[FileInfo]:
        """Return the files of a turn's state."""
        params = {"ref": self.ref(ref), "path": path, "recursive": recursive}
        lines = (await self.data("listFiles", params, "lines")).splitlines()
        return [file_of(decode(line)) for line in lines]

    async def read_file(self, ref: Ref, path: str) -> bytes:
        """Return the content of a file of a turn's state."""
        return await self.data("readFile", {"ref": self.ref(ref), "path": path}, "data")

    # changing

    async def fork(self, ref: Ref, branch: str) -> dict[str, Any]:
        """Make a branch that begins with a turn."""
        a = await self.command("fork", {"ref": self.ref(ref), "name": branch})
        return dict(a.get("branch") or {})

    async def merge(
        self, source: Ref, into: str = "", *, side: str = "none", paths: Mapping[str, str] | None = None,
        markers: bool = False, no_ff: bool = False, dry_run: bool = False, message: str = "",
    ) -> dict[str, Any]:  # fmt: skip
        """Merge a turn or branch into a branch; conflicts are in the report."""
        params = {
            "from": self.ref(source), "into": into, "session": self.name, "side": side,
            "markers": markers, "noFF": no_ff, "dryRun": dry_run, "message": message,
            "paths": [{"path": p, "side": s} for p, s in sorted((paths or {}).items())],
        }  # fmt: skip
        return dict(await self.report("merge", params))

    async def tag(self, ref: Ref, name: str) -> dict[str, Any]:
        """Give a turn a fixed name."""
        a = await self.command("tag", {"ref": self.ref(ref), "name": name})
        return dict(a.get("tag") or {})

    async def untag(self, name: str) -> None:
        await self.command("untag", {"session": self.name, "tag": name})

    async def remove_branch(self, branch: str) -> None:
        await self.command("removeBranch", {"session": self.name, "branch": branch})

    async def rename(self, name: str) -> None:
        await self.command("rename", {"session": self.name, "name": name})
        self.name = name

    async def remove(self) -> None:
        """Remove the session with its turns."""
        await self.command("remove", {"session": self.name})

    # running again

    async def replay(
        self, ref: Ref, *, secrets: Mapping[str, str] | None = None, tier: str = "",
        timeout: float | None = None, progress: Progress | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Run a turn again on the state of its parent, and compare: "same" says whether nothing differs."""
        options: dict[str, Any] = {"secrets": [f"{k}={v}" for k, v in (secrets or {}).items()]}
        if tier:
            options["tier"] = tier
        params = {"ref": self.ref(ref), "options": options}
        return dict(await self.job("replay", params, Deadline(timeout), progress))

    async def verify(
        self, ref: Ref | None = None, *, all: bool = False, trust: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Verify the signed statements of a turn and its ancestors, or of all turns.

        trust has keys, "TYPE BASE64"; without it the pins of the host count, else the node's list.
        """
        keys = list(trust) if trust is not None else self._client.trusted()
        params: dict[str, Any] = {"ref": self.name if all else self.ref(ref), "all": all}
        if keys:
            params["trust"] = keys
        return dict(await self.report("verify", params))

    async def export(self, dest: str | Path | IO[bytes], *, full: bool = False) -> dict[str, Any]:
        """Write the session to a file."""
        if isinstance(dest, (str, Path)):
            temporary = f"{os.fspath(dest)}.part"
            try:
                with open(temporary, "wb") as f:
                    report = await self.export(f, full=full)
                os.replace(temporary, dest)
            except BaseException:
                if os.path.exists(temporary):
                    os.unlink(temporary)
                raise
            return report
        out: IO[bytes] = dest

        async def f2(wire: AsyncWire) -> dict[str, Any]:
            stream = wire.receiver()
            params = {"session": self.name, "full": full, "data": stream.stream}
            ident = await wire.begin("Session.export", params)
            try:
                while part := await stream.read():
                    await blocking(out.write, part)
            except TurnstoneError:
                await wire.answer(ident, "Session.export")
                raise
            finally:
                await stream.close()
            return await wire.answer(ident, "Session.export")

        return dict((await self._client.at_node(f2, "", NEVER)).get("result") or {})

    async def allow(self, key: bytes, *, write: bool = False, seconds: int = 86400) -> None:
        """Admit another client's key to the session; 0 seconds withdraws what the key may."""
        scopes = [] if seconds <= 0 else ["read", "write"] if write else ["read"]
        client = base64.b64encode(key).decode()
        params = {"session": self.name, "client": client, "scopes": scopes, "seconds": max(0, seconds)}
        await self.command("allow", params)

    async def turns(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the turns, the newest first."""
        for t in await self.log():
            yield t


async def _received(
    wire: AsyncWire, method: str, ident: int, stream: AsyncReceiver, deadline: Deadline
) -> bytes:
    try:
        text = await stream.read_all(_MAX_REPORT, deadline)
    except DeadError:
        raise
    except TurnstoneError:
        await wire.answer(ident, method, deadline)  # whose error takes precedence
        raise
    finally:
        await stream.close()
    await wire.answer(ident, method, deadline)
    return text


class JournalReader:
    """Reads the lines of JSON of a journal, which is untrusted."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._buffer = bytearray()
        self._report = bytearray()
        self.offset = 0  # bytes of whole lines
        self.ended = False
        self._end: Mapping[str, Any] = {}

    def again(self) -> None:
        """Forget a part of a line: another connection begins at offset."""
        self._buffer.clear()

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while not self.ended and (at := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[: at + 1])
            del self._buffer[: at + 1]
            self._take(decode(line))
            self.offset += len(line)
        if len(self._buffer) > 64 << 20:
            raise _broken("a line is longer than 64 MiB")

    def _take(self, line: Any) -> None:
        if not is_dict(line):
            raise _broken("a line is no object")
        if line.get("report"):
            try:
                self._report += base64.b64decode(line["report"], validate=True)
            except (ValueError, TypeError):
                raise _broken("a part of the report is not base64") from None
            if len(self._report) > _MAX_REPORT:
                raise _broken("the report is too large")
        elif is_dict(line.get("end")):
            self._end, self.ended = line["end"], True
        elif self._progress is not None:
            self._progress(line)

    def report(self) -> Any:
        return decode(bytes(self._report)) if self._report else None

    @property
    def kind(self) -> str:
        return str(self._end.get("kind", ""))

    def failed(self) -> TurnstoneError | None:
        e = self._end.get("error")
        if not is_dict(e):
            return None
        return error_of(
            str(e.get("kind", "")), clean(str(e.get("op", "")), 200), clean(str(e.get("subject", "")), 4000),
            clean(str(e.get("cause", "")), 4000), hint=clean(str(e.get("hint", "")), 4000))  # fmt: skip

    def result(self) -> Any:
        """Return the report of the end. The error is that of the operation."""
        if not self.ended:
            raise DeadError("turn.attach", "the journal", "ended without the result")
        report, failed = self.report(), self.failed()
        if report is None and failed is not None:
            raise failed
        if report is None:
            raise _broken("it has neither a report nor an error")
        return report


def _broken(cause: str) -> TurnstoneError:
    return IntegrityError(
        "turn.journal", "the journal", cause,
        hint="the server is not one of this version, or somebody changed its answer")  # fmt: skip


