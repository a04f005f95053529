"""What a client keeps of servers in the state directory, as turn does: docs/hosts.md."""

from __future__ import annotations

import base64
import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import re
import stat
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ._json import is_dict, is_list
from . import _attest
from ._address import Address
from ._attest import Chain, Pinned, Pins, Rooted
from ._sshkey import PublicKey, fingerprint, strict_base64
from ._noise import KeyPair
from .errors import InvalidError, NotFoundError, TurnstoneError, UnavailableError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MAX_FILE = 1 << 20
_MAX_TOKEN = 16 << 10
_MAX_FORMER = 64
_MAX_NODES = 256
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LOCAL, AUTO = "local", "auto"


def state_directory(path: str | os.PathLike[str] | None = None) -> Path:
    """Return the state directory: path, TURN_HOME, or that of turn."""
    named = os.fspath(path) if path else os.environ.get("TURN_HOME", "")
    if named:
        return Path(named).absolute()
    data = os.environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(data):
        return Path(data) / "turnstone"
    return Path.home() / ".local" / "share" / "turnstone"


@dataclass
class Root:
    """The operator's root of a host, and what the client has seen of it."""

    key: str
    epoch: int
    former: list[str] = field(default_factory=list[str])
    nodes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


@dataclass
class Host:
    """A server that the client knows."""

    url: str
    token_file: str = ""
    seal_file: str = ""
    nodes: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    root: Root | None = None

    @property
    def pinned(self) -> bool:
        return bool(self.nodes) or self.root is not None


@dataclass
class HostList:
    """The content of hosts.toml."""

    current: str = ""
    hosts: dict[str, Host] = field(default_factory=dict[str, Host])

    @classmethod
    def parse(cls, text: str) -> HostList:
        """Read hosts.toml, which may be damaged. The error is a ValueError."""
        raw = tomllib.loads(text)
        known = cls(_take(raw, "current", str, ""))
        for name, h in _take(raw, "hosts", dict, {}).items():
            if not _NAME.fullmatch(name) or name in (LOCAL, AUTO) or not is_dict(h):
                raise ValueError(f"no host is called {name[:80]!r}")
            known.hosts[name] = _parse_host(name, h)
        _nothing_left(raw, "hosts.toml")
        if known.current and known.current not in (LOCAL, AUTO) and known.current not in known.hosts:
            raise ValueError(f"current: there is no host {known.current[:80]!r}")
        return known

    def encode(self) -> str:
        lines = ["# Servers that turn knows: see turn host --help."]
        if self.current:
            lines.append(f"current = {_quoted(self.current)}")
        for name in sorted(self.hosts):
            h = self.hosts[name]
            at = f"hosts.{_quoted(name)}"
            lines += ["", f"[{at}]", f"url = {_quoted(h.url)}"]
            for key in ("token_file", "seal_file"):
                if getattr(h, key):
                    lines.append(f"{key} = {_quoted(getattr(h, key))}")
            if h.nodes:
                lines.append(f"[{at}.nodes]")
                lines += [f"{_quoted(n)} = {json.dumps(h.nodes[n])}" for n in sorted(h.nodes)]
            if h.root is not None:
                lines += [f"[{at}.root]", f"key = {_quoted(h.root.key)}", f"epoch = {h.root.epoch}"]
                if h.root.former:
                    lines.append(f"former = {json.dumps(h.root.former)}")
                for n in h.root.nodes:
                    lines.append(f"[[{at}.root.nodes]]")
                    lines += [f"{k} = {_toml(v)}" for k, v in n.items() if v != ""]
        return "\n".join(lines) + "\n"

    def find(self, name_or_url: str) -> tuple[str, Host]:
        if name_or_url in self.hosts:
            return name_or_url, self.hosts[name_or_url]
        for name in sorted(self.hosts):
            if self.hosts[name].url == name_or_url:
                return name, self.hosts[name]
        hint = "list the hosts with turn host ls, or add one with turn host add NAME URL"
        raise NotFoundError("host.find", f"host {name_or_url[:200]}", "is not known", hint=hint)

    def update(self, r: Root) -> bool:
        """Bring r up to what the other hosts know, and report whether that is more."""
        changed = False
        for _ in range(len(self.hosts) + 1):  # each can lead to another one
            for h in self.hosts.values():
                o = h.root
                if o is None or o is r:
                    continue
                if o.key == r.key and o.epoch > r.epoch:
                    r.epoch, changed = o.epoch, True
                elif r.key in o.former and o.key not in r.former:
                    _follow(r, o.key, o.former[o.former.index(r.key) :])
                    r.epoch, changed = max(r.epoch, o.epoch), True
        return changed

    def learn(self, h: Host, chain: Chain, now: datetime.datetime) -> bool:
        """Check what a node of h shows, note it for all hosts of its roots, and report news."""
        assert h.root is not None
        changed = self.update(h.root)
        _believe(h.root, chain, now)
        moved = [h.root]
        for other in self.hosts.values():
            o = other.root
            if o is None or o is h.root or o.key not in chain.roots:
                continue
            _believe(o, chain, now)
            moved.append(o)
        signer, epoch = chain.certificate.signer, chain.certificate.epoch
        for o in moved:
            if o.key != signer:
                _follow(o, signer, chain.roots[chain.roots.index(o.key) : -1])
                changed = True
            changed = changed or o.epoch != epoch
            o.epoch = epoch
        return _note(h.root, chain) or changed


