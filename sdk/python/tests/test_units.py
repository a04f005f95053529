"""Parts without a connection: generated code, hosts, documents, digests, results, archives."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from conftest import TESTDATA

import turnstone
from turnstone import (
    ExhaustedError, IntegrityError, InvalidError, Kind, NotFoundError, Receipt, TurnstoneError,
    _archive, _proto, _rt_async, _rt_sync,
)  # fmt: skip
from turnstone._address import Address
from turnstone._document import document_files, parse_size, read_front
from turnstone._hosts import HostList, Store, state_directory
from turnstone._language import language_of
from turnstone._sshkey import PublicKey
from turnstone.errors import clean, error_of
from turnstone.results import receipt_of

KEY = PublicKey.of_ed25519(bytes(31) + b"\x01").text
SDK = Path(os.environ.get("TURN_SDK_SOURCE", Path(__file__).parents[1]))


def test_the_synchronous_client_is_generated() -> None:
    subprocess.run([sys.executable, SDK / "scripts" / "unasync.py", "--check"], check=True)


def test_both_runtimes_have_the_same_names() -> None:
    for name in ("Cond", "Lock", "Task", "WebSocket", "at_exit", "blocking", "not_at_exit", "sleep", "spawn"):
        assert hasattr(_rt_async, name) and hasattr(_rt_sync, name), name


def test_addresses() -> None:
    assert str(Address.parse("https://Turn.example.org:8443/a/")) == "https://turn.example.org:8443/a"
    assert Address.parse("unix:///run/x.sock").socket == "/run/x.sock"
    a = Address.parse("http://127.0.0.1:7420")
    assert a.channel("/turnstone/v1/nodes/n1") == "ws://127.0.0.1:7420/turnstone/v1/nodes/n1"
    for text in ("http://turn.example.org", "ftp://x", "https://u:p@x", "https://x?a", "https://x#a", "x",
                 "https://", "unix:", "https://x\n", "https://" + "x" * 3000, "http://localhost.evil.org"):  # fmt: skip
        with pytest.raises(InvalidError) as e:
            Address.parse(text)
        assert "u:p" not in str(e.value)
    for path in ("http://evil/turnstone/v1/x", "//evil/turnstone/v1/x", "/other", "/turnstone/v1/../x",
                 "/turnstone/v1/x?q", "/turnstone/v1/x\r\nA: b", ""):  # fmt: skip
        with pytest.raises(TurnstoneError):
            a.channel(path)


HOSTS = f"""
current = "work"
[hosts.work]
url = "https://turn.example.org"
token_file = "/home/me/token"
[hosts.work.nodes]
n1 = ["{KEY}"]
[hosts.fleet]
url = "https://fleet.example.org"
[hosts.fleet.root]
key = "{KEY}"
epoch = 3
[[hosts.fleet.root.nodes]]
name = "n1"
key = "{KEY}"
epoch = 3
after = 2026-01-01T00:00:00Z
before = 2026-03-01T00:00:00Z
"""


def test_hosts_are_read_and_written() -> None:
    known = HostList.parse(HOSTS)
    assert known.find("https://fleet.example.org")[0] == "fleet"
    assert HostList.parse(known.encode()) == known
    with pytest.raises(NotFoundError):
        known.find("other")
    for text in ("x = 1", "[hosts.work]\nurl = 1", "[hosts.local]\nurl = 'https://x'", 'current = "none"',
                 "[hosts.a]\nurl = 'http://x.org'", "[hosts.a]\nurl = 'https://x'\nmore = 1",
                 "[hosts.a]\nurl = 'https://x'\n[hosts.a.nodes]\nn = ['ssh-ed25519 x']"):  # fmt: skip
        with pytest.raises((ValueError, TurnstoneError)):
            HostList.parse(text)


def test_files_of_the_client(tmp_path: Path) -> None:
    home = tmp_path / "state"
    s = Store(home)
    key = s.client_key()
    path = home / "client" / "key"
    assert path.stat().st_mode & 0o777 == 0o600 and home.stat().st_mode & 0o777 == 0o700
    assert base64.b64decode(path.read_text()) == key.private_bytes()
    assert s.client_key().public == key.public
    path.chmod(0o644)
    with pytest.raises(InvalidError):
        s.client_key()
    path.chmod(0o600)
    path.write_text("damaged\n")
    with pytest.raises(InvalidError) as e:
        s.client_key()
    assert "damaged" in str(e.value) and "damaged\n" not in str(e.value)
    (home / "hosts.toml").write_text(HOSTS)
    (home / "hosts.toml").chmod(0o666)
    with pytest.raises(InvalidError):
        s.load()
    (home / "hosts.toml").chmod(0o600)
    assert s.load().current == "work"
    (home / "revoked").write_text(f"# old\n{KEY} me\n{PublicKey(KEY).fingerprint}\n")
    assert s.revoked() == {PublicKey(KEY).fingerprint}
    (home / "revoked").write_text("nonsense\n")
    with pytest.raises(InvalidError):
        s.revoked()


def test_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURN_HOME", "/x/y")
    assert state_directory() == Path("/x/y") and state_directory("/z") == Path("/z")
    monkeypatch.delenv("TURN_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", "/d")
    assert state_directory() == Path("/d/turnstone")


def test_front_matter() -> None:
    f = read_front("---\nimage: python # comment\ncpus: 2\nmemory: '512MiB'\nfiles:\n  - a.csv\n  - b:in/\n---\n# x\n")
    assert (f.image, f.cpus, f.memory, f.files) == ("python", 2, 512 << 20, ["a.csv", "b:in/"])
    assert read_front("---\nimage: x\n").image == "" and read_front("# x\n---\nimage: y\n---\n").image == ""
    assert read_front("---\nfiles: [a, 'b']\n---\n").files == ["a", "b"]
    with pytest.raises(InvalidError):
        parse_size("many")


def test_files_of_a_document_stay_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "doc").mkdir()
    (tmp_path / "secret").write_text("x")
    (tmp_path / "doc" / "own").write_text("x")
    (tmp_path / "doc" / "out").symlink_to("../secret")
    for name, fine in {"own": True, "own:in/": True, "../secret": False, "out": False, "/etc/passwd": False}.items():
        front = read_front(f"---\nfiles: ['{name}']\n---\n")
        if fine:
            assert len(document_files(front, tmp_path / "doc")) == 1
        else:
            with pytest.raises(InvalidError):
                document_files(front, tmp_path / "doc")
    with pytest.raises(InvalidError):
        document_files(read_front("---\nfiles: [own]\n---\n"), None)


def test_digests_do_not_depend_on_what_is_not_set() -> None:
    name = "turnstone.v1.CreateSandboxRequest"
    client = {"clientPublicKey": bytes(32), "nonce": bytes(32)}
    one = {"template": "python", "client": client, "timeout": 3.5}
    two = {"client": {**client, "proofs": [{"node": "n", "message": b"x"}]}, "timeout": 3.5, "template": "python",
           "name": "", "env": {}, "live": False, "contextId": None}  # fmt: skip
    assert _proto.proof_digest(name, one) == _proto.proof_digest(name, two)
    for change in ({"timeout": 3.6}, {"template": "base"}, {"env": {"A": "1"}}, {"live": True}, {"timeout": 0}):
        assert _proto.proof_digest(name, {**one, **change}) != _proto.proof_digest(name, one), change
    assert _proto.to_json(name, one)["timeout"] == "3.500000000s"


def test_damaged_errors_of_a_server() -> None:
    good = b"\x0a\x03abc\x10\x02\x30\x01\x4a\x05proof"
    assert _proto.decode("turnstone.v1.Error", good) == {
        "op": "abc", "kind": 2, "retryable": 1, "reason": "proof"}  # fmt: skip
    for raw in (b"\x0a\xff", b"\x0a", b"\xff" * 20, b"\x0b", b"\x10\x0a\x08", b"\x08\x01"):
        try:
            _proto.decode("turnstone.v1.Error", raw)
        except ValueError:
            pass


def test_errors() -> None:
    e = error_of("not_found", "x.y", "sandbox a", "no such sandbox", hint="look")
    assert isinstance(e, NotFoundError) and e.kind is Kind.NOT_FOUND and not e.retryable
    assert str(e) == "sandbox a: no such sandbox (look)"
    assert error_of("of the future", "x").kind is Kind.INTERNAL
    assert error_of("exhausted", "x", retry_after=1).retryable and error_of("dead", "x").retryable
    assert isinstance(error_of("timeout", "x"), TimeoutError)
    assert "\x1b" not in clean("\x1b[31m" + "x" * 5000, 100) and len(clean("x" * 5000, 100)) == 100


HOSTILE = "<script>alert(1)</script>\n```\n# head\n<img src=x onerror=alert(1)>"


def receipt() -> Receipt:
    step = {"name": "<b>", "status": "failed", "stdout": HOSTILE, "stderr": "", "duration_ms": 10,
            "commands": [{"text": "x", "language": "python", "span": {"from": 1, "to": 2}}]}  # fmt: skip
    markdown = "# T\n````text\n" + HOSTILE + "\n````\n"
    return receipt_of({"id": "t_1", "result": "failed", "receipt": markdown, "steps": [step], "error": "<i>"}, "dead")


def test_what_a_guest_printed_is_no_markup() -> None:
    r = receipt()
    page = r._repr_html_()
    assert "<script" not in page and "<img" not in page and "<b>" not in page and "&lt;script&gt;" in page
    text = r._repr_markdown_()
    fence = text.split("markdown\n")[0]
    assert set(fence) == {"`"} and len(fence) == 5 and text.rstrip().endswith("\n" + fence)
    assert not r.passed and r.kind is Kind.DEAD and r.steps[0].commands[0].span is not None


def test_reports_of_another_shape() -> None:
    r = receipt_of({"steps": [1, {"commands": {}, "exit_code": "x"}], "number": "x", "receipt": 3})
    assert r.steps[0].exit_code is None and r.number == 0 and r.markdown == ""


def test_a_turn_without_a_document_prints_something() -> None:
    assert "t_1" in str(receipt_of({"id": "t_1", "result": "passed"}))
    assert str(receipt_of({"id": "t_1", "receipt": "# A\n"})) == "# A\n"


def test_languages() -> None:
    for argv, language in ((["python3.12", "x"], "python"), (["/usr/bin/env", "A=1", "node", "x"], "javascript"),
                           (["sudo", "-n", "jq", "."], "jq"), (["ls"], "bash"), ([], "bash"),
                           (["timeout", "5s", "ruby", "x"], "ruby")):  # fmt: skip
        assert language_of(argv) == language


ARCHIVES = json.loads((TESTDATA / "archives.json").read_text())["cases"]


@pytest.mark.parametrize("case", ARCHIVES, ids=[c["name"] for c in ARCHIVES])
def test_archives(case: dict[str, Any], tmp_path: Path) -> None:
    data = b"".join(base64.b64decode(block).ljust(512, b"\0") for block in case["blocks"])
    dest = tmp_path / "dest"
    limits = {"entries": case.get("entries", 1000), "size": case.get("bytes", 1 << 20)}
    if fault := case.get("fault"):
        with pytest.raises(ExhaustedError if fault == "exhausted" else IntegrityError):
            _archive.unpack(io.BytesIO(data), f"{dest}/", "got", **limits)
    else:
        _archive.unpack(io.BytesIO(data), f"{dest}/", "got", **limits)
        found = [str(p.relative_to(dest)) for p in dest.rglob("*") if p.is_symlink() or not p.is_dir()]
        assert sorted(found) == case["files"]
    assert [p.name for p in tmp_path.iterdir()] == ["dest"] and {p.name for p in dest.iterdir()} <= {"got"}


def test_archives_are_bounded(tmp_path: Path) -> None:
    def header(name: str, kind: bytes, size: int) -> bytes:
        info = tarfile.TarInfo(name)
        info.type, info.size = kind, size
        return info.tobuf(tarfile.GNU_FORMAT)

    record = b"8 a=bcd\n".ljust(512, b"\0")
    for data in (
        header("pax", tarfile.XHDTYPE, 1 << 30),
        header("long", tarfile.GNUTYPE_LONGNAME, 1 << 30),
        (header("pax", tarfile.XHDTYPE, 8) + record) * 5000,
        b"no archive" * 100,
    ):
        with pytest.raises(IntegrityError):
            _archive.unpack(io.BytesIO(data), f"{tmp_path}/", "got")
    assert list(tmp_path.iterdir()) == []


def test_archives_follow_no_earlier_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "dest").mkdir()
    (tmp_path / "dest" / "got").symlink_to(tmp_path / "outside")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("got/x"), io.BytesIO())
    out.seek(0)
    with pytest.raises(IntegrityError):
        _archive.unpack(out, str(tmp_path / "dest"), "got")
    assert list((tmp_path / "outside").iterdir()) == []


def test_hard_links_lead_to_files_of_the_archive(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "key").write_text("secret")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, link in (("got/own", ""), ("got/same", "got/own"), ("got/key", ".ssh/key")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.LNKTYPE if link else tarfile.REGTYPE, link
            info.size = 0 if link else 1
            tar.addfile(info, io.BytesIO(b"" if link else b"1"))
    out.seek(0)
    assert _archive.unpack(out, str(tmp_path), "got") == ["got/key"]
    assert (tmp_path / "got" / "same").read_bytes() == b"1"
    assert not (tmp_path / "got" / "key").exists()


def test_pack_and_unpack(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_text("c")
    with _archive.pack([(tmp_path / "a", "a")]) as f:
        assert _archive.unpack(f, str(tmp_path / "copy"), "a") == []
    assert (tmp_path / "copy" / "b" / "c").read_text() == "c"
    with pytest.raises(InvalidError):
        _archive.pack([(tmp_path / "none", "none")])


def test_nothing_is_started_by_making_a_client(tmp_path: Path) -> None:
    c = turnstone.Turnstone(home=tmp_path / "none")
    c.close()
    with pytest.raises(turnstone.UnavailableError):
        c.templates()
    assert not (tmp_path / "none").exists()

    async def main() -> None:
        async with turnstone.AsyncTurnstone(home=tmp_path / "none"):
            pass

    asyncio.run(main())


class _Templates:
    """A server that answers what it knows of templates, and makes sandboxes."""

    def __init__(self, answer: str | TurnstoneError) -> None:
        self.answer, self.calls = answer, []  # type: ignore[var-annotated]

    def asker(self) -> dict[str, str]:
        return {"nonce": "AAAA"}

    def call(self, method: str, request: Any, deadline: Any) -> dict[str, Any]:
        self.calls.append((method, request.get("template", "")))
        if method == "SandboxService/CreateSandbox":
            return {"sandbox": {"sandboxId": "sb_1"}}
        if isinstance(self.answer, TurnstoneError):
            raise self.answer
        return {"template": {"state": f"TEMPLATE_STATE_{self.answer}"}}


@pytest.mark.parametrize(
    ("image", "session", "answer", "says"),
    [
        ("python", "", "MISSING", "template python is not built yet"),
        ("python", "", "BUILDING", "template python is not built yet"),
        ("python", "mine", "FAILED", "template python is not built yet"),
        ("", "", "MISSING", "template base is not built yet"),
        ("", "mine", "MISSING", ""),
        ("python", "", "BUILT", ""),
        ("python:3.12", "", NotFoundError("template.get", "it", "is gone"), "image python:3.12 is not here yet"),
        ("pithon", "", NotFoundError("template.get", "it", "is gone"), ""),
        ("python", "", turnstone.DeniedError("template.get", "the token", "may not"), ""),
    ],
)
def test_the_build_of_a_template_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    image: str, session: str, answer: Any, says: str,
) -> None:  # fmt: skip
    monkeypatch.delenv("TURN_SESSION", raising=False)
    server = _Templates(answer)
    c = turnstone.Turnstone(home=tmp_path / "none", session=session or None)
    monkeypatch.setattr(c, "server", lambda: server)
    for _ in range(2):
        c.release(c.sandbox(image))
    c.close()
    assert [says in r.getMessage() for r in caplog.records] == ([True, True] if says else [])
    asks = [m for m, _ in server.calls if m == "TemplateService/GetTemplate"]
    if answer == "BUILT":
        assert len(asks) == 1, "a template that was built is asked for once"


def test_a_host_that_nobody_vouches_for(tmp_path: Path) -> None:
    with turnstone.Turnstone("https://turn.example.org", home=tmp_path) as c, pytest.raises(NotFoundError):
        c.templates()
    with turnstone.Turnstone("work", home=tmp_path) as c, pytest.raises(NotFoundError):
        c.templates()
