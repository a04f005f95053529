"""What operations answer: receipts, steps, commands, results of exec, files."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ._json import is_dict, is_list
from .errors import Kind

StreamName = Literal["stdout", "stderr"]


@dataclass(frozen=True)
class Span:
    """A part of a text, in bytes; end is exclusive. Lines and columns begin with 1; 0: unknown."""

    start: int
    end: int
    line: int = 0
    column: int = 0
    end_line: int = 0
    end_column: int = 0


@dataclass(frozen=True)
class Command:
    """One run of one command."""

    text: str
    language: str
    kind: str = "simple"
    span: Span | None = None  # in the script; None: it is not in the script
    exit_code: int | None = None
    duration: float = 0.0  # seconds
    start: float = 0.0  # seconds since the beginning of the step
    stage: int = 0  # position in a pipeline, from 1
    id: int = 0
    parent: int = -1
    raw: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)


@dataclass(frozen=True)
class Chunk:
    """A part of an output."""

    stream: StreamName
    data: bytes
    text: str = ""
    """The characters that end in data; one that two parts share is in the second. An output that ends in the middle of a
    character has a last chunk with U+FFFD and no data."""


@dataclass(frozen=True)
class ExecResult:
    """The end of a command in a sandbox."""

    exit_code: int
    stdout_bytes: bytes = field(repr=False)
    stderr_bytes: bytes = field(repr=False)
    duration: float  # seconds in the sandbox
    language: str = "bash"
    commands: tuple[Command, ...] = ()
    signal: str = ""  # that ended it
    killed: bool = False
    oom_killed: bool = False
    disk_full: bool = False
    cwd: str = ""  # the shell's directory afterwards, of a script

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and not self.signal

    def __repr__(self) -> str:
        return f"ExecResult(exit_code={self.exit_code}, stdout={_brief(self.stdout)!r}, stderr={_brief(self.stderr)!r})"


def _brief(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "..."


@dataclass(frozen=True)
class FileInfo:
    """A file of a sandbox."""

    path: str
    name: str
    type: str  # file, directory, symlink, fifo, socket, block, char
    size: int
    mode: int
    uid: int
    gid: int
    modified: str
    target: str = ""

    @property
    def is_dir(self) -> bool:
        return self.type == "directory"


@dataclass(frozen=True)
class FileChange:
    """A change below a watched path. kind: created, modified, removed, attributes, overflow."""

    path: str
    kind: str


@dataclass(frozen=True)
class Step:
    """One step of a turn."""

    name: str
    status: str
    exit_code: int | None
    duration: float
    stdout: str
    stderr: str
    line: int
    note: str
    commands: tuple[Command, ...]
    raw: Mapping[str, Any] = field(repr=False)

    @property
    def passed(self) -> bool:
        return self.status == "passed"


@dataclass(frozen=True)
class Receipt:
    """The result of a turn. markdown is the receipt itself, which can be run again."""

    id: str
    result: str  # passed, failed, timeout, error
    markdown: str = field(repr=False)
    steps: tuple[Step, ...] = field(repr=False)
    session: str = ""
    number: int = 0
    branch: str = ""
    error: str = ""
    hint: str = ""
    kind: Kind | None = None  # of error
    duration: float = 0.0
    fs_hash: str = ""
    isolation: str = ""
    raw: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)

    @property
    def passed(self) -> bool:
        return self.result == "passed"

    def __str__(self) -> str:
        return self.markdown or repr(self)  # a sandbox's turn has no document

    def _repr_markdown_(self) -> str:
        """The receipt as text in a fence that nothing in it can close."""
        longest = max((len(run) for run in re.findall(r"`+", self.markdown)), default=0)
        fence = "`" * max(3, longest + 1)
        return f"{fence}markdown\n{self.markdown.rstrip()}\n{fence}\n"

    def _repr_html_(self) -> str:
        """A summary with the outputs. All of it is escaped."""
        return "".join(self._html())

    def _html(self) -> Iterator[str]:
        where = f"{self.session}@{self.number}" if self.session else self.id
        yield f"<div><strong>{html.escape(self.result)}</strong> "
        yield f"{html.escape(where)} in {self.duration:.1f} s"
        if self.error:
            yield f"<pre>{html.escape(self.error)}\n{html.escape(self.hint)}</pre>"
        for n, s in enumerate(self.steps, 1):
            opened = "" if s.passed else " open"
            yield f"<details{opened}><summary>{n}. {html.escape(s.name)}: {html.escape(s.status)}, "
            yield f"{s.duration:.1f} s</summary>"
            for name, text in (("stdout", s.stdout), ("stderr", s.stderr)):
                if text:
                    yield f"<div>{name}</div><pre>{html.escape(text)}</pre>"
            yield "</details>"
        yield f"<details><summary>receipt</summary><pre>{html.escape(self.markdown)}</pre></details></div>"


def _text(raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key)
    return value if isinstance(value, str) else ""


def _number(raw: Mapping[str, Any], key: str, default: float = 0) -> float:
    value = raw.get(key)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else default


def _code(raw: Mapping[str, Any], key: str) -> int | None:
    value = raw.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _dict(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = raw.get(key)
    return value if is_dict(value) else {}


def _list(raw: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = raw.get(key)
    return [v for v in value if is_dict(v)] if is_list(value) else []


def command_of_report(raw: Mapping[str, Any]) -> Command:
    """Return a command of a turn's report."""
    place, range_ = _dict(raw, "place"), _dict(raw, "span")
    span = None
    if range_ or place:
        span = Span(
            int(_number(range_, "from")), int(_number(range_, "to")), int(_number(place, "line")),
            int(_number(place, "column")), int(_number(place, "end_line")), int(_number(place, "end_column")))  # fmt: skip
    return Command(
        _text(raw, "text"), _text(raw, "language"), _text(raw, "kind"), span, _code(raw, "exit_code"),
        _number(raw, "duration_ms") / 1000, _number(raw, "start_ms") / 1000, int(_number(raw, "stage")),
        int(_number(raw, "id")), int(_number(raw, "parent", -1)), raw)  # fmt: skip


