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

from .errors import IntegrityError, InvalidError

_SPOOL = 8 << 20


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


def unpack(data: IO[bytes], dest: str, only: str = "") -> list[str]:
    """Unpack the one file or folder of a stream to dest, and return what was left out.

    Without only, which is its name, it may have any: a stream from strangers needs one.
    It goes into dest if that is a folder or ends in a slash, otherwise under dest's name. Nothing
    is written outside of it: links are made last, when no file can follow them any more.
    """
    into = dest.endswith(("/", os.sep)) or os.path.isdir(dest)
    folder = Path(dest) if into else Path(dest).parent
    folder.mkdir(parents=True, exist_ok=True)
    u = _Unpacker(folder.resolve(), "" if into else Path(dest).name, only)
    try:
        with tarfile.open(fileobj=data, mode="r|") as tar:
            for info in tar:
                u.entry(tar, info)
    except (tarfile.TarError, EOFError, ValueError) as e:
        raise IntegrityError("files.download", dest, f"the archive is damaged: {e}") from None
    u.links()
    return u.skipped


class _Unpacker:
    """Writes the entries of an untrusted archive below a folder."""

    def __init__(self, folder: Path, rename: str, only: str) -> None:
        self._folder = folder
        self._rename = rename
        self._only = only
        self._links: list[tuple[Path, str, str]] = []
        self._written: set[Path] = set()
        self.skipped: list[str] = []

    def _target(self, name: str) -> Path | None:
        """Return where an entry belongs; None: outside."""
        parts = PurePosixPath(name).parts
        if not parts or ".." in parts or parts[0] == "/" or "\0" in name:
            return None
        if self._only and parts[0] != self._only:
            return None  # beside what was asked for, where other files of the user are
        path = self._folder.joinpath(self._rename or parts[0], *parts[1:])
        if not path.parent.resolve().is_relative_to(self._folder):
            return None  # by way of a link that was there before
        return path

    def entry(self, tar: tarfile.TarFile, info: tarfile.TarInfo) -> None:
        path = self._target(info.name)
        source: IO[bytes] | None = None
        if path is not None and info.isfile():
            source = tar.extractfile(info)
        elif path is not None and info.islnk():
            first = self._target(info.linkname)
            # hard links become separate files, and lead to files of the archive alone
            if first is not None and first in self._written and first.is_file() and not first.is_symlink():
                source = open(first, "rb")
        elif path is not None and info.isdir():
            path.mkdir(parents=True, exist_ok=True)
            return
        elif path is not None and info.issym():
            self._links.append((path, info.linkname, info.name))
            return
        if path is None or source is None:
            self.skipped.append(info.name)
            return
        with source:
            self._file(path, source, info)

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
