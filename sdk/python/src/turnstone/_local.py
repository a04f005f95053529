"""A server for a machine that has none: turn serve --local, which ends when nobody uses it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

from ._address import Address
from ._deadline import Deadline
from ._hosts import Store
from .errors import TurnstoneError, UnavailableError

_START_TIME = 60.0


def find_turn(named: str | None = None) -> str:
    """Return the path of the program turn: named, of this package's wheel, or of PATH."""
    if named:
        return named
    for scheme in (None, "posix_user"):
        with contextlib.suppress(KeyError):
            folder = sysconfig.get_path("scripts", scheme) if scheme else sysconfig.get_path("scripts")
            path = os.path.join(folder, "turn")
            if os.access(path, os.X_OK):
                return path
    found = shutil.which("turn")
    if found:
        return found
    raise UnavailableError(
        "server.start", "turn", "there is no server, and the program turn is not installed",
        hint="set TURN_HOST and TURN_TOKEN, or install the wheel for this platform or turn itself")  # fmt: skip


def ensure_server(store: Store, turn: str | None, sleep: Callable[[float], None] = time.sleep) -> Address:
    """Return the operator's socket, behind which a server answers. It starts one if none does."""
    store.make()
    address = Address(socket=str(store.path("server.sock")))
    if _answers(address):
        return address
    program = find_turn(turn)
    arguments = [["serve", "--local"], ["serve"]]
    for n, args in enumerate(arguments):
        started = _start(store, program, args)
        deadline = Deadline(_START_TIME)
        while not deadline.passed:
            if _answers(address):
                return address
            status = started.poll()
            if status is not None and status != 0:  # 0: another process serves
                break
            sleep(0.02)
        if started.poll() in (None, 0):
            break
        if n + 1 == len(arguments) or "--local" not in _log(store):
            break
    tail = _log(store).strip().splitlines()[-3:]
    raise UnavailableError(
        "server.start", program, "the server of this machine did not start: " + " ".join(tail)[:600],
        hint=f"run turn serve, and read {store.path('client', 'serve.log')}")  # fmt: skip


def _start(store: Store, program: str, args: list[str]) -> subprocess.Popen[bytes]:
    """Start the server, which outlives this process."""
    env = {k: v for k, v in os.environ.items() if k not in ("TURN_HOST", "TURN_TOKEN")}
    env["TURN_HOME"] = str(store.dir)
    if "--local" not in args:
        env["TURN_SERVER_LISTEN_ADDRESS"] = "off"
    log = os.open(
        store.path("client", "serve.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)  # fmt: skip
    try:
        return subprocess.Popen(
            [program, *args], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
            start_new_session=True, cwd=store.dir)  # fmt: skip
    except OSError as e:
        raise UnavailableError("server.start", program, e.strerror or str(e)) from None
    finally:
        os.close(log)


def _log(store: Store) -> str:
    try:
        return store.path("client", "serve.log").read_text(errors="replace")[-8000:]
    except OSError:
        return ""


def _answers(address: Address) -> bool:
    """Report whether a server of this user listens. One of another user is an error."""
    try:
        address.dial(own=True).close()
    except TurnstoneError as e:
        if isinstance(e, UnavailableError):
            return False
        raise
    return True


def configured_host(directory: Path) -> str:
    """Return host of config.toml, or nothing."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        value = tomllib.loads((directory / "config.toml").read_text()).get("host", "")
    except (OSError, ValueError):
        return ""
    return value if isinstance(value, str) else ""
