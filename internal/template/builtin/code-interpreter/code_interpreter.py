#!/usr/bin/env python3
"""Runs code in Jupyter kernels for HTTP clients, as E2B's code interpreter does.

POST /execute answers lines of JSON while the code runs; /contexts has the kernels. Whoever reaches the
port may run code: the host lets nobody in without the sandbox's token.
"""

import asyncio
import json
import os
import signal
import sys
import time
import uuid

import tornado.web
from jupyter_client.manager import AsyncKernelManager

PORT = 49999
DIRECTORY = "/home/user"
MAX_BODY = 16 << 20
MAX_CONTEXTS = 32
DEFAULT = "default"

# The names of formats in answers, by their MIME types.
FORMATS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}

# Names that a client reads of a result, and that are no format's.
TAKEN = {*FORMATS.values(), "plain", "extra", "type", "is_main_result", "self", "__proto__"}


class Context:
    """A kernel with its directory. One execution runs at a time. The kernel begins when it is needed."""

    def __init__(self, id, cwd):
        self.id, self.cwd, self.language = id, cwd, "python"
        self.lock, self.changing = asyncio.Lock(), asyncio.Lock()
        self.manager = AsyncKernelManager(kernel_name="python3")
        self.client, self.begun = None, False

    def describe(self):
        return {"id": self.id, "language": self.language, "cwd": self.cwd}

    async def start(self):
        async with self.changing:
            if not self.begun:
                await self.manager.start_kernel(cwd=self.cwd)
                await self.connect()
                self.begun = True

    async def connect(self):
        if self.client is not None:
            self.client.stop_channels()
        self.client = self.manager.client()
        self.client.start_channels()
        await self.client.wait_for_ready(timeout=60)

    async def restart(self):
        if not self.begun:
            return await self.start()
        async with self.changing:
            await self.manager.restart_kernel(now=True)
            await self.connect()

    async def stop(self):
        async with self.changing:
            if self.client is not None:
                self.client.stop_channels()
            if self.manager.has_kernel:
                await self.manager.shutdown_kernel(now=True)

    async def silently(self, code):
        """Runs code that nobody sees, and ignores what it says."""
        id = self.client.execute(code, silent=True, store_history=False)
        async for _ in self.messages(id):
            pass

    async def messages(self, id):
        """Yields what the kernel says about a request, until it is idle."""
        while True:
            try:
                message = await self.client.get_iopub_msg(timeout=1)
            except Exception:  # queue.Empty: nothing was said
                if not await self.manager.is_alive():
                    raise RuntimeError("the kernel has ended")
                continue
            if message["parent_header"].get("msg_id") != id:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return
            yield kind, content

    async def execute(self, code, env):
        """Runs code, and yields the lines of the answer."""
        async with self.lock:
            if env:
                await self.silently(
                    "import os as _os; _saved_env = dict(_os.environ); _os.environ.update(%r)" % env)
            try:
                id = self.client.execute(code, store_history=True)
                count = None
                async for kind, content in self.messages(id):
                    if kind == "execute_input":
                        count = content["execution_count"]
                    line = translate(kind, content)
                    if line is not None:
                        yield line
                if count is not None:
                    yield {"type": "number_of_executions", "execution_count": count}
            finally:
                if env:
                    await self.silently(
                        "_os.environ.clear(); _os.environ.update(_saved_env); del _saved_env, _os")


