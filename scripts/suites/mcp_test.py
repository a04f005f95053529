"""Tests of turn mcp and of a server's endpoint with the official client. See the file mcp."""

import base64
import os
import secrets
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

BOUND = 300  # seconds; for a machine that is busy
TOKEN = os.environ["TURN_TOKEN"]
URL = os.environ["MCP_URL"]
SERVER_HOME = Path(os.environ["TURN_TEST_SERVER_HOME"])

DOCUMENT = """# A sum

```bash name=sum
echo $((20 + 22)) > sum
cat sum
```
"""


class Conversation:
    """A client whose calls name the session that the first one began, if that is needed."""

    def __init__(self, client, names_session=False):
        self.client, self.names_session, self.session = client, names_session, None

    def __getattr__(self, name):
        return getattr(self.client, name)

    async def call_tool(self, name, arguments, **options):
        if self.session:
            arguments = {"session": self.session} | arguments
        result = await self.client.call_tool(name, arguments, **options)
        if self.names_session and not self.session and result.structured_content:
            self.session = result.structured_content.get("session")
        return result


@asynccontextmanager
async def stdio(token=TOKEN):
    env = {**os.environ, "TURN_TOKEN": token}
    async with Client(StdioServerParameters(command="turn", args=["mcp"], env=env),
                      read_timeout_seconds=BOUND) as client:
        assert client.protocol_version == "2026-07-28"
        yield Conversation(client)


@asynccontextmanager
async def http(token=TOKEN, mode="auto"):
    """The newest version of the protocol, which has no connections over HTTP."""
    headers = {"Authorization": "Bearer " + token}
    async with httpx2.AsyncClient(headers=headers, timeout=BOUND) as web:
        async with Client(streamable_http_client(URL, http_client=web), mode=mode,
                          read_timeout_seconds=BOUND) as client:
            assert client.protocol_version == ("2026-07-28" if mode == "auto" else "2025-11-25")
            yield Conversation(client, names_session=mode == "auto")


def connected(token=TOKEN):
    """The version before it, with a connection."""
    return http(token, mode="legacy")


DOORS = pytest.mark.parametrize("door", [stdio, http, connected], ids=["stdio", "http", "connected"])


def run(test):
    """Runs a coroutine within the bound."""
    async def bounded():
        with anyio.fail_after(BOUND):
            return await test()
    return anyio.run(bounded)


async def call(client, name, **arguments):
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content
    return result.structured_content


@DOORS
def test_work(door):
    """A turn, work in the sandbox, branches, and what reads them."""
    async def test():
        async with door() as client:
            tools = (await client.list_tools()).tools
            assert {t.name for t in tools} == {
                "run_turn", "exec", "read_file", "write_file", "list_files", "snapshot", "fork",
                "diff", "merge", "replay", "log", "compare", "verify"}

            told = []

            async def progress(done, total, message):
                told.append(message)
            result = await client.call_tool("run_turn", {"document": DOCUMENT},
                                            progress_callback=progress)
            first = result.structured_content
            assert first["result"] == "passed" and "42" in first["receipt"], first
            assert "**passed**" in result.content[0].text
            assert any("sum" in (m or "") for m in told), told

            out = await call(client, "exec", command="cat sum; echo oops >&2; exit 3")
            assert (out["exit_code"], out["stdout"], out["stderr"]) == (3, "42\n", "oops\n")
            await call(client, "write_file", path="dir/grüße.txt", text="hällo\n")
            assert (await call(client, "read_file", path="dir/grüße.txt"))["text"] == "hällo\n"
            listed = await call(client, "list_files", path="dir")
            assert [e["name"] for e in listed["entries"]] == ["grüße.txt"]
            second = await call(client, "snapshot")
            assert second["changed"] and second["number"] > first["number"]

            await call(client, "fork", branch="other", turn=first["turn"])
            other = await call(client, "run_turn", branch="other",
                               document="```bash\necho 43 > sum\n```\n")
            assert other["branch"] == "other", other
            changes = await call(client, "diff", **{"from": first["turn"], "to": other["turn"]})
            assert {"path": "/workspace/sum", "status": "M"} in changes["files"]
            both = await call(client, "compare", turns=[second["turn"], other["turn"]])
            assert len(both["turns"]) == 2
            merged = await call(client, "merge", **{"from": "@other"})
            assert merged["outcome"] == "merged", merged
            assert (await call(client, "exec", command="cat sum dir/*"))["stdout"] == "43\nhällo\n"
            again = await call(client, "replay", turn=other["turn"])
            assert again["same"], again
            assert (await call(client, "verify"))["ok"]
            turns = await call(client, "log")
            assert turns["session"] == first["session"] and len(turns["turns"]) >= 4

            receipt = await client.read_resource(first["receipt_uri"])
            assert "# A sum" in receipt.contents[0].text
            state = await client.read_resource(f"turn://files/{first['turn']}/workspace/sum")
            assert state.contents[0].text == "42\n"
            prompt = await client.get_prompt("write_document", {"task": "count to 3"})
            assert "count to 3" in prompt.messages[0].content.text
    run(test)


