"""Files of a sandbox."""

from __future__ import annotations

import base64
import builtins
import posixpath
import tempfile
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from .. import _archive
from .._deadline import Deadline
from .._rt_async import blocking, spawn
from ..errors import DeadError, ExhaustedError, InvalidError, NotFoundError, TurnstoneError
from ..results import FileChange, FileInfo, file_of
from .wire import AsyncSender, AsyncWire

if TYPE_CHECKING:
    from .sandbox import AsyncSandbox

_MAX_INLINE = 512 << 10
_MAX_READ = 1 << 30
_MAX_DOWNLOAD = 1 << 40


async def pump(to: AsyncSender, source: IO[bytes]) -> None:
    """Send what a file has, and the end of the stream."""
    try:
        while part := source.read(60 << 10):
            await to.write(part)
        await to.close()
    except TurnstoneError:
        pass  # the answer to the command says why
    except BaseException:
        await to.abort()
        raise


async def feed(
    wire: AsyncWire, method: str, params: dict[str, Any], key: str, source: IO[bytes], deadline: Deadline
) -> dict[str, Any]:
    """Run a command whose stream carries the data of source."""
    to = wire.sender()
    ident = await wire.begin(method, {**params, key: to.stream})
    task = spawn(pump, to, source)
    try:
        return await wire.answer(ident, method, deadline)
    finally:
        await to.abort()
        await task.join()