def command_of_record(raw: Mapping[str, Any]) -> Command:
    """Return a command that the shell of a sandbox recorded. Its times are nanoseconds."""
    s = _dict(raw, "span")
    span = None
    if s:
        span = Span(*(int(_number(s, k)) for k in ("start", "end", "line", "column", "endLine", "endColumn")))
    return Command(
        _text(raw, "text"), _text(raw, "language"), _text(raw, "kind"), span, _code(raw, "exitCode"),
        _number(raw, "duration") / 1e9, _number(raw, "start") / 1e9, int(_number(raw, "stage")),
        int(_number(raw, "id")), int(_number(raw, "parent", -1)), raw)  # fmt: skip


def step_of(raw: Mapping[str, Any]) -> Step:
    return Step(
        _text(raw, "name"), _text(raw, "status"), _code(raw, "exit_code"),
        _number(raw, "duration_ms") / 1000, _text(raw, "stdout"), _text(raw, "stderr"),
        int(_number(raw, "line")), _text(raw, "note"),
        tuple(command_of_report(c) for c in _list(raw, "commands")), raw)  # fmt: skip


def receipt_of(raw: Mapping[str, Any], kind: str = "") -> Receipt:
    """Return the receipt of a turn's report."""
    try:
        known = Kind(kind) if kind else None
    except ValueError:
        known = Kind.INTERNAL
    return Receipt(
        _text(raw, "id"), _text(raw, "result"), _text(raw, "receipt"),
        tuple(step_of(s) for s in _list(raw, "steps")), _text(raw, "session"),
        int(_number(raw, "number")), _text(raw, "branch"), _text(raw, "error"), _text(raw, "hint"), known,
        _number(raw, "duration_ms") / 1000, _text(raw, "fs_hash"), _text(raw, "isolation"), raw)  # fmt: skip


def file_of(raw: Mapping[str, Any]) -> FileInfo:
    return FileInfo(
        _text(raw, "path"), _text(raw, "name"), _text(raw, "type"), int(_number(raw, "size")),
        int(_number(raw, "mode")), int(_number(raw, "uid")), int(_number(raw, "gid")),
        _text(raw, "modified"), _text(raw, "target"))  # fmt: skip