def test_close_keeps_a_turn():
    """What a client leaves in the sandbox of its connection is a turn when it is gone. A script of
    cmd/turn tests turn mcp: this client kills a process that takes more than some seconds to end."""
    async def test():
        async with connected() as client:
            await call(client, "exec", command="echo kept > kept")
            session = (await call(client, "snapshot"))["session"]
            await call(client, "exec", command="echo later >> kept")
        async with connected() as client:  # the same caller, another connection
            while True:
                log = await call(client, "log", session=session)
                if len(log["turns"]) == 2:
                    break
                await anyio.sleep(0.2)
            state = await client.read_resource(
                f"turn://files/{log['turns'][0]['turn']}/workspace/kept")
            assert state.contents[0].text == "kept\nlater\n"
    run(test)


def test_another_client_goes_on():
    """Without connections, the sandbox of a session stays for the caller's next client."""
    async def test():
        async with http() as client:
            await call(client, "exec", command="echo kept > /tmp/kept")
            session = client.session
            assert session.startswith("mcp-")
            assert (await client.client.call_tool("exec", {"command": "cat /tmp/kept"})
                    ).structured_content["exit_code"] == 1  # a session of its own
        async with http() as client:
            assert (await call(client, "exec", command="cat /tmp/kept", session=session))["stdout"] == "kept\n"
            assert (await client.client.call_tool("log", {})).is_error
    run(test)


@DOORS
def test_large(door):
    """Results of any size that is allowed arrive: this client takes 1 MiB of an event."""
    async def test():
        sizes = [2**20 - 500, 2**20, 2**20 + 1, 5 * 2**20, 8 * 2**20]
        async with door() as client:
            await call(client, "exec", command="for n in %s; do head -c $n /dev/zero | tr '\\0' x > x$n; "
                       "head -c $n /dev/zero | tr '\\0' '\\n' > lines$n; head -c $n /dev/urandom > bytes$n; done"
                       % " ".join(map(str, sizes)), timeout=BOUND)
            turn = (await call(client, "snapshot"))["turn"]
            for n in sizes:
                for kind in ["x", "lines"]:
                    if door is stdio and kind == "lines" and 2 * n >= 10 * 2**20:
                        with pytest.raises(Exception, match="as JSON, and a message has at most"):
                            await client.read_resource(f"turn://files/{turn}/workspace/{kind}{n}")
                        continue
                    r = await client.read_resource(f"turn://files/{turn}/workspace/{kind}{n}")
                    assert r.contents[0].text == ("x" if kind == "x" else "\n") * n
                if door is stdio and n == sizes[-1]:
                    continue
                r = await client.read_resource(f"turn://files/{turn}/workspace/bytes{n}")
                assert len(r.contents[0].blob) == (n + 2) // 3 * 4
            out = await call(client, "exec", command="head -c 2000000 /dev/zero | tr '\\0' '\\n'")
            whole = (await client.read_resource(out["stdout_uri"])).contents[0].text
            assert len(whole) > 2**20 and "951424 more bytes" in whole

            # parts whose escapes are several bytes each, in a new sandbox, of whose start progress is told
            told = []

            async def progress(done, total, message):
                told.append(message)
            await call(client, "exec", command="head -c 300000 /dev/zero | tr '\\0' '\\1' > ones; "
                       "head -c 300000 /dev/zero | tr '\\0' '<' > less")
            await call(client, "run_turn", document=DOCUMENT)
            for name, character in [("ones", "\1"), ("less", "<")]:
                offset, text = 0, ""
                while True:
                    r = await client.call_tool("read_file", {"path": name, "offset": offset, "limit": 262144},
                                               progress_callback=progress)
                    assert not r.is_error, r.content
                    text += r.structured_content["text"]
                    offset = r.structured_content.get("next_offset")
                    if not offset:
                        break
                assert text == character * 300000
            assert told
    run(test)


