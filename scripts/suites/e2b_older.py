"""What an older client of E2B does most, with what later ones say of the same. Errors are the client's own."""

import os
import sys
import urllib.parse
from importlib.metadata import version

from e2b import CommandExitException, NotFoundException, Sandbox

release = tuple(int(part) for part in version("e2b").split("."))
LIFE, BOUND = 1800, 300


def fails(call, kind=Exception):
    """Returns the exception of a call, which has to be of a kind."""
    try:
        call()
    except kind as e:
        return e
    raise AssertionError("no " + kind.__name__)


def commands(box):
    assert box.commands.run("echo $((6*7))").stdout == "42\n"
    failed = fails(lambda: box.commands.run("echo out; exit 7"), CommandExitException)
    assert (failed.exit_code, failed.stdout, failed.error) == (7, "out\n", "exit status 7"), failed
    handle = box.commands.run("sleep 1000", background=True)
    assert handle.pid in [p.pid for p in box.commands.list()]
    assert handle.kill()
    failed = fails(handle.wait, CommandExitException)
    assert (failed.exit_code, failed.error) == (-1, "signal: killed"), failed


def files(box):
    box.files.write("/tmp/note", "text")
    assert box.files.read("/tmp/note") == "text"
    assert [e.name for e in box.files.list("/tmp") if e.name == "note"] == ["note"]
    box.commands.run("ln -s note /tmp/one; ln -s one /tmp/two")
    assert box.files.get_info("/tmp/two").symlink_target == "/tmp/note"
    watch = box.files.watch_dir("/tmp")
    box.files.write("/tmp/later", "")
    seen = []
    while "later" not in seen:
        seen += [event.name for event in watch.get_new_events()]
    fails(lambda: box.files.read("/tmp/no-such"), NotFoundException)


def life(box):
    port = urllib.parse.urlsplit(os.environ["E2B_SANDBOX_URL"]).port
    assert box.get_host(8000) == "8000-%s.localhost:%d" % (box.sandbox_id, port), box.get_host(8000)
    assert box.sandbox_id in [i.sandbox_id for i in Sandbox.list().next_items()]
    assert box.get_info().sandbox_id == box.sandbox_id
    box.set_timeout(LIFE)
    for clone in box.fork(timeout=LIFE) if hasattr(box, "fork") else []:
        assert clone.files.read("/tmp/note") == "text"
        clone.kill()
    (getattr(box, "pause", None) or box.beta_pause)()
    box = Sandbox.connect(box.sandbox_id, timeout=LIFE)
    assert box.files.read("/tmp/note") == "text"
    if hasattr(box, "create_snapshot"):
        copy = Sandbox.create(box.create_snapshot().snapshot_id, timeout=LIFE)
        assert copy.files.read("/tmp/note") == "text"
        copy.kill()
    return box


def end(box):
    handle = box.commands.run("sleep 1000", background=True, timeout=0)
    assert box.kill()
    said = str(fails(handle.wait))
    assert release < (2, 29, 1) or "killed" in said, said  # since then clients look whether the sandbox runs
    assert not box.is_running()
    fails(lambda: Sandbox.connect(box.sandbox_id), NotFoundException)


def interpreter():
    from e2b_code_interpreter import Sandbox as Interpreter
    with Interpreter.create(timeout=LIFE, request_timeout=600) as box:
        done = box.run_code("print('hi')\n6 * 7", timeout=BOUND)
        assert (done.text, done.logs.stdout) == ("42", ["hi\n"]), done
        shown = box.run_code("display({'application/x-other': 'value'}, raw=True)", timeout=BOUND).results
        assert [r.extra for r in shown] == [{"application/x-other": "value"}], shown


made = Sandbox.create(timeout=LIFE)
commands(made)
files(made)
end(life(made))
with Sandbox.create(timeout=LIFE, network={"deny_out": ["8.8.8.8"]}) as other:
    assert other.is_running()
if "interpreter" in sys.argv:
    interpreter()
del os.environ["E2B_API_KEY"]
print("e2b", version("e2b"), "works; without a key:", type(fails(lambda: Sandbox.create(timeout=LIFE))).__name__)
