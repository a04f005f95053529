"""E2B's Python clients, unchanged, against a server of ours: scripts/suites/e2b runs this."""

import asyncio
import datetime
import io
import os
import re
import subprocess
import sys
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request
import uuid

from e2b import (AsyncSandbox, AuthenticationException, CommandExitException, FileNotFoundException,
                 InvalidArgumentException, NotFoundException, PtySize, Sandbox, SandboxException,
                 SandboxNotFoundException, TimeoutException)
from e2b.sandbox.sandbox_api import SandboxQuery, SandboxState
from e2b_code_interpreter import Sandbox as Interpreter

LIFE = 1800  # seconds: longer than this suite
BOUND = 300


def until(what, seconds=BOUND):
    """Waits for what is meant, with a generous bound."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = what()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError("it did not happen")


class WithSandbox(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Sandbox.create(timeout=LIFE, metadata={"suite": cls.__name__}, envs={"FROM": "create"})

    @classmethod
    def tearDownClass(cls):
        cls.s.kill()


def cases(table, check):
    """A decorator that adds a test for each row of a table."""
    def add(cls):
        for name, *row in table:
            def test(self, row=row):
                check(self, *row)
            setattr(cls, "test_" + name, test)
        return cls
    return add


def run_case(self, command, options, want):
    r = self.s.commands.run(command, timeout=BOUND, **options)
    self.assertEqual((r.stdout, r.stderr, r.exit_code), want)


@cases([
    ("stdout", "echo hello", {}, ("hello\n", "", 0)),
    ("stderr", "echo hello >&2", {}, ("", "hello\n", 0)),
    ("pipes", "seq 100 | tail -n 1", {}, ("100\n", "", 0)),
    ("quotes", "printf '%s|' \"a b\" 'c \"d'", {}, ("a b|c \"d|", "", 0)),
    ("unicode", "printf 'h\u00e9llo \u4e16\u754c'", {}, ("h\u00e9llo \u4e16\u754c", "", 0)),
    ("several_lines", "cat <<'X'\na\nb\nX", {}, ("a\nb\n", "", 0)),
    ("created_environment", "echo $FROM", {}, ("create\n", "", 0)),
    ("environment", "echo $A-$B", {"envs": {"A": "1", "B": "x=y"}}, ("1-x=y\n", "", 0)),
    ("environment_wins", "echo $FROM", {"envs": {"FROM": "call"}}, ("call\n", "", 0)),
    ("directory", "pwd", {"cwd": "/tmp"}, ("/tmp\n", "", 0)),
    ("relative_directory", "pwd", {"cwd": "../tmp"}, ("/tmp\n", "", 0)),
    ("user", "whoami", {"user": "root"}, ("root\n", "", 0)),
    ("other_user", "whoami", {"user": "nobody", "cwd": "/"}, ("nobody\n", "", 0)),
    ("no_input", "cat", {}, ("", "", 0)),
    ("much_output", "head -c 3000000 /dev/zero | tr '\\0' x | wc -c", {}, ("3000000\n", "", 0)),
    ("empty", "true", {}, ("", "", 0)),
], run_case)
class TestCommands(WithSandbox):
    def test_exit_code(self):
        with self.assertRaises(CommandExitException) as e:
            self.s.commands.run("echo out; echo err >&2; exit 7")
        self.assertEqual((e.exception.exit_code, e.exception.stdout, e.exception.stderr),
                         (7, "out\n", "err\n"))

    def test_errors(self):
        for command, code, error in (("exit 7", 7, "exit status 7"), ("kill -9 $$", -1, "signal: killed"),
                                     ("kill -TERM $$", -1, "signal: terminated"),
                                     ("kill -USR1 $$", -1, "signal: user defined signal 1"),
                                     ("kill -34 $$", -1, "signal: signal 34"),
                                     ("bash -c 'kill -9 $$'; exit $?", 137, "exit status 137")):
            with self.assertRaises(CommandExitException) as e:
                self.s.commands.run(command)
            self.assertEqual((e.exception.exit_code, e.exception.error), (code, error))
        self.assertIsNone(self.s.commands.run("true").error)

    def test_unknown_program(self):
        with self.assertRaises(CommandExitException) as e:
            self.s.commands.run("no-such-program")
        self.assertEqual(e.exception.exit_code, 127)

    def test_missing_directory(self):
        with self.assertRaises(InvalidArgumentException):
            self.s.commands.run("pwd", cwd="/no/such")

    def test_unknown_user(self):
        with self.assertRaises(AuthenticationException):
            self.s.commands.run("id", user="no-such-user")

    def test_timeout_kills(self):
        with self.assertRaises(TimeoutException):
            self.s.commands.run("echo $$ > /tmp/timeout.pid; exec sleep 1000", timeout=1)
        until(lambda: not any("sleep 1000" in " ".join(p.args) for p in self.s.commands.list()))

    def test_callbacks(self):
        out, err = [], []
        self.s.commands.run("echo a; echo b >&2", on_stdout=out.append, on_stderr=err.append)
        self.assertEqual(("".join(out), "".join(err)), ("a\n", "b\n"))

    def test_background(self):
        h = self.s.commands.run("echo begun; sleep 1000", background=True, timeout=BOUND)
        self.assertGreater(h.pid, 0)
        for out, _, _ in h:
            self.assertEqual(out, "begun\n")
            break
        self.assertTrue(h.kill())
        with self.assertRaises(CommandExitException) as e:
            h.wait()
        self.assertEqual((e.exception.exit_code, e.exception.error), (-1, "signal: killed"))

    def test_list(self):
        h = self.s.commands.run("sleep 1001", background=True)
        found = [p for p in self.s.commands.list() if p.pid == h.pid]
        self.assertEqual((found[0].cmd, found[0].args), ("/bin/bash", ["-l", "-c", "sleep 1001"]))
        h.kill()

    def test_stdin(self):
        h = self.s.commands.run("cat", background=True, stdin=True)
        h.send_stdin("one\n")
        self.s.commands.send_stdin(h.pid, b"two\n")
        h.close_stdin()
        self.assertEqual(h.wait().stdout, "one\ntwo\n")

    def test_large_stdin(self):
        h = self.s.commands.run("wc -c", background=True, stdin=True)
        h.send_stdin("x" * 1_000_000)
        h.close_stdin()
        self.assertEqual(h.wait().stdout, "1000000\n")

    def test_stream_input(self):
        h = self.s.commands.run("cat", background=True, stdin=True)
        self.s.commands.stream_input(h.pid, (b"%d\n" % n for n in range(20)))
        h.close_stdin()
        self.assertEqual(h.wait().stdout, "".join("%d\n" % n for n in range(20)))

    def test_connect(self):
        h = self.s.commands.run("read line; echo got $line", background=True, stdin=True)
        h.disconnect()
        again = self.s.commands.connect(h.pid)
        self.s.commands.send_stdin(h.pid, "it\n")
        self.assertEqual(again.wait().stdout, "got it\n")

    def test_kill_unknown(self):
        self.assertFalse(self.s.commands.kill(999_999))

    def test_input_of_unknown(self):
        with self.assertRaises(NotFoundException):
            self.s.commands.send_stdin(999_999, "x")

    def test_connect_unknown(self):
        with self.assertRaises(NotFoundException):
            self.s.commands.connect(999_999)

    def test_disconnected_continues(self):
        h = self.s.commands.run("sleep 1; echo done > /tmp/continued", background=True)
        h.disconnect()
        until(lambda: self.s.files.exists("/tmp/continued"))

    def test_unread_output_is_bounded(self):
        h = self.s.commands.run("head -c 50000000 /dev/zero; echo end >&2", background=True, timeout=BOUND)
        self.assertEqual(self.s.commands.run("echo alive").stdout, "alive\n")
        h.kill()

    def test_concurrent(self):
        results = {}
        def one(n):
            results[n] = self.s.commands.run("echo %d" % n).stdout
        all = [threading.Thread(target=one, args=(n,)) for n in range(8)]
        for t in all:
            t.start()
        for t in all:
            t.join()
        self.assertEqual(results, {n: "%d\n" % n for n in range(8)})


class TestTerminal(WithSandbox):
    def collect(self, handle):
        out = []
        try:
            handle.wait(on_pty=out.append)
        except CommandExitException:
            pass
        return b"".join(out).decode(errors="replace")

    def test_size_and_resize(self):
        h = self.s.pty.create(PtySize(rows=24, cols=80), timeout=BOUND)
        self.s.pty.resize(h.pid, PtySize(rows=33, cols=111))
        self.s.pty.send_stdin(h.pid, b"stty size; exit\n")
        self.assertIn("33 111", self.collect(h))

    def test_environment(self):
        h = self.s.pty.create(PtySize(rows=24, cols=80), envs={"A": "here"}, cwd="/tmp", timeout=BOUND)
        self.s.pty.send_stdin(h.pid, b"echo $A-$TERM-$PWD; exit\n")
        self.assertIn("here-xterm-256color-/tmp", self.collect(h))

    def test_kill(self):
        h = self.s.pty.create(PtySize(rows=24, cols=80), timeout=BOUND)
        self.assertTrue(self.s.pty.kill(h.pid))
        self.collect(h)
        self.assertFalse(self.s.pty.kill(h.pid))

    def test_no_size(self):
        with self.assertRaises(InvalidArgumentException):
            self.s.pty.create(PtySize(rows=0, cols=0))


def write_case(self, path, data, read):
    info = self.s.files.write(path, data)
    self.assertEqual(info.path, os.path.normpath(os.path.join("/workspace", path)))
    self.assertEqual(bytes(self.s.files.read(info.path, format="bytes")), read)


@cases([
    ("text", "/tmp/w/text", "hello", b"hello"),
    ("empty", "/tmp/w/empty", "", b""),
    ("bytes", "/tmp/w/bytes", bytes(range(256)), bytes(range(256))),
    ("unicode", "/tmp/w/h\u00e9 \u4e16", "\u4e16", "\u4e16".encode()),
    ("spaces", "/tmp/w/a b & c?d=e#f%20", "x", b"x"),
    ("relative", "relative.txt", "x", b"x"),
    ("new_directories", "/tmp/w/deep/er/and/deeper", "x", b"x"),
    ("dots", "/tmp/w/../w/dots", "x", b"x"),
    ("stream", "/tmp/w/stream", io.BytesIO(b"y" * 3_000_000), b"y" * 3_000_000),
    ("newlines", "/tmp/w/lines", "a\r\nb\n\n", b"a\r\nb\n\n"),
], write_case)
class TestFiles(WithSandbox):
    def test_overwrite(self):
        self.s.files.write("/tmp/over", "long content")
        self.s.files.write("/tmp/over", "short")
        self.assertEqual(self.s.files.read("/tmp/over"), "short")

    def test_several(self):
        infos = self.s.files.write_files([{"path": "/tmp/s/%d" % n, "data": str(n)} for n in range(5)])
        self.assertEqual([i.path for i in infos], ["/tmp/s/%d" % n for n in range(5)])
        self.assertEqual(self.s.files.read("/tmp/s/3"), "3")

    def test_gzip(self):
        self.s.files.write("/tmp/zipped", "z" * 100_000, gzip=True)
        self.assertEqual(self.s.files.read("/tmp/zipped", gzip=True), "z" * 100_000)

    def test_octet_stream(self):
        self.s.files.write("/tmp/octets", b"\0\1", use_octet_stream=True)
        self.assertEqual(bytes(self.s.files.read("/tmp/octets", format="bytes")), b"\0\1")

    def test_large_is_streamed(self):
        size = 64 << 20
        chunk = os.urandom(1 << 20)
        self.s.files.write("/tmp/large", (chunk for _ in range(size >> 20)))
        got = 0
        with self.s.files.read("/tmp/large", format="stream") as stream:
            for part in stream:
                got += len(part)
        self.assertEqual(got, size)
        self.s.files.remove("/tmp/large")

    def test_read_missing(self):
        with self.assertRaises(FileNotFoundException):
            self.s.files.read("/tmp/no-such")

    def test_read_directory(self):
        with self.assertRaises(InvalidArgumentException):
            self.s.files.read("/tmp")

    def test_write_to_directory(self):
        with self.assertRaises(InvalidArgumentException):
            self.s.files.write("/tmp", "x")

    def test_exists(self):
        self.s.files.write("/tmp/there", "")
        self.assertTrue(self.s.files.exists("/tmp/there"))
        self.assertFalse(self.s.files.exists("/tmp/not-there"))

    def test_info(self):
        self.s.files.write("/tmp/info", "12345")
        self.s.commands.run("chmod 640 /tmp/info")
        i = self.s.files.get_info("/tmp/info")
        self.assertEqual((i.name, i.path, i.size, i.mode, i.permissions, i.owner, i.group, i.type.value),
                         ("info", "/tmp/info", 5, 0o640, "-rw-r-----", "root", "root", "file"))

    def test_info_of_links(self):
        self.s.commands.run("mkdir -p /tmp/k/dir; cd /tmp/k; touch dir/f; chmod 640 dir/f; ln -sfn dir/f one; ln -sfn one two;"
                            "ln -sfn dir to; ln -sfn none dangling; ln -sfn loop loop; ln -sfn ../one dir/up")
        for path, target, mode in (("one", "/tmp/k/dir/f", 0o640), ("two", "/tmp/k/dir/f", 0o640),
                                   ("to/up", "/tmp/k/dir/f", 0o640), ("to", "/tmp/k/dir", 0o755),
                                   ("dangling", "/tmp/k/dangling", 0), ("loop", "/tmp/k/loop", 0)):
            i = self.s.files.get_info("/tmp/k/" + path)
            self.assertEqual((i.path, i.type.value, i.symlink_target, i.mode, i.permissions),
                             ("/tmp/k/" + path, "symlink", target, mode, "Lrwxrwxrwx"))
        self.assertIsNone(self.s.files.get_info("/tmp/k/to/f").symlink_target)
        self.assertEqual({e.name: e.symlink_target for e in self.s.files.list("/tmp/k")},  # the client leaves out others
                         {"dir": None, "one": "/tmp/k/dir/f", "two": "/tmp/k/dir/f", "to": "/tmp/k/dir"})

    def test_permissions_of_special_files(self):
        self.s.commands.run("mkdir -p /tmp/p; cd /tmp/p; mkfifo -m 600 fifo; touch u g; chmod 4755 u; chmod 2750 g; mkdir -m 1777 t")
        self.assertEqual({n: self.s.files.get_info("/tmp/p/" + n).permissions for n in ("fifo", "u", "g", "t")},
                         {"fifo": "prw-------", "u": "urwxr-xr-x", "g": "grwxr-x---", "t": "dtrwxrwxrwx"})

    def test_info_missing(self):
        with self.assertRaises(FileNotFoundException):
            self.s.files.get_info("/tmp/no-such")

    def test_list(self):
        self.s.commands.run("mkdir -p /tmp/l/d/e; touch /tmp/l/b /tmp/l/a /tmp/l/d/c")
        names = lambda depth: [e.path for e in self.s.files.list("/tmp/l", depth=depth)]
        self.assertEqual(names(1), ["/tmp/l/a", "/tmp/l/b", "/tmp/l/d"])
        self.assertEqual(names(2), ["/tmp/l/a", "/tmp/l/b", "/tmp/l/d", "/tmp/l/d/c", "/tmp/l/d/e"])

    def test_list_missing(self):
        with self.assertRaises(FileNotFoundException):
            self.s.files.list("/tmp/no-such")

    def test_list_file(self):
        self.s.files.write("/tmp/file", "")
        with self.assertRaises(InvalidArgumentException):
            self.s.files.list("/tmp/file")

    def test_list_many(self):
        self.s.commands.run("mkdir -p /tmp/many && cd /tmp/many && seq 2500 | xargs touch")
        self.assertEqual(len(self.s.files.list("/tmp/many")), 2500)

    def test_make_dir(self):
        self.assertTrue(self.s.files.make_dir("/tmp/made/below"))
        self.assertFalse(self.s.files.make_dir("/tmp/made/below"))

    def test_rename(self):
        self.s.files.write("/tmp/old", "x")
        self.assertEqual(self.s.files.rename("/tmp/old", "/tmp/n/new").path, "/tmp/n/new")
        self.assertFalse(self.s.files.exists("/tmp/old"))

    def test_rename_missing(self):
        with self.assertRaises(FileNotFoundException):
            self.s.files.rename("/tmp/no-such", "/tmp/x")

    def test_remove(self):
        self.s.files.write("/tmp/rm/a/b", "x")
        self.s.files.remove("/tmp/rm")
        self.s.files.remove("/tmp/rm")
        self.assertFalse(self.s.files.exists("/tmp/rm"))

    def test_zero_byte(self):
        with self.assertRaises(InvalidArgumentException):
            self.s.files.exists("/tmp/a\0b")

    def test_of_user(self):
        self.s.files.write("/tmp/owned/file", "x", user="nobody")
        self.assertEqual(self.s.files.get_info("/tmp/owned/file").owner, "nobody")

    def test_watch(self):
        self.s.files.make_dir("/tmp/watched")
        w = self.s.files.watch_dir("/tmp/watched")
        self.s.files.write("/tmp/watched/f", "x")
        seen = []
        until(lambda: seen.extend(w.get_new_events()) or
              {("f", "create"), ("f", "write")} <= {(e.name, e.type.value) for e in seen})
        w.stop()
        with self.assertRaises(SandboxException):
            w.get_new_events()

    def test_watch_recursive(self):
        self.s.files.make_dir("/tmp/tree/below")
        w = self.s.files.watch_dir("/tmp/tree", recursive=True, include_entry=True)
        self.s.commands.run("echo x > /tmp/tree/below/f; rm /tmp/tree/below/f")
        seen = []
        until(lambda: seen.extend(w.get_new_events()) or ("below/f", "remove") in
              {(e.name, e.type.value) for e in seen})
        w.stop()

    def test_watch_missing(self):
        with self.assertRaises(SandboxException):
            self.s.files.watch_dir("/tmp/no-such")


class TestLinks(WithSandbox):
    def fetch(self, url, data=None, headers={}):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data=data, headers=headers)) as r:
                return r.status, r.read()
        except urllib.error.HTTPError as e:
            return e.code, e.read()

    def test_download(self):
        self.s.files.write("/tmp/a b", "content")
        self.assertEqual(self.fetch(self.s.download_url("/tmp/a b")), (200, b"content"))

    def test_download_expires(self):
        self.s.files.write("/tmp/e", "content")
        url = self.s.download_url("/tmp/e", use_signature_expiration=3600)
        self.assertEqual(self.fetch(url), (200, b"content"))
        self.assertEqual(self.fetch(self.s.download_url("/tmp/e", use_signature_expiration=-10))[0], 401)

    def test_expiry_is_signed(self):
        url = self.s.download_url("/tmp/e", use_signature_expiration=3600)
        self.assertEqual(self.fetch(url + "0")[0], 401)

    def test_other_path(self):
        url = self.s.download_url("/tmp/e").replace(urllib.parse.quote("/tmp/e", safe=""), "%2Fetc%2Fpasswd")
        self.assertEqual(self.fetch(url)[0], 401)

    def test_upload(self):
        body = b"--X\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nup\r\n--X--\r\n"
        kind = {"Content-Type": "multipart/form-data; boundary=X"}
        self.assertEqual(self.fetch(self.s.upload_url("/tmp/up"), body, kind)[0], 200)
        self.assertEqual(self.s.files.read("/tmp/up"), "up")

    def test_download_link_does_not_upload(self):
        self.assertEqual(self.fetch(self.s.download_url("/tmp/up2"), b"x",
                                    {"Content-Type": "application/octet-stream"})[0], 401)


def curl(sandbox, port, path="/", token=True):
    """Asks a port of a sandbox by the name that get_host returns, and returns the status and the text."""
    token = ["-H", "e2b-traffic-access-token: " + sandbox.traffic_access_token] if token else []
    out = subprocess.run(["curl", "-s", "-w", "\n%{http_code}", *token, "http://" + sandbox.get_host(port) + path],
                         capture_output=True, text=True, check=True).stdout
    text, _, status = out.rpartition("\n")
    return int(status), text


class TestPorts(unittest.TestCase):
    """With no setting e2b.domain."""

    @classmethod
    def setUpClass(cls):
        cls.s = Sandbox.create("python", timeout=LIFE)
        cls.off = Sandbox.create("python", timeout=LIFE, allow_internet_access=False)

    @classmethod
    def tearDownClass(cls):
        cls.s.kill()
        cls.off.kill()

    def serve(self, sandbox, port, address):
        sandbox.files.write("/srv/site/page", "from %s" % address)
        return sandbox.commands.run("cd /srv/site; exec python3 -m http.server %d --bind %s" % (port, address),
                                    background=True, timeout=0)

    def test_host(self):
        self.assertEqual(self.s.get_host(8000), "8000-%s.localhost:%d" % (
            self.s.sandbox_id, urllib.parse.urlsplit(os.environ["E2B_SANDBOX_URL"]).port))

    def test_listeners(self):
        for n, (sandbox, address) in enumerate((b, a) for b in (self.s, self.off)
                                               for a in ("0.0.0.0", "127.0.0.1", "::1", "::", "localhost")):
            h = self.serve(sandbox, 8100 + n, address)
            status, text = until(lambda: (lambda a: a if a[0] != 502 else None)(curl(sandbox, 8100 + n, "/page")))
            self.assertEqual((status, text), (200, "from " + address))
            self.assertEqual(curl(sandbox, 8100 + n, "/page", token=False)[0], 401)
            h.kill()

    def test_where_nobody_listens(self):
        for sandbox in (self.s, self.off):
            status, text = curl(sandbox, 8999)
            self.assertEqual(status, 502)
            self.assertIn("port is not open", text)

    def test_request(self):
        self.s.files.write("/srv/echo.py", "from http.server import *\nclass H(BaseHTTPRequestHandler):\n def do_GET(self):\n"
                           "  self.send_response(200); self.end_headers()\n"
                           "  self.wfile.write((self.path + str(self.headers)).encode())\n"
                           "HTTPServer(('127.0.0.1', 8200), H).serve_forever()")
        h = self.s.commands.run("exec python3 /srv/echo.py", background=True, timeout=0)
        status, text = until(lambda: (lambda a: a if a[0] != 502 else None)(curl(self.s, 8200, "/page?a=b")))
        self.assertEqual(status, 200)
        self.assertIn("/page?a=b", text)
        self.assertNotIn(self.s.traffic_access_token, text)
        h.kill()

    def test_page(self):
        """The program of docs/e2b.md."""
        with open(os.environ["E2B_PAGE"]) as page:
            program = re.search(r"cat >web.py <<'END'\n(.*?)\nEND\n", page.read(), re.S)[1]
        command = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        said = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
        self.assertIn("Directory listing", said.stdout)


class TestLife(unittest.TestCase):
    def setUp(self):
        self.kept = []

    def tearDown(self):
        for s in self.kept:
            s.kill()

    def make(self, **options):
        options.setdefault("timeout", LIFE)
        s = Sandbox.create(**options)
        self.kept.append(s)
        return s

    def test_info_and_kill(self):
        s = self.make(metadata={"a": "b"})
        i = s.get_info()
        self.assertEqual((i.sandbox_id, i.template_id, i.metadata, i.state.value, i.lifecycle),
                         (s.sandbox_id, "base", {"a": "b"}, "running",
                          {"on_timeout": "kill", "auto_resume": False}))
        self.assertTrue(s.is_running())
        self.assertTrue(s.kill())
        self.assertFalse(s.is_running())
        self.assertFalse(s.kill())
        with self.assertRaises(SandboxNotFoundException):
            s.get_info()
        with self.assertRaises(SandboxException):
            s.commands.run("true")

    def test_killed_while_it_is_used(self):
        for end in (lambda s: s.kill(), lambda s: s.set_timeout(1)):
            s = self.make()
            uses = [s.commands.run("sleep 1000", background=True, timeout=0),
                    s.commands.run("yes | head -c 1000", background=True, timeout=0),
                    s.commands.connect(s.commands.run("sleep 1000", background=True, timeout=0).pid, timeout=0),
                    s.pty.create(PtySize(rows=24, cols=80), timeout=0)]
            self.assertEqual(len(uses.pop(1).wait().stdout), 1000)
            end(s)
            for use in uses:
                with self.assertRaises(SandboxException) as e:
                    use.wait()
                self.assertIn("killed", str(e.exception))
            for call in (lambda: s.commands.run("true"), lambda: s.files.read("/etc/hosts"),
                         lambda: s.files.write("/tmp/x", "y"), lambda: s.files.list("/"),
                         lambda: s.commands.list()):
                with self.assertRaises(SandboxException) as e:
                    call()
                self.assertIn("killed", str(e.exception))
            with self.assertRaises(SandboxNotFoundException):
                s.get_info()

    def test_timeouts(self):
        s = self.make()
        now = datetime.datetime.now(datetime.timezone.utc)
        s.set_timeout(7200)
        self.assertGreater(s.get_info().end_at, now + datetime.timedelta(seconds=7000))
        s.connect(timeout=60)  # never shorter
        self.assertGreater(s.get_info().end_at, now + datetime.timedelta(seconds=7000))
        with self.assertRaises(SandboxException):
            s.set_timeout(10 ** 9)

    def test_ends_in_time(self):
        s = self.make(timeout=1)
        until(lambda: not s.is_running())

    def test_connect(self):
        s = self.make()
        s.files.write("/tmp/x", "kept")
        again = Sandbox.connect(s.sandbox_id)
        self.assertEqual(again.files.read("/tmp/x"), "kept")

    def test_pause_keeps_memory(self):
        s = self.make()
        h = s.commands.run("read x; echo $x-kept > /tmp/out", background=True, stdin=True, timeout=0)
        self.assertTrue(s.pause())
        self.assertFalse(s.pause())
        self.assertFalse(s.is_running())
        self.assertEqual(s.get_info().state, SandboxState.PAUSED)
        page = Sandbox.list(SandboxQuery(state=[SandboxState.PAUSED])).next_items()
        self.assertIn(s.sandbox_id, [i.sandbox_id for i in page])
        s.connect(timeout=LIFE)
        self.assertIn(h.pid, [p.pid for p in s.commands.list()])
        self.assertEqual(s.get_info().state, SandboxState.RUNNING)

    def test_fork(self):
        s = self.make()
        s.files.write("/tmp/x", "before")
        clones = s.fork(timeout=LIFE, count=2)
        self.kept += clones
        clones[0].files.write("/tmp/x", "clone")
        self.assertEqual([b.files.read("/tmp/x") for b in (s, *clones)], ["before", "clone", "before"])
        self.assertEqual(len({b.sandbox_id for b in (s, *clones)}), 3)

    def test_snapshot(self):
        s = self.make()
        s.files.write("/tmp/x", "kept")
        snap = s.create_snapshot()
        self.assertIn(snap.snapshot_id, [i.snapshot_id for i in s.list_snapshots().next_items()])
        s.kill()
        self.assertEqual(self.make(template=snap.snapshot_id).files.read("/tmp/x"), "kept")
        self.assertTrue(Sandbox.delete_snapshot(snap.snapshot_id))
        self.assertFalse(Sandbox.delete_snapshot(snap.snapshot_id))

    def test_list(self):
        mark = uuid.uuid4().hex
        made = [self.make(metadata={"mark": mark, "n": str(n)}).sandbox_id for n in range(3)]
        def ids(**options):
            p, out = Sandbox.list(SandboxQuery(metadata={"mark": mark}), **options), []
            while p.has_next:
                out += [i.sandbox_id for i in p.next_items()]
            return out
        self.assertEqual(ids(), made[::-1])
        self.assertEqual(ids(limit=1), made[::-1])
        self.assertEqual(ids(limit=2, order="asc"), made)
        one = Sandbox.list(SandboxQuery(metadata={"mark": mark, "n": "1"})).next_items()
        self.assertEqual([i.sandbox_id for i in one], [made[1]])
        self.assertEqual(Sandbox.list(SandboxQuery(metadata={"mark": mark}, template="no-such")).next_items(), [])

    def test_list_forged_token(self):
        with self.assertRaises(SandboxException):
            Sandbox.list(next_token="forged").next_items()

    def test_metrics(self):
        m = self.make().get_metrics()
        self.assertEqual(m[0].cpu_count, 1)
        self.assertGreater(m[0].mem_total, m[0].mem_used)

    def test_idempotency(self):
        key = uuid.uuid4().hex
        a = self.make(idempotency_key=key)
        self.assertEqual(self.make(idempotency_key=key).sandbox_id, a.sandbox_id)

    def test_no_internet(self):
        s = self.make(allow_internet_access=False)
        self.assertFalse(s.get_info().allow_internet_access)
        self.assertEqual(s.commands.run("ls /sys/class/net 2>/dev/null | grep -v lo || true").stdout, "")

    def test_session(self):
        name = "s-" + uuid.uuid4().hex[:12]
        s = self.make(metadata={"turnstone.session": name})
        s.files.write("/workspace/state", "from the first")
        s.kill()  # leaves a turn
        again = self.make(metadata={"turnstone.session": name})
        self.assertEqual(again.files.read("/workspace/state"), "from the first")

    def test_unknown_template(self):
        with self.assertRaises(SandboxException):
            Sandbox.create("no-such-template")

    def test_refused_options(self):
        with self.assertRaises(SandboxException):
            Sandbox.create(lifecycle={"on_timeout": "pause"})

    def test_async(self):
        async def use():
            s = await AsyncSandbox.create(timeout=LIFE)
            self.kept.append(Sandbox.connect(s.sandbox_id))
            r, _ = await asyncio.gather(s.commands.run("echo hi"), s.files.write("/tmp/x", "y"))
            return r.stdout, await s.files.read("/tmp/x")
        self.assertEqual(asyncio.run(use()), ("hi\n", "y"))


class TestAccess(WithSandbox):
    def test_no_key(self):
        with self.assertRaises(AuthenticationException):
            Sandbox.list(api_key="e2b_nonsense").next_items()

    def test_key_without_prefix(self):
        Sandbox.list(api_key=os.environ["TURN_TOKEN"]).next_items()

    def test_weak_key_lists(self):
        self.assertTrue(Sandbox.list(api_key=os.environ["E2B_WEAK_KEY"]).next_items())

    def test_weak_key_does_not_create(self):
        with self.assertRaises(SandboxException) as e:
            Sandbox.create(api_key=os.environ["E2B_WEAK_KEY"])
        self.assertIn("403", str(e.exception))

    def test_weak_key_does_not_connect(self):
        with self.assertRaises(SandboxException):
            Sandbox.connect(self.s.sandbox_id, api_key=os.environ["E2B_WEAK_KEY"])

    def test_weak_key_does_not_kill(self):
        with self.assertRaises(SandboxException):
            Sandbox.kill(self.s.sandbox_id, api_key=os.environ["E2B_WEAK_KEY"])
        self.assertTrue(self.s.is_running())

    def test_forged_ids(self):
        for id in ("sb_000000000000000000", "x" * 1000, "sb_%00"):
            with self.assertRaises(SandboxNotFoundException):
                Sandbox.get_info(id)
        with self.assertRaises(SandboxException):
            Sandbox.get_info("../../etc")

    def test_other_sandboxes_token(self):
        r = urllib.request.Request(os.environ["E2B_SANDBOX_URL"] + "/health", headers={
            "E2b-Sandbox-Id": self.s.sandbox_id, "X-Access-Token": "ed_" + "0" * 64})
        with self.assertRaises(urllib.error.HTTPError) as e:
            urllib.request.urlopen(r)
        self.assertEqual(e.exception.code, 401)


class TestInterpreter(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Interpreter.create(timeout=LIFE, request_timeout=600)

    @classmethod
    def tearDownClass(cls):
        cls.s.kill()

    def run_code(self, code, **options):
        return self.s.run_code(code, timeout=BOUND, **options)

    def test_result(self):
        e = self.run_code("print('hi')\n1 + 1")
        self.assertEqual((e.text, e.logs.stdout, e.error), ("2", ["hi\n"], None))
        self.assertGreater(e.execution_count, 0)

    def test_state(self):
        self.run_code("kept = 41")
        self.assertEqual(self.run_code("kept + 1").text, "42")

    def test_error(self):
        e = self.run_code("1/0")
        self.assertEqual(e.error.name, "ZeroDivisionError")
        self.assertIn("ZeroDivisionError", e.error.traceback)

    def test_rich(self):
        e = self.run_code("from IPython.display import *\ndisplay(HTML('<b>x</b>'))\ndisplay(Markdown('*m*'))\n"
                          "display(JSON({'a': 1}))\ndisplay(Image(data=b'\\x89PNG', format='png'))\n'main'")
        self.assertEqual([r.html for r in e.results if r.html], ["<b>x</b>"])
        self.assertEqual([r.markdown for r in e.results if r.markdown], ["*m*"])
        self.assertEqual([r.json for r in e.results if r.json], [{"a": 1}])
        self.assertTrue(any(r.png for r in e.results))
        self.assertEqual([(r.text, r.is_main_result) for r in e.results][-1], ("main", True))

    def test_callbacks(self):
        out = []
        self.run_code("import sys\nprint('a')\nprint('b', file=sys.stderr)",
                      on_stdout=lambda m: out.append(m.line), on_stderr=lambda m: out.append(m.line))
        self.assertEqual(sorted(out), ["a\n", "b\n"])

    def test_other_formats(self):
        others = {"application/x-other": "value", "text/vnd.a+json": {"k": [1]}, "a/b.c-d": "x"}
        names = {"html": "1", "self": "2", "type": "3", "extra": "4", "is_main_result": "5", "__proto__": "6", "word": "7"}
        e = self.run_code("display(dict(%r, **{'text/plain': 'p', 'text/html': 'h'}), raw=True)\n"
                          "display(%r, raw=True)" % (others, names))
        self.assertIsNone(e.error)
        self.assertEqual([(r.text, r.html, r.extra) for r in e.results], [("p", "h", others), (None, None, names)])
        self.assertLessEqual(set(others), set(e.results[0].formats()))

    def test_data(self):
        r = self.run_code("display({'e2b/data': {'a': [1]}}, raw=True)").results[0]
        self.assertEqual((r.data, r.extra), ({"a": [1]}, None))

    def test_environment(self):
        self.assertEqual(self.run_code("import os; os.environ['X']", envs={"X": "y"}).text, "y")
        self.assertEqual(self.run_code("os.environ.get('X', 'none')").text, "none")

    def test_contexts(self):
        c = self.s.create_code_context(cwd="/tmp", request_timeout=BOUND)
        self.assertEqual(self.run_code("import os; z = 1; os.getcwd()", context=c).text, "/tmp")
        self.assertEqual(self.run_code("'z' in globals()").text, "False")
        self.assertIn(c.id, [i.id for i in self.s.list_code_contexts()])
        self.s.restart_code_context(c)
        self.assertEqual(self.run_code("'z' in globals()", context=c).text, "False")
        self.s.remove_code_context(c)
        with self.assertRaises(NotFoundException):
            self.run_code("1", context=c)

    def test_default_context(self):
        s = Interpreter.create(timeout=LIFE, request_timeout=600)
        ids = lambda: [c.id for c in s.list_code_contexts()]
        try:
            c, = s.list_code_contexts()
            self.assertEqual((c.language, c.cwd), ("python", "/home/user"))
            s.run_code("x = 1", timeout=BOUND)
            self.assertEqual(s.run_code("x", context=c, timeout=BOUND).text, "1")
            s.restart_code_context(c)
            self.assertEqual(s.run_code("'x' in globals()", timeout=BOUND).text, "False")
            s.remove_code_context(c)
            self.assertEqual(ids(), [])
            self.assertEqual(s.run_code("'again'", timeout=BOUND).text, "again")
            self.assertEqual(ids(), [c.id])
            s.run_code("import os; os._exit(1)", timeout=BOUND)
            self.assertEqual(s.run_code("'after the end'", timeout=BOUND).text, "after the end")
        finally:
            s.kill()

    def test_killed_while_it_runs(self):
        s = Interpreter.create(timeout=LIFE, request_timeout=600)
        begun = threading.Event()
        killer = threading.Thread(target=lambda: (begun.wait(), s.kill()))
        killer.start()
        with self.assertRaises(TimeoutException) as e:
            s.run_code("import time; print('begun', flush=True); time.sleep(1000)", timeout=BOUND,
                       on_stdout=lambda _: begun.set())
        killer.join()
        self.assertIn("killed", str(e.exception))

    def test_no_internet(self):
        s = Interpreter.create(timeout=LIFE, request_timeout=600, allow_internet_access=False)
        try:
            self.assertEqual(s.run_code("1 + 1", timeout=BOUND).text, "2")
        finally:
            s.kill()

    def test_other_language(self):
        with self.assertRaises(SandboxException):
            self.run_code("1", language="r")

    def test_timeout_interrupts(self):
        with self.assertRaises(TimeoutException):
            self.s.run_code("while True: pass", timeout=2)
        self.assertEqual(self.run_code("'free'").text, "free")

    def test_files_are_shared(self):
        self.s.files.write("data.txt", "shared")
        self.assertEqual(self.run_code("open('data.txt').read()").text, "shared")


if __name__ == "__main__":
    unittest.main()