@DOORS
def test_image_and_bytes(door):
    """A call chooses its image, learns which one has a program, and gets bytes as they are."""
    async def test():
        async with door() as client:
            out = await call(client, "exec", command="printf 'a\\377b'; npm --version")
            assert out["exit_code"] == 127 and "image nodejs has npm" in out["note"], out
            assert base64.b64decode(out["stdout_base64"]) == b"a\xffb" and out["stdout"] == "a\ufffdb", out
            other = await call(client, "exec", command="echo $((6 * 7))", image="base",
                               session="image-" + secrets.token_hex(4))
            assert other["stdout"] == "42\n", other
            wrong = await client.call_tool("exec", {"command": "true", "image": "python"})
            assert wrong.is_error and "image python: the session's sandbox is of base" in str(wrong.content)
    run(test)


@DOORS
def test_hostile(door):
    """Nothing of the host is read, and what no tool has is an error."""
    async def test():
        async with door() as client:
            for name, arguments in [
                ("run_turn", {"document": f"---\nfiles: [{SERVER_HOME}/server.toml]\n---\n" + DOCUMENT}),
                ("run_turn", {"document": "---\nfiles: [../../etc/passwd:x]\n---\n" + DOCUMENT}),
                ("run_turn", {"document": "---\nhome: mine\n---\n" + DOCUMENT}),
                ("run_turn", {"document": "```bash\nno end"}),
                ("run_turn", {"document": "x" * (1 << 20) + "\n" + DOCUMENT}),
                ("run_turn", {}),
                ("exec", {"command": "true", "timout": 3}),
                ("exec", {"command": "true", "timeout": -1}),
                ("exec", {"command": ["true"]}),
                ("exec", {"command": "true", "image": "../../etc"}),
                ("read_file", {"path": str(SERVER_HOME / "server.toml")}),
                ("read_file", {"path": "a\0b"}),
                ("read_file", {"path": "x", "offset": -1}),
                ("fork", {"branch": "../../x"}),
                ("log", {"session": "nobody-has-it"}),
                ("diff", {"from": "t_../../../etc/passwd"}),
            ]:
                result = await client.call_tool(name, arguments)
                assert result.is_error, (name, arguments, result)
                text = str(result.content)
                assert TOKEN not in text and "json:" not in text and "Go " not in text, (name, text)
                if door is not stdio:
                    assert str(SERVER_HOME) not in text.replace(str(arguments), ""), (name, text)
            for uri in ["turn://files/@1/../../etc/passwd", "turn://receipts/none@1", "file:///etc/passwd",
                        "turn://outputs/99"]:
                with pytest.raises(Exception):
                    await client.read_resource(uri)
    run(test)


