"""What the types say of the public methods. mypy reads it; nothing runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnstone import AsyncTurnstone, Process, Receipt, Sandbox, Turnstone

if TYPE_CHECKING:
    from typing_extensions import assert_type

    def synchronous(client: Turnstone) -> None:
        with client.sandbox(image="python") as sb:
            assert_type(sb, Sandbox)
            assert_type(sb.exec(["true"]).exit_code, int)
            assert_type(sb.exec(["true"], stream=True), Process)
            assert_type(sb.exec(["true"], background=True), Process)
            assert_type(sb.files.read("x"), bytes)
        assert_type(client.run("x"), Receipt)

    async def asynchronous(client: AsyncTurnstone) -> None:
        async with client.sandbox() as sb:
            assert_type((await sb.exec("true")).stdout, str)
        await (await client.sandbox()).close()
        assert_type(await client.run("x"), Receipt)
