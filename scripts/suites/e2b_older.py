"""What an older client of E2B does most: a command, a file, a rule of the network. Errors are the client's own."""

import os
import sys
from importlib.metadata import version

from e2b import Sandbox

with Sandbox.create(timeout=60) as box:
    assert box.commands.run("echo $((6*7))").stdout == "42\n"
    box.files.write("/tmp/note", "text")
    assert box.files.read("/tmp/note") == "text"
with Sandbox.create(timeout=60, network={"deny_out": ["8.8.8.8"]}) as box:
    assert box.is_running()
del os.environ["E2B_API_KEY"]
try:
    Sandbox.create(timeout=60)
    sys.exit("a sandbox without a key")
except Exception as e:
    print("e2b", version("e2b"), "works; without a key:", type(e).__name__)