def _believe(r: Root, chain: Chain, now: datetime.datetime) -> None:
    if chain.certificate.signer in r.former:
        raise _attest.refuse(
            "other_root", f"is signed by the root {fingerprint(chain.certificate.signer)}, which "
            f"this client has seen replaced by {fingerprint(r.key)}")  # fmt: skip
    chain.check(r.key, r.epoch, now)


def _follow(r: Root, key: str, former: list[str]) -> None:
    r.former = ([f for f in r.former if f not in former] + former)[-_MAX_FORMER:]
    r.key = key


def _note(r: Root, chain: Chain) -> bool:
    c = chain.certificate
    one = {"name": c.node, "key": c.key, "epoch": c.epoch, "after": c.time, "before": c.expires}
    kept: list[dict[str, Any]] = []
    for o in r.nodes:
        same = o["key"] == c.key and o.get("name", "") == c.node
        if same and not (o["before"] < one["after"] or one["before"] < o["after"]):
            one["after"] = min(o["after"], one["after"])
            one["before"] = max(o["before"], one["before"])
        else:
            kept.append(o)
    if len(kept) >= _MAX_NODES:
        kept.remove(min(kept, key=lambda o: (o["epoch"], o["before"])))
    kept.append(one)
    kept.sort(key=lambda o: (o.get("name", ""), o["after"], o["key"]))
    known = [{**o, "name": o.get("name", "")} for o in r.nodes]
    if [{**o, "name": o.get("name", "")} for o in kept] == known:
        return False
    r.nodes = kept
    return True


def _take(raw: dict[str, Any], key: str, kind: type, default: Any) -> Any:
    value = raw.pop(key, default)
    if type(value) is not kind:
        raise ValueError(f"{key}: it is of another type")
    return value


def _nothing_left(raw: dict[str, Any], where: str) -> None:
    if raw:
        raise ValueError(f"{where}: the key {next(iter(raw))[:80]!r} is not known")


def _parse_host(name: str, raw: dict[str, Any]) -> Host:
    h = Host(
        _take(raw, "url", str, ""), _take(raw, "token_file", str, ""), _take(raw, "seal_file", str, ""))  # fmt: skip
    Address.parse(h.url)
    for node, keys in _take(raw, "nodes", dict, {}).items():
        if not is_list(keys) or not 1 <= len(keys) <= 8:
            raise ValueError(f"hosts.{name}.nodes.{node[:80]}: there are not 1 to 8 keys")
        h.nodes[node] = [PublicKey(str(k)).text for k in keys]
    if "root" in raw:
        r = _take(raw, "root", dict, {})
        h.root = Root(
            PublicKey(_take(r, "key", str, "")).text, _take(r, "epoch", int, 0),
            [PublicKey(str(k)).text for k in _take(r, "former", list, [])], _take(r, "nodes", list, []))  # fmt: skip
        for n in h.root.nodes:
            PublicKey(str(n["key"]))
            if not isinstance(n["after"], datetime.datetime) or n["before"] <= n["after"]:
                raise ValueError("root.nodes: a certificate has no possible time")
        _nothing_left(r, f"hosts.{name}.root")
        if h.nodes:
            raise ValueError(f"hosts.{name}.nodes: they count beside the root: remove one of both")
    _nothing_left(raw, f"hosts.{name}")
    return h


