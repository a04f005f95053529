"""Tar streams: packing files of this machine, and unpacking what a hostile guest sends."""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
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


def unpack(data: IO[bytes], dest: str) -> list[str]:
    """Unpack the one file or folder of a stream to dest, and return what was left out.

    It goes into dest if that is a folder or ends in a slash, otherwise under dest's name. Nothing
    is written outside of it.
    """
    into = dest.endswith(("/", os.sep)) or os.path.isdir(dest)
    folder = Path(dest) if into else Path(dest).parent
    rename = "" if into else Path(dest).name
    folder.mkdir(parents=True, exist_ok=True)
    skipped: list[str] = []
    check = getattr(tarfile, "data_filter", None)
    if check is None:
        raise InvalidError(
            "files.download", dest, "this version of Python cannot unpack archives safely",
            hint="use Python 3.10.12, 3.11.4 or later")  # fmt: skip

    def safe(info: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        first, _, rest = info.name.partition("/")
        if rename:
            info.name = rename + ("/" + rest if rest else "")
            if info.islnk():  # a hard link names another entry of the archive
                info.linkname = rename + "/" + info.linkname.partition("/")[2]
        if not first or first in ("..", "."):
            skipped.append(info.name)
            return None
        try:
            result: tarfile.TarInfo | None = check(info, path)
            return result
        except tarfile.FilterError:
            skipped.append(info.name)
            return None

    try:
        with tarfile.open(fileobj=data, mode="r|") as tar:
            for info in tar:
                allowed = safe(info, str(folder))
                if allowed is not None:
                    tar.extract(allowed, folder, set_attrs=True, filter="data")
    except tarfile.TarError as e:
        raise IntegrityError("files.download", dest, f"the archive is damaged: {e}") from None
    return skipped
