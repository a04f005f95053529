"""Tar streams: packing files of this machine, and unpacking what a hostile guest sends."""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from .errors import ExhaustedError, IntegrityError, InvalidError

_SPOOL = 8 << 20

# Bounds of an untrusted archive: the other SDKs have the same, and the same vectors.
_ENTRIES = 1_000_000
_BYTES = 64 << 30
_DEPTH = 255  # parts of a name
_NAME = 4096  # bytes
_PART = 255
_HEADER = 64 << 10


def pack(items: Sequence[tuple[Path, str]]) -> IO[bytes]:
    """Pack files and folders under their names into a temporary file, which the caller closes."""
    out = tempfile.SpooledTemporaryFile(_SPOOL)
    try:
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path, name in items:
                if not os.path.lexists(path):
                    raise InvalidError("files.upload", str(path), "does not exist")
                tar.add(path, arcname=name, filter=_of_root)
        out.seek(0)
    except BaseException:
        out.close()
        raise
    return out


def _of_root(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if not (info.isfile() or info.isdir() or info.issym() or info.islnk()):
        return None
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


class _Info(tarfile.TarInfo):
    """An entry whose extended headers are bounded: tarfile reads each into memory."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        extended = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE,
                    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)  # fmt: skip
        if self.type in extended and not 0 <= self.size <= _HEADER:
            raise _damaged("a header is too large")
        return super()._proc_member(tar)  # type: ignore[misc, no-any-return]


def _damaged(why: str) -> IntegrityError:
    return IntegrityError("files.download", "the archive", why)


def unpack(
    data: IO[bytes], dest: str, only: str, *, entries: int = _ENTRIES, size: int = _BYTES
) -> list[str]:
    """Unpack the one file or folder of a stream to dest, and return what was left out.

    The stream's top-level name is only, or any if only is empty; another one is an error, because
    other files of the user are there. It goes into dest if that is a folder or ends in a slash,
    otherwise under dest's name. Nothing is written outside of it: links are made last, when no file
    can follow them any more.
    """
    into = dest.endswith(("/", os.sep)) or os.path.isdir(dest)
    folder = Path(dest) if into else Path(dest).parent
    folder.mkdir(parents=True, exist_ok=True)
    u = _Unpacker(folder.resolve(), "" if into else Path(dest).name, only)
    try:
        with tarfile.open(fileobj=data, mode="r|", tarinfo=_Info) as tar:
            for info in tar:
                entries -= 1
                size -= max(info.size, 0)
                if entries < 0:
                    raise ExhaustedError("files.download", "the archive", "has too many files")
                if size < 0:
                    raise ExhaustedError("files.download", "the archive", "has too many bytes")
                u.entry(tar, info)
                setattr(tar, "members", [])  # noqa: B010 # which are kept otherwise
    except (tarfile.TarError, EOFError, ValueError, RecursionError) as e:
        raise _damaged(f"is damaged: {e}") from None
    u.links()
    return u.skipped


class _Unpacker:
    """Writes the entries of an untrusted archive below a folder."""

    def __init__(self, folder: Path, rename: str, only: str) -> None:
        self._folder = folder
        self._rename = rename
        self._only = only
        self._links: list[tuple[Path, str, str]] = []
        self._linked: set[Path] = set()
        self._written: set[Path] = set()
        self.skipped: list[str] = []

    def _target(self, name: str) -> Path:
        """Return where an entry belongs. Agents send no names but these."""
        parts = PurePosixPath(name).parts
        if not name or name.startswith("/") or ".." in parts or "\0" in name:
            raise _damaged("has a name that leads out of the folder")
        if len(parts) > _DEPTH:
            raise _damaged("has a folder that is nested too deeply")
        if len(os.fsencode(name)) > _NAME or any(len(os.fsencode(p)) > _PART for p in parts):
            raise _damaged("has a name that is too long")
        if not parts:
            return self._folder
        if self._only and parts[0] != self._only:
            raise _damaged("has a name beside what was asked for")
        path = self._folder.joinpath(self._rename or parts[0], *parts[1:])
        for above in path.parents:
            if above == self._folder:
                break
            if above in self._linked or above.is_symlink():
                raise _damaged("has a name below a link")
        return path

    def entry(self, tar: tarfile.TarFile, info: tarfile.TarInfo) -> None:
        path = self._target(info.name)
        source: IO[bytes] | None = None
        if path == self._folder:
            if not info.isdir():
                self.skipped.append(info.name)
            return
        if info.isfile():
            source = tar.extractfile(info)
        elif info.islnk():
            first = self._own(info.linkname)
            # hard links become separate files, and lead to files of the archive alone
            if first is not None and first.is_file() and not first.is_symlink():
                source = open(first, "rb")
        elif info.isdir():
            path.mkdir(parents=True, exist_ok=True)
            return
        elif info.issym():
            self._links.append((path, info.linkname, info.name))
            self._linked.add(path)
            return
        if source is None:
            self.skipped.append(info.name)
            return
        with source:
            self._file(path, source, info)

    def _own(self, name: str) -> Path | None:
        """Return the file of the archive that has a name."""
        try:
            path = self._target(name)
        except IntegrityError:
            return None
        return path if path in self._written else None

    def _file(self, path: Path, source: IO[bytes], info: tarfile.TarInfo) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name[:200]}.part")
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        try:
            with open(os.open(part, flags, info.mode & 0o777), "wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
            os.utime(part, (info.mtime, info.mtime))
            os.replace(part, path)  # a file gets its name when it is complete
            self._written.add(path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise

    def links(self) -> None:
        """Make the symbolic links that stay inside of the copy."""
        for path, target, name in self._links:
            depth = len(PurePosixPath(name).parts) - 2
            parts = PurePosixPath(target).parts
            up = 0
            while up < len(parts) and parts[up] == "..":
                up += 1
            inside = parts and parts[0] != "/" and up <= depth and ".." not in parts[up:]
            if not inside or path.exists() or path.is_symlink():
                self.skipped.append(name)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(target)
        self._links = []