def translate(kind, content):
    """Returns the line of an answer for what a kernel says; None: there is none."""
    if kind == "stream":
        return {"type": content["name"], "text": content["text"], "timestamp": time.time_ns() // 1000}
    if kind == "error":
        return {"type": "error", "name": content["ename"], "value": content["evalue"],
                "traceback": "\n".join(content["traceback"])}
    if kind in ("execute_result", "display_data", "update_display_data"):
        line = {"type": "result", "is_main_result": kind == "execute_result"}
        extra = {}
        for mime, value in content["data"].items():
            if mime in FORMATS:
                line[FORMATS[mime]] = value
                continue
            extra[mime] = value  # where PyPI's client looks for other formats
            if mime not in TAKEN:
                line[mime] = value  # and npm's
        text = line.get("text", "")
        if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
            line["text"] = text[1:-1]  # a string is shown as it is
        if extra:
            line["extra"] = extra
        return line
    return None


class Contexts:
    """All kernels. There is a default one, until it is removed, and again when it is used."""

    def __init__(self):
        self.all = {DEFAULT: Context(DEFAULT, DIRECTORY)}

    def new(self, id, cwd):
        if len(self.all) >= MAX_CONTEXTS:
            raise tornado.web.HTTPError(429, "there are too many contexts")
        self.all[id] = Context(id, cwd)
        return self.all[id]

    def find(self, id):
        if id not in self.all:
            raise tornado.web.HTTPError(404, "context %s not found" % id)
        return self.all[id]

    async def use(self, context):
        try:
            await context.start()
        except Exception:
            self.drop(context)
            await context.stop()
            raise
        return context

    async def get(self, id):
        if id in (None, "", DEFAULT) and DEFAULT not in self.all:
            self.new(DEFAULT, DIRECTORY)
        return await self.use(self.find(id or DEFAULT))

    def drop(self, context):
        """Forgets a context whose kernel has died. Another one takes the place of the default one."""
        if self.all.get(context.id) is context:
            del self.all[context.id]
            if context.id == DEFAULT:
                self.new(DEFAULT, DIRECTORY)


class Handler(tornado.web.RequestHandler):
    def initialize(self, contexts):
        self.contexts, self.left = contexts, None

    def on_connection_close(self):
        if self.left is not None:
            self.left()

    def write_error(self, status, **about):
        text = self._reason
        error = about.get("exc_info", (None, None, None))[1]
        if isinstance(error, tornado.web.HTTPError) and error.log_message:
            text = error.log_message
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps({"code": status, "message": text}))

    def body(self):
        try:
            value = json.loads(self.request.body or "{}")
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise tornado.web.HTTPError(400, "the body is not an object of JSON")
        return value


def check_language(language):
    if language and str(language).strip().lower() != "python":
        raise tornado.web.HTTPError(400, "there is no kernel for the language %s" % language)


class Execute(Handler):
    async def post(self):
        q = self.body()
        check_language(q.get("language"))
        code, env = q.get("code"), q.get("env_vars") or {}
        if not isinstance(code, str) or not isinstance(env, dict):
            raise tornado.web.HTTPError(400, "the request has no code")
        context = await self.contexts.get(q.get("context_id"))
        loop = asyncio.get_running_loop()
        self.left = lambda: loop.create_task(context.manager.interrupt_kernel())
        self.set_header("Content-Type", "application/x-ndjson")
        await self.flush()  # a client's time begins with the head of the answer
        try:
            async for line in context.execute(code, {str(k): str(v) for k, v in env.items()}):
                if not self.request.connection.stream.closed():
                    self.write(json.dumps(line) + "\n")
                    await self.flush()
        except tornado.iostream.StreamClosedError:
            pass
        except RuntimeError as error:
            self.write(json.dumps({"type": "error", "name": "KernelDied", "value": str(error),
                                   "traceback": ""}) + "\n")
            self.contexts.drop(context)
        self.left = None


class All(Handler):
    def get(self):
        self.finish(json.dumps([c.describe() for c in self.contexts.all.values()]))

    async def post(self):
        q = self.body()
        check_language(q.get("language"))
        cwd = q.get("cwd") or DIRECTORY
        if not isinstance(cwd, str) or not os.path.isdir(cwd):
            raise tornado.web.HTTPError(400, "the directory does not exist")
        context = await self.contexts.use(self.contexts.new(uuid.uuid4().hex, cwd))
        self.finish(json.dumps(context.describe()))


class One(Handler):
    async def delete(self, id):
        context = self.contexts.find(id)
        del self.contexts.all[id]
        await context.stop()
        self.set_status(204)


class Restart(Handler):
    async def post(self, id):
        await self.contexts.find(id).restart()
        self.set_status(204)


class Health(tornado.web.RequestHandler):
    def get(self):
        self.finish("ok")


async def main():
    os.makedirs(DIRECTORY, exist_ok=True)
    contexts = {"contexts": Contexts()}
    app = tornado.web.Application([
        ("/health", Health),
        ("/execute", Execute, contexts),
        ("/contexts", All, contexts),
        ("/contexts/([^/]+)", One, contexts),
        ("/contexts/([^/]+)/restart", Restart, contexts),
    ])
    app.listen(PORT, max_body_size=MAX_BODY, max_buffer_size=MAX_BODY)
    done = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, done.set)
    await done.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
