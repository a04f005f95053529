"""What the server does for a sandbox beside commands, and calls that are lost, cancelled or late."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from relay import Relay
from test_attest import Signer
from test_gateway import Gateway, gateway  # noqa: F401

from turnstone import AsyncTurnstone, IntegrityError, NotFoundError, TimeoutError, Turnstone

pytestmark = pytest.mark.server
WAIT = 120.0


def test_a_port_is_reached_by_http(client: Turnstone) -> None:
    with client.sandbox(image="python", session="", files={"/srv/index.html": "from inside\n"}) as sb:
        p = sb.exec(["python3", "-m", "http.server", "8000", "--directory", "/srv"], background=True)
        sb.exec("until python3 -c 'import socket; socket.create_connection((\"10.0.2.15\", 8000))'; do sleep 0.1; done",
                check=True)  # fmt: skip
        url = sb.expose(8000, ttl=3600)
        with urllib.request.urlopen(url, timeout=WAIT) as answer:
            assert answer.read() == b"from inside\n"
        p.kill()


def test_a_snapshot_starts_others(client: Turnstone) -> None:
    with client.sandbox(image="base", session="") as sb:
        sb.exec("export WORD=remembered; cd /tmp; echo 1 > file")
        kept = sb.snapshot()
        sb.exec("WORD=changed; rm file")
    for _ in range(2):  # also after the first sandbox's end
        with client.sandbox(snapshot=kept, session="") as other:
            assert other.exec("echo $WORD $PWD; cat file").stdout == "remembered /tmp\n1\n"


def test_a_paused_sandbox_continues(client: Turnstone) -> None:
    with client.sandbox(image="base", session="") as sb:
        p = sb.exec(["sh", "-c", "while [ ! -e /tmp/end ]; do sleep 0.1; done; echo over"], background=True)
        sb.pause()
        assert sb.refresh().get("paused") is True
        sb.resume()
        sb.files.write("/tmp/end", "")
        assert p.wait(WAIT).stdout == "over\n"


def test_forks_of_a_session(client: Turnstone) -> None:
    """Each fork has its own branch of the work; a command that a turn has already is not waited for."""
    with client.sandbox(image="base") as sb:
        p = sb.exec(["sh", "-c", "echo 1 > first"], background=True)
        p.wait(WAIT)
        assert sb.commit() is not None
        for n, fork in enumerate(sb.fork(2)):
            fork.exec(["sh", "-c", f"echo {n} > n"], check=True)
            assert fork.files.read_text("first") == "1\n" and fork.files.read_text("n") == f"{n}\n"
            fork.close(discard=True)
        assert not sb.files.exists("n")


def rooted(home: Path, root: str) -> Turnstone:
    """Return a client that trusts what a root certifies, and pins no node."""
    home.mkdir(mode=0o700)
    (home / "root.pub").write_text(root + "\n")
    env = {k: v for k, v in os.environ.items() if k != "TURN_HOST"} | {"TURN_HOME": str(home)}
    address = subprocess.run(["turn", "host", "show", "test", "--json"], check=True, capture_output=True, text=True)
    url = json.loads(address.stdout)["url"]
    added = subprocess.run(["turn", "host", "add", "fleet", url, "--root", str(home / "root.pub")], env=env,
                           capture_output=True, text=True)  # fmt: skip
    if added.returncode:  # turn itself refuses a root that certifies nothing there
        assert "root" in added.stderr or "certif" in added.stderr, added.stderr
        hosts = f'[hosts.fleet]\nurl = "{url}"\n[hosts.fleet.root]\nkey = "{root}"\nepoch = 1\n'
        (home / "hosts.toml").write_text(hosts)
        (home / "hosts.toml").chmod(0o600)
    return Turnstone("fleet", home=home)


def test_a_node_of_the_operators_root(tmp_path: Path) -> None:
    with rooted(tmp_path / "right", os.environ["TURN_TEST_ROOT"]) as c:
        with c.sandbox(image="base", session="") as sb:
            assert sb.exec(["echo", "certified"]).stdout == "certified\n"
        assert c.run("```bash\necho hi\n```\n", session="rooted").passed


def test_a_node_of_another_root(tmp_path: Path) -> None:
    with rooted(tmp_path / "wrong", Signer(7).public.text) as c:
        with pytest.raises(IntegrityError) as e, c.sandbox(image="base", session="") as sb:
            sb.exec(["true"])
        assert e.value.fault and not e.value.retryable


def lose(relay: Relay, method: str) -> list[str]:
    """Lose the first answer to a method, which the server has done."""
    lost: list[str] = []

    def answer(name: str, a: dict[str, Any]) -> dict[str, Any]:
        if name == method and not lost:
            lost.append(name)
            raise ConnectionError("lost on the way")
        return a

    relay.answer = answer
    return lost


def test_a_lost_answer_makes_no_second_sandbox(gateway: Gateway) -> None:  # noqa: F811
    lost = lose(gateway.relay, "CreateSandbox")
    with gateway.client.sandbox(image="base", session="", name="only-one") as sb:
        assert lost and sb.exec(["echo", "hi"]).stdout == "hi\n"
        named = [s for s in gateway.client.list_sandboxes() if s.get("name") == "only-one"]
        assert [s["sandboxId"] for s in named] == [sb.id]


def test_a_lost_answer_runs_no_second_turn(gateway: Gateway) -> None:  # noqa: F811
    lost = lose(gateway.relay, "StartTurn")
    r = gateway.client.run("```bash\necho once >> /root/times; cat /root/times\n```\n", session="sdk-once")
    assert r.passed and r.steps[0].stdout == "once\n"
    assert len(gateway.client.session("sdk-once").log()) == 1 and lost


async def test_a_cancelled_turn_ends() -> None:
    async with AsyncTurnstone() as c:
        started = asyncio.Event()

        def progress(line: Any) -> None:
            if "output" in str(line):
                started.set()

        task = asyncio.create_task(c.run(
            "```bash\necho begun; sleep 4010\n```\n", session="sdk-cancelled", progress=progress))  # fmt: skip
        await asyncio.wait_for(started.wait(), WAIT)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        async def ended() -> bool:
            try:
                receipt = await c.session("sdk-cancelled").receipt(1)
            except NotFoundError:
                return False  # not yet
            return "cancel" in receipt or "interrupted" in receipt

        end = time.monotonic() + WAIT
        while not await ended():
            assert time.monotonic() < end, "the turn continues"
            await asyncio.sleep(0.1)


async def test_timeouts_of_asyncio() -> None:
    async with AsyncTurnstone() as c, c.sandbox(image="base", session="") as sb:
        with pytest.raises(TimeoutError) as e:
            await sb.exec(["sh", "-c", "echo begun; sleep 4011"], timeout=2)
        assert e.value.result.stdout == "begun\n"  # type: ignore[attr-defined]
        with pytest.raises(TimeoutError):
            await sb.exec("sleep 4012", timeout=1)
        await sb.exec(["mkfifo", "/tmp/fifo"], check=True)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(sb.exec(["cat", "/tmp/fifo"]), 1)
        end = time.monotonic() + WAIT
        while any("exit" not in p and {"4011", "4012", "/tmp/fifo"} & set(" ".join(p["argv"]).split())
                  for p in await sb.processes()):  # fmt: skip
            assert time.monotonic() < end, "commands continue"
            await asyncio.sleep(0.1)
        assert (await sb.exec("echo on")).stdout == "on\n"
