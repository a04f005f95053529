"""What a client has to know of a document before it sends it: a few keys of the front matter."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from .errors import InvalidError

_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_KEY = re.compile(r"(image|cpus|memory|disk|files):[ \t]*(.*)$")


@dataclass
class Front:
    """Keys of the front matter. Node and server check all of them again."""

    image: str = ""
    cpus: int = 0
    memory: int = 0
    disk: int = 0
    files: list[str] = field(default_factory=list[str])


def read_front(text: str) -> Front:
    """Read the front matter as far as it is needed for the placement of the turn."""
    front = Front()
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if not lines or lines[0].rstrip() != "---":
        return front
    key = ""
    for line in lines[1:]:
        if line.rstrip() in ("---", "..."):
            return front
        item = re.match(r"[ \t]*-[ \t]+(.+)$", line)
        if key == "files" and item:
            front.files.append(_scalar(item.group(1)))
            continue
        if line[:1] in (" ", "\t", "#", ""):
            continue
        found = _KEY.match(line)
        key = found.group(1) if found else ""
        if found:
            _set(front, key, found.group(2))
    return Front()  # it has no end, so there is none


def _set(front: Front, key: str, text: str) -> None:
    if key == "files":
        flow = re.fullmatch(r"\[(.*)\][ \t]*(#.*)?", text)
        if flow and flow.group(1).strip():
            front.files += [_scalar(part) for part in flow.group(1).split(",")]
        return
    value = _scalar(text)
    if key == "image":
        front.image = value
    elif key == "cpus" and value.isdigit():
        front.cpus = int(value)
    elif key in ("memory", "disk"):
        try:
            setattr(front, key, parse_size(value))
        except InvalidError:
            pass  # the node says so, with the line


def _scalar(text: str) -> str:
    text = text.strip()
    if text[:1] in ("'", '"'):
        end = text.find(text[0], 1)
        return text[1:end] if end > 0 else text
    return re.sub(r"[ \t]+#.*$", "", text)


def parse_size(size: int | str) -> int:
    """Return the bytes of a size, such as "512MiB"."""
    if isinstance(size, int):
        return size
    found = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?)(?:i?b)?\s*", size.lower())
    try:
        if not found:
            raise ValueError
        return int(float(found.group(1)) * (1 << _UNITS[found.group(2)]))
    except ValueError:
        raise InvalidError(
            "size", repr(size)[:80], "is not a size", hint="write a number and a unit, such as 512MiB") from None  # fmt: skip


def document_files(front: Front, folder: Path | None) -> list[tuple[Path, str]]:
    """Return the files that a document names, which are in its folder, and their destinations."""
    found: list[tuple[Path, str]] = []
    for entry in front.files:
        name, _, dest = entry.rpartition(":")
        if not name:
            name, dest = entry, ""
        if folder is None:
            raise InvalidError(
                "run", f"files: {entry[:200]}", "is a file of the document's folder, which is not known",
                hint="run the document by its path, or say folder=")  # fmt: skip
        path = folder / name
        inside = not Path(name).is_absolute() and path.resolve().is_relative_to(folder.resolve())
        if not inside:
            raise InvalidError(
                "run", f"files: {entry[:200]}", "leaves the document's folder",
                hint="name files in the document's own folder; give others with add=")  # fmt: skip
        found.append((path, dest))
    return found
