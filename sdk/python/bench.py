"""Measures this SDK, and E2B's client at the same server, for make bench.

    python bench.py sync|async|e2b

Each line of the input is a measurement and a number, such as "exec 20", and is answered with a line
of JSON: a list of milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

SIZE = (64 << 20) // int(os.environ.get("TURNSTONE_BENCH_DIVISOR", "1"))
CONTENT = os.urandom(1 << 20) * (SIZE >> 20)
PATH = "/var/tmp/bench"


def serve(measurements: dict[str, Callable[[], float | None]]) -> None:
    """Answer each line. A measurement that goes on after its end returns the time of its end."""
    for line in sys.stdin:
        name, count = line.split()
        took = []
        for _ in range(int(count)):
            began = time.perf_counter()
            ended = measurements[name]() or time.perf_counter()
            took.append((ended - began) * 1000)
        print(json.dumps(took), flush=True)


def sync() -> None:
    from turnstone import Turnstone

    with Turnstone() as client, client.sandbox(image="base", session="") as sb:

        def run() -> None:
            assert sb.exec(["true"]).exit_code == 0

        def up() -> None:
            sb.files.write(PATH, CONTENT)

        def down() -> None:
            assert len(sb.files.read(PATH)) == SIZE

        def first() -> float:
            with client.sandbox(image="base", session="") as fresh:
                assert fresh.exec(["echo", "hello"]).stdout == "hello\n"
                return time.perf_counter()

        serve({"exec": run, "up": up, "down": down, "first": first})


def asynchronous() -> None:
    """Measure in one loop, which runs while this thread reads the input."""
    from turnstone import AsyncTurnstone

    async def main() -> None:
        async with AsyncTurnstone() as client, client.sandbox(image="base", session="") as sb:

            async def run() -> None:
                assert (await sb.exec(["true"])).exit_code == 0

            async def up() -> None:
                await sb.files.write(PATH, CONTENT)

            async def down() -> None:
                assert len(await sb.files.read(PATH)) == SIZE

            all: dict[str, Callable[[], Awaitable[Any]]] = {"exec": run, "up": up, "down": down}
            while line := await asyncio.to_thread(sys.stdin.readline):
                name, count = line.split()
                took = []
                for _ in range(int(count)):
                    began = time.perf_counter()
                    await all[name]()
                    took.append((time.perf_counter() - began) * 1000)
                print(json.dumps(took), flush=True)

    asyncio.run(main())


def e2b() -> None:
    from e2b import Sandbox

    def first() -> float:
        fresh = Sandbox.create("base")
        assert fresh.commands.run("echo hello").stdout == "hello\n"
        ended = time.perf_counter()
        fresh.kill()
        return ended

    serve({"first": first})


if __name__ == "__main__":
    {"sync": sync, "async": asynchronous, "e2b": e2b}[sys.argv[1]]()
