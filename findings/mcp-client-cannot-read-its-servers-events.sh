#!/bin/bash
# mcp 2.3.0 (PyPI, the Python SDK of the Model Context Protocol): its client reads a result of 1 MiB from its server only
# if the server answers as JSON; as an event, which is the server's default for older versions of the protocol, the same
# result ends the call.
#
# The client bounds one event of a stream to 1 MiB (max_sse_event_size). The server bounds neither its results nor its
# events, and the client does not bound an answer in JSON. So whether a resource can be read depends on json_response of
# the server, of which its users know nothing, and on the version of the protocol that both agree on.
#
# Output seen (CPython 3.11, linux/amd64):
#   events, 1000000 bytes: read
#   events, 1100000 bytes: MCPError
#   JSON, 1000000 bytes: read
#   JSON, 1100000 bytes: read
#
# Exits with a status other than 0 if the output differs.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv v
v/bin/pip -q install mcp==2.3.0 mcp-types==2.3.0 anyio==4.16.0 httpx2==2.16.2 uvicorn==0.54.0 starlette==1.10.0 \
	sse-starlette==3.7.0
cat >try.py <<'END'
import asyncio, logging, socket, threading

import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import MCPServer

logging.disable(logging.CRITICAL)


def serve(json):
    """A server of texts of any size, and its port."""
    server = MCPServer("texts")

    @server.resource("text://{size}")
    def text(size: str) -> str:
        return "x" * int(size)

    listener = socket.create_server(("127.0.0.1", 0))
    app = server.streamable_http_app(json_response=json)
    run = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    threading.Thread(target=run.run, kwargs={"sockets": [listener]}, daemon=True).start()
    return listener.getsockname()[1]


async def main():
    for name, json in (("events", False), ("JSON", True)):
        url = f"http://127.0.0.1:{serve(json)}/mcp"
        for size in (1_000_000, 1_100_000):
            try:
                async with Client(streamable_http_client(url), mode="legacy", read_timeout_seconds=60) as client:
                    result = await client.read_resource(f"text://{size}")
                    got = "read" if len(result.contents[0].text) == size else "damaged"
            except Exception as e:
                while isinstance(e, BaseExceptionGroup):
                    e = e.exceptions[0]
                got = type(e).__name__
            print(f"{name}, {size} bytes: {got}", flush=True)


asyncio.run(main())
END
got=$(v/bin/python try.py 2>err) || { cat err >&2; exit 1; }
echo "$got"
[ "$got" = "events, 1000000 bytes: read
events, 1100000 bytes: MCPError
JSON, 1000000 bytes: read
JSON, 1100000 bytes: read" ]
