"""Running a document as a turn, over connections that may be lost: the turn runs once."""

from __future__ import annotations

import io
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from .._json import is_dict
from .. import _archive
from .._deadline import Deadline
from .._rt_async import blocking, sleep, spawn
from ..errors import DeadError, DeniedError, IntegrityError, NotFoundError, TurnstoneError
from ..results import Receipt, receipt_of
from .files import pump
from .server import AsyncServer, Offer
from .session import JournalReader, Progress
from .wire import AsyncWire

if TYPE_CHECKING:
    from .client import AsyncTurnstone

_START_TRIES = 5
_PATIENCE = 3600.0
_FIRST_PAUSE = 0.1
_LAST_PAUSE = 5.0
_CANCEL_TIME = 5.0


class AsyncTurn:
    """One turn that this client runs."""

    def __init__(
        self, client: AsyncTurnstone, document: bytes, name: str, settings: dict[str, Any],
        add: list[tuple[Path, str]], progress: Progress | None, deadline: Deadline,
    ) -> None:  # fmt: skip
        self._client = client
        self._document = document
        self._name = name
        self._settings = settings
        self._add = add
        self._deadline = deadline
        self._journal = JournalReader(progress)
        self._ticket = ""
        self._node = ""
        self._offer: Offer | None = None
        self._tried = False  # to start the turn
        self._started = False  # the node said so
        self._wire: AsyncWire | None = None

    async def run(self, request: Mapping[str, Any]) -> Receipt:
        """Reserve the turn, start it, and follow it to its end. The caller's end cancels it."""
        server = await self._client.server()
        await self._reserve(server, request)
        try:
            return await self._follow(server)
        except BaseException as e:
            if not self._journal.ended and not (isinstance(e, TurnstoneError) and e.fault):
                await self._cancel(server)
            raise
        finally:
            if self._wire is not None:
                await self._wire.close()

    async def _reserve(self, server: AsyncServer, request: Mapping[str, Any]) -> None:
        for n in range(_START_TRIES):
            client = server.asker()
            given = {**request, "idempotencyKey": secrets.token_hex(16), "client": client}
            try:
                a = await server.call("TurnService/StartTurn", given, self._deadline)
            except DeadError:  # the node was restarted, and has forgotten the ticket
                if n + 1 == _START_TRIES:
                    raise
                continue
            turn = a.get("turn", {})
            self._ticket, self._node = str(turn.get("ticketId", "")), str(turn.get("node", ""))
            self._offer = Offer(
                a.get("channel", {}), "node:" + self._node, client["nonce"], self._node)  # fmt: skip
            return

    async def _follow(self, server: AsyncServer) -> Receipt:
        since, pause = Deadline(_PATIENCE), _FIRST_PAUSE
        while True:
            before = self._journal.offset
            failed: TurnstoneError | None = None
            try:
                await self._connected(server)
            except DeniedError as e:
                if self._started:
                    raise DeniedError(
                        "turn.attach", "the turn runs at the node and cannot be followed", str(e),
                        hint="use a new token; the session's log then shows the turn") from None  # fmt: skip
                raise
            except TurnstoneError as e:
                failed = e
            if self._journal.ended:
                return self._result()
            if failed is None:
                failed = DeadError("turn.attach", "the journal", "ended without the turn's result")
            if self._deadline.passed or not failed.retryable or isinstance(failed, IntegrityError):
                raise failed
            if self._journal.offset > before:
                since, pause = Deadline(_PATIENCE), _FIRST_PAUSE
            if since.passed:
                raise failed
            await sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    def _result(self) -> Receipt:
        report, failed = self._journal.report(), self._journal.failed()
        if is_dict(report):
            return receipt_of(report, self._journal.kind)
        raise failed or IntegrityError("turn.journal", "the journal", "it has neither a report nor an error")

    async def _connected(self, server: AsyncServer) -> None:
        """Follow the turn over one connection."""
        offer, self._offer = self._offer, None
        if offer is None:
            client = server.asker()
            request = {"ticketId": self._ticket, "client": client}
            a = await server.call("TurnService/ConnectTurn", request, self._deadline)
            node = self._node or str(a.get("turn", {}).get("node", ""))
            offer = Offer(a.get("channel", {}), "node:" + node, client["nonce"], node)
        wire = self._wire = await server.turn_wire(offer, self._deadline)
        try:
            # a turn whose start had no answer may run; its ticket starts no second one
            if self._tried and not self._started:
                try:
                    await self._read(wire)
                    return
                except NotFoundError:
                    pass
            if not self._started:
                self._tried = True
                await self._start(wire)
                self._started = True
            await self._read(wire)
        finally:
            if self._journal.ended:
                await wire.close()
                self._wire = None

    async def _start(self, wire: AsyncWire) -> None:
        """Start the turn, and send its document and its files."""
        settings = {**self._settings, "filesSent": True}
        settings["add"] = [{"name": f"{n}/{p.resolve().name}", "dest": d} for n, (p, d) in enumerate(self._add)]
        document = wire.sender()
        params: dict[str, Any] = {
            "ticket": self._ticket, "name": self._name, "document": document.stream, "settings": settings}  # fmt: skip
        archive: IO[bytes] | None = None
        if self._add:
            items = [(p, f"{n}/{p.resolve().name}") for n, (p, _) in enumerate(self._add)]
            archive = await blocking(_archive.pack, items)
        try:
            files = wire.sender() if archive is not None else None
            if files is not None:
                params["files"] = files.stream
            ident = await wire.begin("Turn.start", params)
            tasks = [spawn(pump, document, io.BytesIO(self._document))]
            if files is not None and archive is not None:
                tasks.append(spawn(pump, files, archive))
            try:
                await wire.answer(ident, "Turn.start", self._deadline)
            finally:
                await document.abort()
                if files is not None:
                    await files.abort()
                for t in tasks:
                    await t.join()
        finally:
            if archive is not None:
                archive.close()

    async def _read(self, wire: AsyncWire) -> None:
        """Read the journal from where it was left."""
        self._journal.again()
        stream = wire.receiver()
        params = {"ticket": self._ticket, "offset": self._journal.offset, "journal": stream.stream}
        ident = await wire.begin("Turn.attach", params)
        try:
            while not self._journal.ended and (part := await stream.read(self._deadline)):
                self._journal.feed(part)
        except DeadError:
            raise
        except IntegrityError:
            raise
        except TurnstoneError:
            if self._deadline.passed:
                raise
            await wire.answer(ident, "Turn.attach", self._deadline)
            raise
        finally:
            await stream.close()
        if not self._journal.ended:
            await wire.answer(ident, "Turn.attach", self._deadline)
        else:
            await wire.drop(ident)

    async def _cancel(self, server: AsyncServer) -> None:
        """End a turn whose caller does not want it any more."""
        bound = Deadline(_CANCEL_TIME)
        wire = self._wire
        try:
            if wire is not None and wire.alive:
                await wire.call("Turn.cancel", {"ticket": self._ticket}, bound)
                return
        except TurnstoneError:
            pass
        try:
            await server.call("TurnService/CancelTurn", {"ticketId": self._ticket}, bound)
        except TurnstoneError:
            pass  # it has ended, or nobody answers: the node ends it at its time limit