@DOORS
def test_cancel(door):
    """A cancelled call ends its turn, and the connection goes on."""
    async def test():
        async with door() as client:
            started = anyio.Event()
            session = "cancel-" + secrets.token_hex(4)

            async def progress(done, total, message):
                if "long" in (message or ""):
                    started.set()
            async with anyio.create_task_group() as tasks:
                async def long():
                    await client.call_tool("run_turn", {
                        "document": "```bash name=long\nsleep 3000\n```\n", "session": session},
                        progress_callback=progress)
                tasks.start_soon(long)
                await started.wait()
                tasks.cancel_scope.cancel()
            while True:
                log = await call(client, "log", session=session)
                if log["turns"][0]["result"] != "running":
                    break
                await anyio.sleep(0.2)
            assert log["turns"][0]["result"] == "error", log
            assert (await call(client, "exec", command="echo on", session=session))["stdout"] == "on\n"
    run(test)


def test_long_output():
    """A long output is cut, and a resource has all of it."""
    async def test():
        async with http() as client:
            out = await call(client, "exec", command="seq 1 20000")
            assert len(out["stdout"]) < 20000 and "cut" in out["stdout"]
            whole = (await client.read_resource(out["stdout_uri"])).contents[0].text
            assert whole.splitlines() == [str(n) for n in range(1, 20001)]
    run(test)


def test_tokens():
    """The endpoint needs a token, and another caller has no part in a session."""
    async def test():
        for header in [{}, {"Authorization": "Bearer no"}, {"Authorization": "Bearer " + TOKEN[:-2]}]:
            async with httpx2.AsyncClient(headers=header, timeout=BOUND) as web:
                r = await web.post(URL, json={"jsonrpc": "2.0", "id": 1, "method": "ping"},
                                   headers={"Accept": "application/json, text/event-stream"})
                assert r.status_code == 401, r
        async with httpx2.AsyncClient(headers={"Authorization": "Bearer " + TOKEN,
                                               "Origin": "http://evil.example",
                                               "Sec-Fetch-Site": "cross-site"}, timeout=BOUND) as web:
            assert (await web.post(URL, json={})).status_code == 403
        other = token("other")
        limited = token("limited", "--session", "ci-*")
        async with http() as client:
            session = (await call(client, "run_turn", document=DOCUMENT))["session"]
            async with connected(other) as stranger:
                assert (await stranger.call_tool("log", {"session": session})).is_error
                assert (await stranger.call_tool("exec", {"command": "cat sum", "session": session})).is_error
            async with http(limited) as narrow:
                assert (await narrow.call_tool("run_turn", {"document": DOCUMENT})).is_error
                turn = await call(narrow, "run_turn", document=DOCUMENT, session="ci-1")
                assert turn["result"] == "passed"
        assert TOKEN not in (SERVER_HOME.parent / "log").read_text()
    run(test)


def test_other_connection():
    """A connection belongs to the caller who made it."""
    async def test():
        other = token("thief")
        initialize = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"}}}
        accept = {"Accept": "application/json, text/event-stream"}
        async with httpx2.AsyncClient(timeout=BOUND, headers=accept) as web:
            mine = {"Authorization": "Bearer " + TOKEN}
            r = await web.post(URL, json=initialize, headers=mine)
            assert r.status_code == 200
            connection = {"Mcp-Session-Id": r.headers["Mcp-Session-Id"]}
            theirs = {"Authorization": "Bearer " + other} | connection
            ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
            assert (await web.post(URL, json=ping, headers=theirs)).status_code == 403
            assert (await web.delete(URL, headers=theirs)).status_code == 403
            assert (await web.post(URL, json=ping, headers=mine | connection)).status_code == 200
            assert (await web.delete(URL, headers=mine | connection)).status_code == 204
            assert (await web.post(URL, json=ping, headers=mine | connection)).status_code == 404
    run(test)


def token(name, *flags):
    """Makes a token of the operator."""
    home = str(SERVER_HOME)
    env = {k: v for k, v in os.environ.items() if k not in ("TURN_HOST", "TURN_TOKEN")}
    return subprocess.run(["turn", "token", "create", "--name", name, *flags], check=True, text=True,
                          stdout=subprocess.PIPE, env=env | {"TURN_HOME": home}).stdout.strip()
