"""Turnstone: a self-hosted turn executor. Markdown in, markdown out; each turn in a machine of its own.

    from turnstone import Turnstone

    with Turnstone() as client, client.sandbox(image="python") as sb:
        print(sb.exec(["python", "-c", "print(6 * 7)"]).stdout)

AsyncTurnstone is the same for asyncio. docs/sdk-python.md is the guide.
"""

from ._async.client import AsyncTurnstone
from ._async.files import AsyncFiles
from ._async.process import AsyncProcess
from ._async.sandbox import AsyncSandbox
from ._async.session import AsyncSession
from ._sync.client import Turnstone
from ._sync.files import Files
from ._sync.process import Process
from ._sync.sandbox import Sandbox
from ._sync.session import Session
from .errors import (
    CanceledError,
    CommandError,
    DeadError,
    DeniedError,
    ExhaustedError,
    IntegrityError,
    InternalError,
    InvalidError,
    Kind,
    NotFoundError,
    TimeoutError,
    TurnstoneError,
    UnavailableError,
)
from .results import Chunk, Command, ExecResult, FileChange, FileInfo, Receipt, Span, Step

__version__ = "0.1.0"

__all__ = [
    "AsyncFiles", "AsyncProcess", "AsyncSandbox", "AsyncSession", "AsyncTurnstone", "CanceledError",
    "Chunk", "Command", "CommandError", "DeadError", "DeniedError", "ExecResult", "ExhaustedError",
    "FileChange", "FileInfo", "Files", "IntegrityError", "InternalError", "InvalidError", "Kind",
    "NotFoundError", "Process", "Receipt", "Sandbox", "Session", "Span", "Step", "TimeoutError",
    "Turnstone", "TurnstoneError", "UnavailableError", "__version__",
]  # fmt: skip