def _quoted(text: str) -> str:
    return json.dumps(text)


def _toml(value: Any) -> str:
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return json.dumps(value)


class Store:
    """The files of a client. It is safe for concurrent use, also by several processes."""

    def __init__(self, directory: Path) -> None:
        self.dir = directory

    def path(self, *parts: str) -> Path:
        return self.dir.joinpath(*parts)

    def make(self) -> None:
        """Create the state directory, private to its user."""
        try:
            self.dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path("client").mkdir(mode=0o700, exist_ok=True)
            info = self.dir.stat()
        except OSError as e:
            raise UnavailableError(
                "home.open", str(self.dir), e.strerror or str(e),
                hint="set TURN_HOME to a directory that you can write") from None  # fmt: skip
        if info.st_mode & 0o022 or info.st_uid not in (os.geteuid(), 0):
            raise InvalidError(
                "home.open", str(self.dir), "belongs to another user, or others can write it",
                hint=f"chmod go-w {self.dir}")  # fmt: skip

    def load(self) -> HostList:
        path = self.path("hosts.toml")
        try:
            text = read_own(path, private=False)
            return HostList.parse(text.decode())
        except FileNotFoundError:
            return HostList()
        except (ValueError, OSError, KeyError, TypeError, TurnstoneError) as e:
            raise InvalidError(
                "host.load", str(path), str(e)[:300],
                hint="correct the file, or remove it and add the hosts again") from None  # fmt: skip

    @contextlib.contextmanager
    def lock(self) -> Generator[None, None, None]:
        self.make()
        f = os.open(self.path("client", "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + 30
            while True:
                try:
                    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise UnavailableError(
                            "home.lock", str(self.dir), "another process holds the lock",
                            hint="end the turn process that holds it") from None  # fmt: skip
                    time.sleep(0.02)
            yield
        finally:
            os.close(f)

    def client_key(self) -> KeyPair:
        """Return the client's key, which is made on first use."""
        path = self.path("client", "key")
        with contextlib.suppress(FileNotFoundError):
            return _load_key(path)
        with self.lock():
            with contextlib.suppress(FileNotFoundError):
                return _load_key(path)  # another process was faster
            key = KeyPair.generate()
            write_private(path, base64.b64encode(key.private_bytes()) + b"\n")
            return key

    def token(self, h: Host) -> str:
        if not h.token_file:
            return ""
        try:
            text = read_own(Path(h.token_file), private=True).decode("ascii", "replace")
        except FileNotFoundError:
            raise InvalidError(
                "host.token", h.token_file, "does not exist",
                hint="write a token of turn token create into it (mode 0600), or set TURN_TOKEN") from None  # fmt: skip
        return check_token(text.strip(), h.token_file)

    def seal(self, h: Host) -> bytes | None:
        """Return the key that seals this client's sessions at the host."""
        if not h.seal_file:
            return None
        try:
            raw = strict_base64(read_own(Path(h.seal_file), private=True).decode().removesuffix("\n"))
            if len(raw) == 32:
                return raw
        except (ValueError, FileNotFoundError):
            pass
        raise InvalidError(
            "host.seal", h.seal_file, "the key that seals your sessions is lost or damaged",
            hint="restore the file from a backup; without it nobody can read these sessions")  # fmt: skip

    def revoked(self) -> frozenset[str]:
        """Return the fingerprints of revoked keys."""
        try:
            text = self.path("revoked").read_text()
        except FileNotFoundError:
            return frozenset()
        all_ids: set[str] = set()
        for n, line in enumerate(text.splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            try:
                if words[0].startswith("SHA256:"):
                    if len(strict_base64(words[0].removeprefix("SHA256:") + "=")) != 32:
                        raise ValueError("no fingerprint")
                    all_ids.add(words[0])
                else:
                    all_ids.add(PublicKey(" ".join(words[:2])).fingerprint)
            except ValueError as e:
                raise InvalidError("key.trust", f"{self.path('revoked')}:{n}", str(e)) from None
        return frozenset(all_ids)

    def pins(self, address: Address, name: str, h: Host, node: str, certificate: bytes) -> Pins:
        """Return who may sign the statement of a node, or of a sandbox of any node."""
        revoked = self.revoked()
        keys = {k for n, ks in h.nodes.items() if not node or n == node for k in ks}
        if address.local:
            with contextlib.suppress(FileNotFoundError, ValueError):
                words = self.path("keys", "node.pub").read_text().split()
                keys.add(PublicKey(" ".join(words[:2])).text)
        pinned = Pinned(frozenset(keys), revoked)
        if h.root is None:
            return pinned
        return self._certified(pinned, name, h, node, certificate)

    def _certified(self, pinned: Pinned, name: str, h: Host, node: str, certificate: bytes) -> Pins:
        assert h.root is not None
        r = Rooted(pinned, node)
        if not certificate:
            r.why = _attest.refuse(
                "uncertified", "is missing, and this client trusts nodes of the root "
                f"{fingerprint(h.root.key)} only")  # fmt: skip
            return r
        try:
            r.chain = Chain.open(certificate)
        except TurnstoneError as e:
            r.why = e
            return r
        now = datetime.datetime.now(datetime.timezone.utc)

        def learn(known: HostList) -> bool:
            assert r.chain is not None and h.root is not None
            one = known.hosts.get(name)
            if one is None or one.root is None or one.url != h.url:
                one = Host(h.url, root=Root(h.root.key, h.root.epoch, list(h.root.former)))
            assert one.root is not None
            changed = known.update(one.root)
            roots = r.chain.roots
            if one.root.key in roots:
                roots = roots[roots.index(one.root.key) :]
            try:
                for key in [*roots, one.root.key]:
                    if PublicKey(key).fingerprint in pinned.revoked:
                        raise _attest.refuse(
                            "root_revoked", f"is of the root {fingerprint(key)}, which is "
                            "revoked here")  # fmt: skip
                return known.learn(one, r.chain, now) or changed
            except TurnstoneError as e:
                r.why = e
                return False

        if learn(self.load()) and r.why is None:
            with self.lock():  # another process may have seen a later epoch
                known = self.load()
                if learn(known):
                    write_private(self.path("hosts.toml"), known.encode().encode())
        return r

    def nodes(self, address: Address) -> list[dict[str, str]]:
        """Return the keys of nodes that this client met. A wrong one costs a round trip."""
        try:
            raw = json.loads(read_own(self._book(address), private=False))
            return [
                {k: str(n[k]) for k in ("node", "key", "tenant")} for n in raw
                if len(strict_base64(str(n["key"]))) == 32
            ][:6]  # fmt: skip
        except (OSError, ValueError, TypeError, KeyError, TurnstoneError):
            return []

    def remember(self, address: Address, nodes: list[dict[str, str]]) -> None:
        with contextlib.suppress(OSError, TurnstoneError):
            self._book(address).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(self._book(address), json.dumps(nodes).encode() + b"\n")

    def _book(self, address: Address) -> Path:
        name = hashlib.sha256(str(address).encode()).hexdigest()[:16]
        return self.path("client", "nodes", name + ".json")


def check_token(token: str, name: str) -> str:
    if not token or len(token) > _MAX_TOKEN or any(c <= " " or c > "~" for c in token):
        raise InvalidError(
            "host.token", name, "is too long, empty, or has characters that no token has",
            hint="set TURN_TOKEN to what turn token create printed")  # fmt: skip
    return token


def _load_key(path: Path) -> KeyPair:
    try:
        raw = strict_base64(read_own(path, private=True).decode().removesuffix("\n"))
        return KeyPair(raw)
    except ValueError:
        raise InvalidError(
            "host.key", str(path), "is damaged: it is not base64 of 32 bytes",
            hint="restore the file, or remove it: sessions of the old key are then lost to this client") from None  # fmt: skip


def read_own(path: Path, *, private: bool) -> bytes:
    """Read a regular file that others cannot write or, if it is private, read."""
    f = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(f, "rb") as file:
        info = os.fstat(f)
        wrong = 0o077 if private else 0o022
        if not stat.S_ISREG(info.st_mode):
            raise InvalidError("key.load", str(path), "is not a regular file")
        if info.st_mode & wrong or info.st_uid not in (os.geteuid(), 0):
            raise InvalidError(
                "key.load", str(path), f"has mode {stat.S_IMODE(info.st_mode):04o}, or another owner",
                hint=f"make it a file that only you can use: chmod 600 {path}")  # fmt: skip
        return file.read(_MAX_FILE)


def write_private(path: Path, data: bytes) -> None:
    """Write a file of mode 0600 atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    f = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(f, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(f)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
