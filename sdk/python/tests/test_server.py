"""The client against a real server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from turnstone import (
    AsyncTurnstone,
    CommandError,
    DeniedError,
    InvalidError,
    NotFoundError,
    Sandbox,
    TimeoutError,
    Turnstone,
    TurnstoneError,
)

pytestmark = pytest.mark.server
WAIT = 120.0


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Turnstone() as c, c.sandbox(image="python", session="") as sb:
        yield sb


def until(f: Any) -> None:
    """Wait for what is meant."""
    end = time.monotonic() + WAIT
    while not f():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def count(sb: Sandbox, word: str) -> int:
    return sum(word in " ".join(p["argv"]) and "exit" not in p for p in sb.processes())


def test_exec(box: Sandbox) -> None:
    r = box.exec(["python", "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"])
    assert (r.exit_code, r.stdout, r.stderr, r.language, r.ok) == (3, "out\n", "err\n", "python", False)
    assert r.duration > 0 and r.commands[0].language == "python" and r.commands[0].exit_code == 3
    r = box.exec(["sh", "-c", "echo $A; pwd; cat"], env={"A": "1 2"}, cwd="/tmp", stdin="input")
    assert r.stdout == "1 2\n/tmp\ninput"
    assert box.exec(["id", "-un"], user="nobody").stdout == "nobody\n"
    with pytest.raises(CommandError) as e:
        box.exec(["sh", "-c", "echo why >&2; exit 5"], check=True)
    assert "why" in str(e.value)
    with pytest.raises(TurnstoneError):
        box.exec(["no-such-program"])
    assert box.exec(["kill", "-9", "$$"]).exit_code != 0 and box.exec(["sh", "-c", "kill -9 $$"]).signal
    big = box.exec(["sh", "-c", "head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2"])
    assert len(big.stdout_bytes) == len(big.stderr_bytes) == 3_000_000
    assert len(box.exec(["cat"], stdin=b"x" * 3_000_000).stdout_bytes) == 3_000_000


def test_scripts_of_the_shell(box: Sandbox) -> None:
    r = box.exec("export A=5; cd /tmp\necho $A | tr 5 6\npython3 - <<'PY'\nprint('py')\nPY\n")
    assert (r.exit_code, r.stdout, r.cwd) == (0, "6\npy\n", "/tmp")
    texts = {c.text.split("\n")[0]: c for c in r.commands}
    tr = texts["tr 5 6"]
    assert tr.span is not None and (tr.span.line, tr.stage, tr.exit_code) == (2, 2, 0)
    assert any(c.language == "python" for c in r.commands)
    assert box.exec("echo $A; pwd; cd /workspace").stdout == "5\n/tmp\n"
    assert box.exec("false").exit_code == 1
    parsed = box.exec("echo $B\ntrue", env={"B": "7"})
    assert parsed.stdout == "7\n" and [c.text for c in parsed.commands] == ["echo $B", "true"]


def test_streams(box: Sandbox) -> None:
    p = box.exec(["sh", "-c", "echo a; echo b >&2; read x; echo got $x"], stream=True, stdin=True)
    seen = []
    for chunk in p:
        seen.append((chunk.stream, chunk.text))
        if len(seen) == 2:
            p.write("line\n")
    assert sorted(seen[:2]) == [("stderr", "b\n"), ("stdout", "a\n")] and seen[2] == ("stdout", "got line\n")
    assert p.result.exit_code == 0
    with box.exec(["sleep", "4001"], stream=True):
        until(lambda: count(box, "4001") == 1)
    until(lambda: count(box, "4001") == 0)
    t = box.exec(["sh", "-c", "stty size; test -t 1 && echo terminal"], stream=True, pty=(101, 33))
    assert t.wait().stdout.replace("\r", "") == "33 101\nterminal\n"


def test_stream_is_text(box: Sandbox) -> None:
    line = "naïve ☕ 🙂 "
    p = box.exec(["bash", "-c", f"for i in {{1..9000}}; do printf '{line}%s\\n' $i; done; printf '\\xf0\\x9f'"], stream=True)
    chunks = list(p)
    assert "".join(c.text for c in chunks) == "".join(f"{line}{i}\n" for i in range(1, 9001)) + "\ufffd"
    assert b"".join(c.data for c in chunks).decode("utf-8", "replace") == p.result.stdout


def test_background(box: Sandbox) -> None:
    p = box.exec(["sh", "-c", "echo started; sleep 4002"], background=True)
    until(lambda: count(box, "4002") == 1)
    assert next(iter(p)).text == "started\n"
    p.signal("TERM")
    assert p.wait(WAIT).signal or p.result.exit_code


def test_timeouts_kill(box: Sandbox) -> None:
    with pytest.raises(TimeoutError) as e:
        box.exec(["sh", "-c", "echo begun; sleep 4003"], timeout=2)
    assert e.value.result.stdout == "begun\n"  # type: ignore[attr-defined]
    until(lambda: count(box, "4003") == 0)
    with pytest.raises(TimeoutError):
        box.exec("sleep 4004", timeout=1)
    assert box.exec("echo again").stdout == "again\n"


def test_files(box: Sandbox, tmp_path: Path) -> None:
    f = box.files
    f.write("d/a.txt", "text")
    f.write("d/big", b"\x00\xff" * 1_000_000, mode=0o600)
    assert f.read_text("d/a.txt") == "text" and f.read("d/big") == b"\x00\xff" * 1_000_000
    info = f.stat("/workspace/d/big")
    assert (info.size, info.mode & 0o777, info.type) == (2_000_000, 0o600, "file")
    assert [x.name for x in f.list("d")] == ["a.txt", "big"]
    f.move("d/a.txt", "d/b.txt")
    assert not f.exists("d/a.txt") and f.exists("d/b.txt")
    with pytest.raises(NotFoundError):
        f.read("d/a.txt")
    with pytest.raises(TurnstoneError):
        f.remove("d")
    assert f.download("d", tmp_path / "got") == []
    assert (tmp_path / "got" / "b.txt").read_text() == "text"
    box.exec(["ln", "-s", "/etc/passwd", "d/out"])
    assert f.download("d", tmp_path / "links") == ["d/out"]
    f.remove("d", recursive=True)
    (tmp_path / "up" / "x").mkdir(parents=True)
    (tmp_path / "up" / "x" / "y").write_bytes(b"z" * 200_000)
    f.upload(tmp_path / "up", "new")
    assert f.read("new/x/y") == b"z" * 200_000


def test_watch(box: Sandbox) -> None:
    box.files.mkdir("w")
    changes = box.files.watch("w")
    box.files.write("w/one", "1")
    paths = set()
    for c in changes:
        paths.add(c.path)
        if any(p.endswith("/one") for p in paths):
            break


def test_context(client: Turnstone) -> None:
    with client.sandbox(image="python", files={"a.py": "open('made', 'w').write('1')"}) as one:
        one.exec(["python", "a.py"], check=True)
    assert one.turn is not None and one.turn.passed and one.turn.number == 1
    with client.sandbox(image="python") as two:
        assert two.files.read("made") == b"1"
    assert two.turn is None  # nothing was done
    clone = one.clone()
    assert clone.files.read("made") == b"1" and clone.session == one.session
    with pytest.raises(TurnstoneError):
        one.exec(["true"])
    clone.close()
    with client.sandbox(image="python") as three:
        three.files.write("thrown", "away")
        three.close(discard=True)
    with client.sandbox(image="python") as four:
        assert not four.files.exists("thrown")


def test_with_frees_after_errors(client: Turnstone) -> None:
    with pytest.raises(KeyboardInterrupt), client.sandbox() as sb:
        sb.exec(["touch", "x"])
        raise KeyboardInterrupt
    assert sb.closed and sb.turn is not None
    assert sb.id not in [s["sandboxId"] for s in client.list_sandboxes()]
    left = client.sandbox()
    client.close()
    with Turnstone() as other:
        assert left.id not in [s["sandboxId"] for s in other.list_sandboxes()]


DOCUMENT = "# A turn\n\n```bash name=one\necho $A\npython3 -c 'print(6 * 7)'\n```\n\n```bash\nfalse\n```\n"


def test_turns(client: Turnstone, tmp_path: Path) -> None:
    lines: list[Any] = []
    r = client.run(DOCUMENT, session="sdk-turns", image="python", env={"A": "x"}, progress=lines.append)
    assert (r.result, r.passed, r.number) == ("failed", False, 1)
    assert r.steps[0].passed and r.steps[0].stdout == "x\n42\n" and not r.steps[1].passed
    assert [c.language for c in r.steps[0].commands] == ["bash", "python"]
    assert "turn:result" in r.markdown and "42" in r.markdown and lines
    s = client.session("sdk-turns")
    path = tmp_path / "doc.md"
    (tmp_path / "in.txt").write_text("hello")
    path.write_text("---\nimage: python\nfiles: [in.txt]\n---\n```bash\ncp in.txt out.txt\n```\n")
    second = client.run(path, session="sdk-turns", add={tmp_path / "in.txt": "/workspace/added"})
    assert second.passed, second.error
    assert s.read_file(2, "/workspace/out.txt") == b"hello" == s.read_file(2, "/workspace/added")
    assert [t["number"] for t in s.log()] == [2, 1]
    assert s.receipt(1) == r.markdown
    changed = s.diff(1, 2)
    assert "out.txt" in str(changed)
    s.tag(1, "first")
    s.fork("first", "other")
    third = client.run("```bash\necho other > out.txt\n```\n", session="sdk-turns", branch="other")
    assert third.passed and third.branch == "other"
    merged = s.merge("other", "main", side="ours")
    assert merged
    assert s.compare(1, 2)
    assert s.replay(2)["same"] is True
    verified = s.verify()
    assert verified["turns"] and not verified.get("problems"), verified
    assert s.export(tmp_path / "bundle") and (tmp_path / "bundle").stat().st_size > 100
    assert any(x.path.endswith("out.txt") for x in s.list_files(2, "/workspace")), s.list_files(2, "/workspace")
    with pytest.raises(NotFoundError):
        s.show(99)
    with pytest.raises(InvalidError):
        client.run("no steps: [\n```bash\nx", session="sdk-turns")


def test_live_forks(client: Turnstone) -> None:
    with client.sandbox(session="", live=True) as sb:
        sb.exec("export A=in-memory")
        clones = sb.fork(2)
        assert [c.exec("echo $A").stdout for c in clones] == ["in-memory\n"] * 2
        sb.pause()
        sb.resume()
        assert sb.exec("echo $A").stdout == "in-memory\n"
        for c in clones:
            c.close()
        assert client.usage()["sandboxes"]


def test_a_killed_sandbox_has_a_reason(client: Turnstone) -> None:
    sb = client.sandbox(session="")
    other = Turnstone()
    other.get_sandbox(sb.id).close()
    other.close()
    with pytest.raises(TurnstoneError) as e:
        sb.exec(["true"])
    assert e.value.kind in ("dead", "not_found"), repr(e.value)


def test_refused_tokens() -> None:
    with Turnstone(token="a.b.c") as c, pytest.raises(DeniedError) as e:
        c.templates()
    assert e.value.hint and "a.b.c" not in str(e.value)


# A program that a shell starts in the background ignores Ctrl-C, and so do its children.
CTRL_C = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"


def test_ctrl_c_kills_the_command(box: Sandbox) -> None:
    program = (
        "from turnstone import Turnstone\n"
        f"c = Turnstone()\nsb = c.get_sandbox({box.id!r})\n"
        "sb.exec(['sleep', '4005'])\n"
    )
    p = subprocess.Popen([sys.executable, "-c", CTRL_C + program], stderr=subprocess.PIPE)
    until(lambda: count(box, "4005") == 1)
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=WAIT)
    assert p.returncode != 0 and b"KeyboardInterrupt" in err
    until(lambda: count(box, "4005") == 0)


def test_ctrl_c_between_start_and_wait(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        assert count(box, "4007") == 1
        raise KeyboardInterrupt

    with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
        m.setattr("turnstone._sync.process.Process.wait", interrupted)
        box.exec(["sleep", "4007"])
    until(lambda: count(box, "4007") == 0)


def test_ctrl_c_cancels_a_turn(client: Turnstone) -> None:
    program = (
        "from turnstone import Turnstone\n"
        "with Turnstone() as c:\n"
        "    c.run('```bash\\necho begun; sleep 4006\\n```\\n', session='sdk-ctrl-c', progress=lambda x: print(x, flush=True))\n"
    )
    p = subprocess.Popen([sys.executable, "-c", CTRL_C + program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert p.stdout is not None
    while b"output" not in p.stdout.readline():
        pass
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=WAIT)
    s = client.session("sdk-ctrl-c")
    until(lambda: "canceled" in s.receipt(1) or "cancelled" in s.receipt(1) or "interrupted" in s.receipt(1))


async def test_async() -> None:
    async with AsyncTurnstone() as c, c.sandbox(session="") as sb:
        results = await asyncio.gather(*(sb.exec(["sh", "-c", f"sleep 0.2; echo {n}"]) for n in range(8)))
        assert [r.stdout for r in results] == [f"{n}\n" for n in range(8)]
        p = await sb.exec(["sh", "-c", "echo 1; echo 2 >&2"], stream=True)
        assert {(x.stream, x.text) async for x in p} == {("stdout", "1\n"), ("stderr", "2\n")}
        await sb.files.write("a", "b")
        assert await sb.files.read_text("a") == "b"
        r = await c.run("```bash\necho hi\n```\n", session="sdk-async")
        assert r.passed and r.steps[0].stdout == "hi\n"


async def test_cancellation() -> None:
    async with AsyncTurnstone() as c, c.sandbox(session="") as sb:

        async def alive(word: str) -> bool:
            return any(word in " ".join(p["argv"]) and "exit" not in p for p in await sb.processes())

        async def soon(word: str, wanted: bool) -> None:
            end = time.monotonic() + WAIT
            while await alive(word) != wanted:
                assert time.monotonic() < end
                await asyncio.sleep(0.05)

        task = asyncio.create_task(sb.exec(["sleep", "4007"]))
        await soon("4007", True)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await soon("4007", False)
        assert (await sb.exec(["echo", "on"])).stdout == "on\n"


def test_the_operators_socket() -> None:
    socket = os.environ["TURN_TEST_SOCKET"]
    with Turnstone(f"unix:{socket}", token="") as c, c.sandbox(session="") as sb:
        assert sb.exec(["echo", "hi"]).stdout == "hi\n"
