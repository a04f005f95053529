"""The client: one context, whose sandboxes and turns follow each other."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from .. import _local
from .._address import Address
from .._attest import AnyNode
from .._deadline import NEVER, Deadline
from .._document import document_files, parse_size, read_front
from .._hosts import AUTO, LOCAL, Host, Store, state_directory
from .._noise import KeyPair
from .._rt_async import Lock, at_exit, blocking, not_at_exit
from ..errors import DeadError, InvalidError, NotFoundError, TurnstoneError, UnavailableError
from ..results import Receipt
from .sandbox import AsyncSandbox
from .server import AsyncServer, Offer, Options
from .session import AsyncSession, Progress, decode
from .turns import AsyncTurn
from .wire import AsyncWire

T = TypeVar("T")
_TEMPLATE = frozenset("abcdefghijklmnopqrstuvwxyz0123456789._-")
_NODE_TIME = 60.0
_DEFAULT = "base"  # the template of sandboxes whose caller names none
_log = logging.getLogger("turnstone")
Files = Mapping[str, bytes | str | Path]


class AsyncTurnstone:
    """A client of a server, or of this machine, on which it starts one.

    Without arguments it uses TURN_HOST and TURN_TOKEN, else the host of hosts.toml, else the
    server of this machine. One client is one context: without session, and without TURN_SESSION, it
    makes a session with a name of its own when it first needs one.

    host is an address or the name of a host; token is a token of it; home is the state directory;
    key is the client's private X25519 key of 32 bytes, in place of the one in the state directory;
    turn is the path of the program turn.
    """

    def __init__(
        self, host: str | None = None, *, token: str | None = None, session: str | None = None,
        context_id: str | None = None, branch: str = "", home: str | os.PathLike[str] | None = None,
        key: bytes | None = None, turn: str | None = None, timeout: float | None = None,
    ) -> None:  # fmt: skip
        self._host = host if host is not None else os.environ.get("TURN_HOST", "")
        self._token = token if token is not None else os.environ.get("TURN_TOKEN", "").strip()
        if session and context_id and session != context_id:
            raise InvalidError("client", "session and context_id", "are two names of one session")
        self._session = session or context_id or os.environ.get("TURN_SESSION", "")
        self._named = bool(self._session)  # and may have another template than the default
        self._branch = branch
        self._built: set[str] = set()  # templates that were built when a sandbox of them was made
        self._store = Store(state_directory(home))
        self._key = KeyPair(key) if key is not None else None
        self._turn = turn
        self._timeout = timeout
        self._server: AsyncServer | None = None
        self._host_name = ""
        self._lock = Lock()
        self._nodes: dict[str, AsyncWire] = {}
        self._node_lock = Lock()
        self._open: dict[str, AsyncSandbox] = {}
        self._closed = False
        self._at_exit = at_exit(self._end_at_exit)

    # the server

    async def server(self) -> AsyncServer:
        """Return the server. The first call finds it, or starts the one of this machine."""
        async with self._lock:
            if self._closed:
                raise UnavailableError("client", "the client", "is closed")
            if self._server is None:
                address, host = await blocking(self._find)
                self._server = AsyncServer(await blocking(self._options, address, host))
                if self._server.operator:
                    await self._wait_for_node(self._server)
            return self._server

    def _find(self) -> tuple[Address, Host]:
        known = self._store.load()
        name = self._host or known.current or _local.configured_host(self._store.dir)
        if name in ("", LOCAL, AUTO):
            return _local.ensure_server(self._store, self._turn), Host("")
        if name in known.hosts:
            self._host_name = name
            return Address.parse(known.hosts[name].url), known.hosts[name]
        if ":" not in name:
            known.find(name)
        address = Address.parse(name)
        try:
            self._host_name, host = known.find(str(address))
        except NotFoundError:
            if not address.local:
                raise  # nobody could vouch for its nodes
            host = Host(name)
        return address, host

    def _options(self, address: Address, host: Host) -> Options:
        key = self._key or self._store.client_key()
        if address.socket and not host.pinned:
            return Options(address, key, lambda node, certificate: AnyNode(), lambda: "", own=True)
        name = self._host_name

        def token() -> str:
            return self._token or self._store.token(host)

        return Options(
            address, key,
            lambda node, certificate: self._store.pins(address, name, host, node, certificate),
            token, seal=lambda: self._store.seal(host), nodes=lambda: self._store.nodes(address),
            remember=lambda nodes: self._store.remember(address, nodes))  # fmt: skip

    async def _wait_for_node(self, server: AsyncServer) -> None:
        """Wait until the node of a server that was just started is there."""
        from .._rt_async import sleep

        bound = Deadline(_NODE_TIME)
        while True:
            try:
                if (await server.call("ServerService/ListNodes", {}, bound)).get("nodes"):
                    return
            except TurnstoneError as e:
                if not e.retryable:
                    return
            if bound.passed:
                return  # what needs a node says so
            await sleep(0.05)

    def trusted(self) -> list[str]:
        """Return the keys of the host's nodes that this client trusts, for verifications."""
        if not self._host_name:
            return []
        host = self._store.load().hosts.get(self._host_name)
        if host is None:
            return []
        found = [f"node={k}" for ks in host.nodes.values() for k in ks]
        if host.root is not None:
            found += [f"node={n['key']}" for n in host.root.nodes if n["epoch"] >= host.root.epoch]
        return found

    async def public_key(self) -> bytes:
        """The client's public key, which owns what it makes."""
        return (await self.server()).public_key

    # nodes

    async def at_node(
        self, f: Callable[[AsyncWire], Awaitable[T]], node: str = "", deadline: Deadline = NEVER
    ) -> T:
        """Run an operation at a node, and at other nodes if it does not know what it is about."""
        try:
            return await self._at(f, node, deadline)
        except NotFoundError:
            if node:
                raise
            unknown = True
            failed: NotFoundError | None = None
            for name in await self._node_names(deadline):
                try:
                    return await self._at(f, name, deadline)
                except NotFoundError as e:
                    failed = failed or e
                    unknown = False
            if unknown or failed is None:
                raise
            raise failed from None

    async def _at(
        self, f: Callable[[AsyncWire], Awaitable[T]], node: str, deadline: Deadline
    ) -> T:
        server = await self.server()
        async with self._node_lock:
            wire = self._nodes.get(node)
            if wire is None or not wire.alive:
                wire, name = await server.node_wire(node, deadline)
                self._nodes[node] = wire
                self._nodes.setdefault(name, wire)
        return await f(wire)

    async def _node_names(self, deadline: Deadline) -> list[str]:
        server = await self.server()
        try:
            a = await server.call("ServerService/ListNodes", {}, deadline)
        except TurnstoneError:
            return []  # such as of a token that may not list nodes
        names = [str(n.get("name", "")) for n in a.get("nodes", [])]
        return names if len(names) > 1 else []

    # the context

    @property
    def session_name(self) -> str:
        """The session of this client, whose name is made when it is first needed."""
        if not self._session:
            self._session = f"py-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        return self._session

    def session(self, name: str | None = None) -> AsyncSession:
        """Return a session, by default that of this client."""
        return AsyncSession(self, name or self.session_name)

    async def sessions(self) -> list[dict[str, Any]]:
        """Return the sessions that this client may use."""
        server = await self.server()
        a = await server.call("ServerService/ListNodes", {}) if server.operator else {}
        names = [str(n.get("name", "")) for n in a.get("nodes", [])] or [""]
        found: list[dict[str, Any]] = []
        session = AsyncSession(self, "")
        for name in names:
            found += decode(await session.data("list", {}, "report", node=name)) or []
        return found

    # sandboxes

    async def _create(
        self, image: str, name: str, session: str, branch: str, env: Mapping[str, str] | None, cwd: str,
        cpus: int, memory: int | str, disk: int | str, network: Any, metadata: Mapping[str, str] | None,
        ttl: float | None, substrate: str, live: bool, snapshot: str, deadline: Deadline,
    ) -> AsyncSandbox:  # fmt: skip
        server = await self.server()
        client = server.asker()
        request: dict[str, Any] = {
            "idempotencyKey": secrets.token_hex(16), "name": name, "contextId": session, "branch": branch,
            "env": dict(env or {}), "cwd": cwd, "metadata": dict(metadata or {}), "timeout": ttl,
            "substrate": substrate, "live": live, "client": client, "network": _network(network),
        }  # fmt: skip
        if cpus or memory or disk:
            machine = {"cpus": cpus, "memory": parse_size(memory), "disk": parse_size(disk)}
            request["machine"] = {k: v for k, v in machine.items() if v}
        if snapshot:
            request["snapshotId"] = snapshot
        elif image:
            request["template" if set(image) <= _TEMPLATE else "image"] = image
        request = {k: v for k, v in request.items() if v not in (None, "", {}, False)}
        if not snapshot:
            named = self._named if session == self._session else session != ""
            self._named |= bool(image)
            await self._say_if_built(server, image or ("" if named else _DEFAULT), deadline)
        a = await server.call("SandboxService/CreateSandbox", request, deadline)
        info = a.get("sandbox", {})
        offer = Offer(a.get("channel", {}), str(info.get("sandboxId", "")), client["nonce"])
        return self.adopt(AsyncSandbox(self, info, offer, branch))

    async def _say_if_built(self, server: AsyncServer, image: str, deadline: Deadline) -> None:
        """Log that a sandbox waits for its template: no answer comes while the server builds it."""
        if not image or image in self._built:
            return
        template = set(image) <= _TEMPLATE
        try:
            a = await server.call("TemplateService/GetTemplate", {"template": image}, deadline)
        except NotFoundError:
            if template:
                return  # the creation says so
        except TurnstoneError as e:
            if e.retryable:
                raise
            return  # such as that of a token that may not see templates
        else:
            if a.get("template", {}).get("state") == "TEMPLATE_STATE_BUILT":
                self._built.add(image)
                return
        if template:
            _log.warning(
                "template %s is not built yet: the server builds it, which takes some minutes", image)  # fmt: skip
        else:
            _log.warning(
                "image %s is not here yet: the server pulls it and prepares it, which takes some minutes",
                image)  # fmt: skip

    def adopt(self, sandbox: AsyncSandbox) -> AsyncSandbox:
        """Note a sandbox that this client ends when it is closed."""
        self._open[sandbox.id] = sandbox
        return sandbox

    def release(self, sandbox: AsyncSandbox) -> None:
        self._open.pop(sandbox.id, None)

    def sandbox(
        self, image: str = "", *, name: str = "", session: str | None = None,
        context_id: str | None = None, branch: str = "", env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None, cwd: str = "", cpus: int = 0, memory: int | str = 0,
        disk: int | str = 0, network: bool | Mapping[str, Any] | None = None,
        metadata: Mapping[str, str] | None = None, ttl: float | None = None, files: Files | None = None,
        add: Mapping[str | Path, str] | None = None, substrate: str = "", live: bool = False,
        snapshot: str = "", timeout: float | None = None,
    ) -> AsyncSandboxMaker:  # fmt: skip
        """Make a sandbox that begins on the head of this client's session.

        It is awaited, or used in async with, which closes it: its session keeps a turn. image is a
        template or an image's reference. files are written into it, by their paths in the sandbox;
        add copies files and folders of this machine, each to a path in the sandbox. session=""
        makes a sandbox of no session.
        """
        wanted = session if session is not None else context_id
        session_name = self.session_name if wanted is None else wanted
        own = wanted is None or session_name == self._session
        chosen = branch or (self._branch if own else "")

        async def make() -> AsyncSandbox:
            deadline = Deadline(timeout if timeout is not None else self._timeout)
            s = await self._create(
                image, name, session_name, chosen, env, cwd, cpus, memory, disk, network, metadata, ttl,
                substrate, live, snapshot, deadline)  # fmt: skip
            try:
                if secrets:
                    pairs = [f"{k}={v}" for k, v in secrets.items()]
                    await (await s.wire(deadline)).call("Sandbox.addSecrets", {"secrets": pairs}, deadline)
                for path, content in (files or {}).items():
                    if isinstance(content, Path):
                        await s.files.upload(content, path)
                    else:
                        await s.files.write(path, content)
                for source, dest in (add or {}).items():
                    await s.files.upload(source, dest)
            except BaseException:
                with contextlib.suppress(TurnstoneError):
                    await s.close(discard=True)
                raise
            return s

        return AsyncSandboxMaker(make)

    async def get_sandbox(self, ref: str) -> AsyncSandbox:
        """Return a sandbox that exists, by its ID or its name. It is not closed with this client."""
        server = await self.server()
        if ref.startswith("sb_"):
            a = await server.call("SandboxService/GetSandbox", {"sandboxId": ref})
            return AsyncSandbox(self, a.get("sandbox", {}), None)
        for info in await self.list_sandboxes({"name": ref}):
            if info.get("state") not in ("SANDBOX_STATE_STOPPED", "SANDBOX_STATE_FAILED"):
                return AsyncSandbox(self, info, None)
        raise NotFoundError("sandbox.find", f"sandbox {ref[:80]}", "no such sandbox")

    async def list_sandboxes(self, filter: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return the sandboxes that were not removed: messages Sandbox of docs/api.md."""
        server = await self.server()
        found: list[dict[str, Any]] = []
        token = ""
        for _ in range(100):
            page: dict[str, Any] = {"size": 100, "token": token}
            a = await server.call(
                "SandboxService/ListSandboxes", {"page": page, "filter": dict(filter or {})})  # fmt: skip
            found += [s for s in a.get("sandboxes", []) if not s.get("removed")]
            token = str(a.get("nextPageToken", ""))
            if not token:
                break
        return found

    # turns

    async def run(
        self, document: str | os.PathLike[str], *, session: str | None = None,
        context_id: str | None = None, branch: str = "", image: str = "",
        env: Mapping[str, str] | None = None, secrets: Mapping[str, str] | None = None,
        folder: str | os.PathLike[str] | None = None, add: Mapping[str | Path, str] | None = None,
        cpus: int = 0, memory: int | str = 0, disk: int | str = 0, network: bool | None = None,
        allow: list[str] | None = None, deny: list[str] | None = None, home: str = "",
        lifetime: str = "", checkpoint: str = "", deterministic: bool = False, seed: int | None = None,
        timeout: float | None = None, progress: Progress | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Receipt:  # fmt: skip
        """Run a document as a turn, and return its receipt.

        document is markdown; a path (os.PathLike) is read, and its files: begin in its folder. A
        turn that fails has a receipt too: see its passed and result. timeout is the time limit of
        the turn. progress is called with each line of the turn's journal. The end of the caller's
        task, or Ctrl-C, cancels the turn.
        """
        name, base = "document.md", Path(folder) if folder is not None else None
        if isinstance(document, str):
            text = document
        else:
            path = Path(document)
            text, name, base = path.read_text(), path.name, base or path.parent
        front = read_front(text)
        given = session if session is not None else context_id
        target = self.session_name if given is None else given
        chosen = branch or (self._branch if given is None else "")
        more = [(Path(p), dest) for p, dest in (add or {}).items()]
        wanted: dict[str, Any] = {
            "image": image, "env": [f"{k}={v}" for k, v in (env or {}).items()],
            "secrets": [f"{k}={v}" for k, v in (secrets or {}).items()], "cpus": cpus,
            "memory": parse_size(memory), "disk": parse_size(disk), "session": target, "branch": chosen,
            "home": home, "lifetime": lifetime, "checkpoint": checkpoint, "deterministic": deterministic,
            "timeout": int(timeout * 1e9) if timeout else 0,
        }  # fmt: skip
        wanted = {k: v for k, v in wanted.items() if v}
        if network is not None:
            wanted["network"] = network
        if allow or deny:
            wanted["rules"] = {"allow": allow or [], "deny": deny or []}
        if seed is not None:
            wanted["seed"] = str(seed)
        wanted.update(settings or {})
        machine = {
            "cpus": cpus or front.cpus, "memory": parse_size(memory) or front.memory,
            "disk": parse_size(disk) or front.disk,
        }  # fmt: skip
        request: dict[str, Any] = {"session": target, "template": image or front.image}
        if any(machine.values()):
            request["machine"] = {k: v for k, v in machine.items() if v}
        if timeout:
            request["timeout"] = max(timeout, 1.0)
        files = document_files(front, base) + more
        turn = AsyncTurn(self, text.encode(), name, wanted, files, progress, NEVER)
        return await turn.run({k: v for k, v in request.items() if v})

    async def usage(
        self, *, since: str = "", until: str = "", session: str = ""
    ) -> dict[str, Any]:
        """Return what the tenant used: the message GetUsageResponse of docs/api.md."""
        server = await self.server()
        request = {"since": since or None, "until": until or None, "session": session}
        return await server.call("TurnService/GetUsage", request)

    async def templates(self) -> list[dict[str, Any]]:
        """Return the templates: messages Template of docs/api.md."""
        server = await self.server()
        a = await server.call("TemplateService/ListTemplates", {"page": {"size": 100}})
        return list(a.get("templates", []))

    # the end

    async def close(self) -> None:
        """End the sandboxes that this client made, whose sessions keep turns, and its connections."""
        if self._closed:
            return
        not_at_exit(self._at_exit)
        failed: TurnstoneError | None = None
        for s in list(self._open.values()):
            try:
                await s.close()
            except TurnstoneError as e:
                failed = failed or e
        self._closed = True
        for wire in list(self._nodes.values()):
            await wire.close()
        self._nodes.clear()
        if self._server is not None:
            await self._server.close()
        if failed is not None and not isinstance(failed, DeadError):
            raise failed

    async def _end_at_exit(self) -> None:
        """End the sandboxes when the program ends. No thread can be started any more then."""
        for s in list(self._open.values()):
            with contextlib.suppress(Exception):
                await s.end_quietly()

    async def __aenter__(self) -> AsyncTurnstone:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except TurnstoneError:
            if err is None:
                raise


# only async
class AsyncSandboxMaker:
    """A sandbox to be made: by await, or by async with."""

    def __init__(self, make: Callable[[], Awaitable[AsyncSandbox]]) -> None:
        self._make = make
        self._sandbox: AsyncSandbox | None = None

    def __await__(self) -> Generator[Any, None, AsyncSandbox]:
        return (yield from self._make().__await__())

    async def __aenter__(self) -> AsyncSandbox:
        self._sandbox = await self._make()
        return self._sandbox

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._sandbox is not None
        await self._sandbox.__aexit__(kind, err, tb)


# end

def _network(network: Any) -> dict[str, Any] | None:
    """Return the message Network of an argument."""
    if network is None:
        return None
    if isinstance(network, bool):
        return {"mode": "NETWORK_MODE_ON" if network else "NETWORK_MODE_OFF"}
    return {"mode": "NETWORK_MODE_ON", **network}