class AsyncFiles:
    """Files of a sandbox. A relative path begins in the sandbox's working directory."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    def _path(self, path: str) -> str:
        joined = posixpath.join(self._sandbox.workdir, str(path))
        return posixpath.normpath(joined) + ("/" if str(path).endswith("/") and joined != "/" else "")

    async def _call(
        self, method: str, params: dict[str, Any], timeout: float | None, *, again: bool = False
    ) -> dict[str, Any]:
        """Run a command; one without an effect is repeated on a new connection."""
        deadline = Deadline(timeout)
        for last in (not again, True):
            try:
                wire = await self._sandbox.wire(deadline)
                return await wire.call(method, params, deadline)
            except DeadError as e:
                if last:
                    raise (await self._sandbox.end_reason(e)) or e from None
        raise AssertionError

    async def read(self, path: str, *, timeout: float | None = None) -> bytes:
        """Return the content of a file."""
        params = {"path": self._path(path), "length": _MAX_INLINE}
        a = await self._call("FileSystem.read", params, timeout, again=True)
        data = base64.b64decode(a.get("data", ""))
        if a.get("eof"):
            return data
        deadline = Deadline(timeout)
        wire = await self._sandbox.wire(deadline)
        stream = wire.receiver()
        ident = await wire.begin("FileSystem.read", {"path": self._path(path), "stream": stream.stream})
        try:
            data = await stream.read_all(_MAX_READ, deadline)
        except TurnstoneError:
            await wire.answer(ident, "FileSystem.read", deadline)
            raise
        finally:
            await stream.close()
        await wire.answer(ident, "FileSystem.read", deadline)
        return data

    async def read_text(self, path: str, *, timeout: float | None = None) -> str:
        """Return the content of a file as text in UTF-8."""
        return (await self.read(path, timeout=timeout)).decode()

    async def write(
        self, path: str, data: bytes | str | IO[bytes], *, mode: int | None = None,
        timeout: float | None = None,
    ) -> None:  # fmt: skip
        """Write a whole file atomically, and its missing folders."""
        params: dict[str, Any] = {"path": self._path(path), "parents": True}
        if mode is not None:
            params["mode"] = mode
        raw = data.encode() if isinstance(data, str) else data
        if isinstance(raw, bytes) and len(raw) <= _MAX_INLINE:
            params["data"] = base64.b64encode(raw).decode()
            await self._call("FileSystem.write", params, timeout, again=True)
            return
        deadline = Deadline(timeout)
        wire = await self._sandbox.wire(deadline)
        if isinstance(raw, bytes):
            with tempfile.SpooledTemporaryFile(len(raw) + 1) as f:
                f.write(raw)
                f.seek(0)
                await feed(wire, "FileSystem.write", params, "stream", f, deadline)
        else:
            await feed(wire, "FileSystem.write", params, "stream", raw, deadline)

    async def stat(self, path: str, *, follow: bool = True, timeout: float | None = None) -> FileInfo:
        params = {"path": self._path(path), "follow": follow}
        a = await self._call("FileSystem.stat", params, timeout, again=True)
        return file_of(a.get("file", {}))

    async def exists(self, path: str) -> bool:
        try:
            await self.stat(path, follow=False)
        except NotFoundError:
            return False
        return True

    async def list(self, path: str = ".", *, timeout: float | None = None) -> list[FileInfo]:
        """Return the entries of a folder, by name."""
        found: list[FileInfo] = []
        params: dict[str, Any] = {"path": self._path(path)}
        while True:
            a = await self._call("FileSystem.list", params, timeout, again=True)
            found += [file_of(e) for e in a.get("entries", [])]
            if not a.get("more") or not a.get("entries"):
                return found
            if len(found) > 1_000_000:
                raise ExhaustedError("files.list", path, "has more than 1,000,000 entries")
            params["after"] = found[-1].name

    async def mkdir(self, path: str, *, parents: bool = True, timeout: float | None = None) -> None:
        await self._call("FileSystem.mkdir", {"path": self._path(path), "parents": parents}, timeout)

    async def move(
        self, source: str, target: str, *, overwrite: bool = False, timeout: float | None = None
    ) -> None:
        params = {"from": self._path(source), "to": self._path(target), "overwrite": overwrite}
        await self._call("FileSystem.move", params, timeout)

    async def remove(self, path: str, *, recursive: bool = False, timeout: float | None = None) -> None:
        await self._call("FileSystem.remove", {"path": self._path(path), "recursive": recursive}, timeout)

    async def watch(
        self, path: str = ".", *, recursive: bool = False, timeout: float | None = None
    ) -> AsyncIterator[FileChange]:
        """Yield changes below a path until the caller stops, or the connection ends.

        The watch begins before this method returns.
        """
        deadline = Deadline(timeout)
        wire = await self._sandbox.wire(deadline)
        # events may arrive before the answer says their watch
        ident = await wire.begin("FileSystem.watch", {"path": self._path(path), "recursive": recursive})
        async with wire.cond:
            wire.collect_new = True
        try:
            a = await wire.answer(ident, "FileSystem.watch", deadline)
        finally:
            wire.collect_new = False
        key = str(a.get("watchId", ""))
        return self._changes(wire, key, wire.watch(key), deadline)

    async def _changes(
        self, wire: AsyncWire, key: str, events: deque[tuple[str, dict[str, Any]]], deadline: Deadline
    ) -> AsyncIterator[FileChange]:
        try:
            while True:
                async with wire.cond:
                    while not events:
                        if not wire.alive:
                            raise wire.dead("files.watch")
                        await wire.cond.wait(deadline, "files.watch")
                    _, event = events.popleft()
                for c in event.get("changes", []):
                    yield FileChange(str(c.get("path", "")), str(c.get("kind", "")))
                if event.get("overflow"):
                    yield FileChange("", "overflow")
        finally:
            wire.unwatch(key)
            if wire.alive:
                await wire.post("FileSystem.unwatch", {"watchId": key})

    async def upload(
        self, source: str | Path, dest: str = ".", *, timeout: float | None = None
    ) -> None:
        """Copy a file or folder of this machine into the sandbox.

        It goes into dest if that is a folder or ends in a slash, otherwise under dest's name.
        """
        path = Path(source)
        deadline = Deadline(timeout)
        archive = await blocking(_archive.pack, [(path, path.resolve().name)])
        with archive:
            wire = await self._sandbox.wire(deadline)
            await feed(wire, "FileSystem.unpack", {"dest": self._path(dest)}, "stream", archive, deadline)

    async def download(
        self, path: str, dest: str | Path = ".", *, timeout: float | None = None
    ) -> builtins.list[str]:
        """Copy a file or folder of the sandbox to this machine, by the same rules.

        Nothing is written outside of dest. The answer lists what was left out, such as links that
        lead out of it.
        """
        name = self._path(path).rstrip("/").rpartition("/")[2]
        if name in ("", ".", ".."):
            raise InvalidError(
                "files.download", path, "the path has no name of its own", hint="name the file or folder itself"
            )
        deadline = Deadline(timeout)
        wire = await self._sandbox.wire(deadline)
        stream = wire.receiver()
        with tempfile.TemporaryFile() as archive:
            ident = await wire.begin("FileSystem.pack", {"path": self._path(path), "stream": stream.stream})
            try:
                size = 0
                while part := await stream.read(deadline):
                    size += len(part)
                    if size > _MAX_DOWNLOAD:
                        raise ExhaustedError("files.download", path, "is too large")
                    await blocking(archive.write, part)
            except TurnstoneError:
                await wire.answer(ident, "FileSystem.pack", deadline)
                raise
            finally:
                await stream.close()
            await wire.answer(ident, "FileSystem.pack", deadline)
            archive.seek(0)
            return await blocking(_archive.unpack, archive, str(dest), name)


