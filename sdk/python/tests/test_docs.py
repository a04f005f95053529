"""The examples of docs/sdk-python.md, word for word, and the machine without a server."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from turnstone import Turnstone

DOCS = Path(os.environ.get("TURN_SDK_DOCS", Path(__file__).parents[3] / "docs")) / "sdk-python.md"
BLOCK = re.compile(r"<!-- run: (\w+) -->\n```python\n(.*?)\n```\n", re.DOTALL)
EXAMPLES = dict(BLOCK.findall(DOCS.read_text()))
# the front of the project shows the first lines that a reader sees
EXAMPLES["readme"] = re.findall(r"```python\n(.*?)\n```\n", (DOCS.parents[1] / "README.md").read_text(), re.DOTALL)[0]

ANALYZE = """
import os, pandas
os.makedirs("/workspace/output", exist_ok=True)
open("/workspace/output/n", "w").write(pandas.__version__)
"""
REPORT = """
import pandas
print(open("/workspace/output/n").read() == pandas.__version__, file=open("/workspace/output/same", "w"))
"""
PIP = "[install]\nno-index = true\nfind-links = /root/wheels\n"


def stub() -> bytes:
    """Return a wheel called pandas: the real one is large, and its registry is not what is tested."""
    out = io.BytesIO()
    about = "pandas-1.0.dist-info/"
    with zipfile.ZipFile(out, "w") as z:
        z.writestr("pandas.py", "__version__ = '1.0'\n")
        z.writestr(about + "METADATA", "Metadata-Version: 2.1\nName: pandas\nVersion: 1.0\n")
        z.writestr(about + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(about + "RECORD", f"pandas.py,,\n{about}METADATA,,\n{about}WHEEL,,\n{about}RECORD,,\n")
    return out.getvalue()


PIPELINE = "# Pipeline\n\n```bash\npython3 -c 'print(6 * 7)'\n```\n"


def run(name: str, cwd: Path, **env: str) -> str:
    p = subprocess.run(
        [sys.executable, "-c", EXAMPLES[name]], cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True,
        timeout=600)  # fmt: skip
    assert p.returncode == 0, p.stdout + p.stderr
    return p.stdout


@pytest.mark.server
@pytest.mark.parametrize("example", ["example", "readme"])
def test_the_example_word_for_word(example: str, tmp_path: Path, client: Turnstone) -> None:
    """Its files are in the sandbox's workspace before, and pip finds pandas in a folder there."""
    (tmp_path / "pipeline.md").write_text("---\nimage: python\n---\n" + PIPELINE)
    name = "sdk-" + example
    with Turnstone(session=name) as c:
        files = {"analyze.py": ANALYZE, "report.py": REPORT, "/etc/pip.conf": PIP,
                 "/root/wheels/pandas-1.0-py3-none-any.whl": stub()}  # fmt: skip
        with c.sandbox(image="python", files=files) as sb:
            sb.exec(["true"])
    out = run(example, tmp_path, TURN_SESSION=name)
    assert out.rstrip().endswith("True python") and "turn:result" in out
    turns = client.session(name).log()
    last = max(t["number"] for t in turns if t["branch"] == "main")
    assert client.session(name).read_file(last, "/workspace/output/same") == b"True\n", turns


@pytest.mark.server
@pytest.mark.parametrize("name", ["commands", "sessions", "async"])
def test_examples(name: str, tmp_path: Path) -> None:
    out = run(name, tmp_path)
    want = {"commands": "HELLO", "sessions": "True", "async": "['0\\n', '1\\n', '2\\n']"}[name]
    assert want in out if name != "commands" else "42" in out and "tr a-z A-Z" in out


@pytest.mark.server
def test_a_machine_without_a_server(tmp_path: Path) -> None:
    """The client starts one, which other programs use, too."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    shared = Path(os.environ["TURN_TEST_SERVER_HOME"])
    for part in ("templates", "kernel", "snapshots", "cache"):
        (home / part).symlink_to((shared / part).resolve())
    env = {"TURN_HOME": str(home), "TURN_HOST": "", "TURN_TOKEN": ""}
    program = (
        "from turnstone import Turnstone\n"
        "with Turnstone() as c, c.sandbox(session='') as sb:\n"
        "    print(sb.exec(['echo', 'hi']).stdout, end='')\n"
    )
    EXAMPLES["program"] = program
    try:
        assert run("program", tmp_path, **env) == "hi\n"
        pids = servers(home)
        assert len(pids) == 1
        assert run("program", tmp_path, **env) == "hi\n"
        assert servers(home) == pids
        assert (home / "client" / "key").stat().st_mode & 0o777 == 0o600
    finally:
        for pid in servers(home):
            os.kill(pid, 15)


def servers(home: Path) -> list[int]:
    """Return the servers of a state directory, which this user started."""
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            words = (proc / "cmdline").read_bytes().split(b"\0")
            env = (proc / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"TURN_HOME={home}".encode() in env and b"serve" in words:
            found.append(int(proc.name))
    return sorted(found)
