import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import {
  chmod,
  mkdir,
  mkdtemp,
  readFile,
  readlink,
  rm,
  stat,
  symlink,
  writeFile,
} from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { promisify } from "node:util";
import { checkOwn } from "../src/node/address.js";
import { Turnstone, TurnstoneError } from "../src/index.js";

// A machine without a server: runs with scripts/test-server, for the templates that all tests share.

const root = await mkdtemp(join(tmpdir(), "turnstone-test-"));
const home = join(root, "home");
await mkdir(home, { mode: 0o700 });
for (const part of ["templates", "kernel", "snapshots", "cache"]) {
  await symlink(
    await readlink(join(process.env["TURN_TEST_SERVER_HOME"]!, part)),
    join(home, part),
  );
}
const help = await promisify(execFile)("turn", ["serve", "--help"]).catch(() => ({ stdout: "" }));
const real = help.stdout.includes("--local");
// notes which servers it becomes; a turn command that cannot yet serve one user has a stand-in
const program = join(root, "turn");
await writeFile(
  program,
  `#!/bin/sh\necho $$ >>"$TURN_HOME/pids"\n${real ? 'exec turn "$@"' : "exec turn-server serve --listen 127.0.0.1:0"}\n`,
);
await chmod(program, 0o755);

const pids = async (): Promise<number[]> =>
  (await readFile(join(home, "pids"), "utf8").catch(() => ""))
    .split("\n")
    .filter(Boolean)
    .map(Number);
const alive = (pid: number): boolean => {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
};

after(async () => {
  for (const pid of await pids()) {
    try {
      process.kill(pid, "SIGTERM");
    } catch {
      continue; // it has ended
    }
    while (alive(pid)) await new Promise((r) => setTimeout(r, 50));
  }
  await rm(root, { recursive: true, force: true });
});

test("a client starts the machine's server, and the next client uses it", async () => {
  const one = new Turnstone({ host: "local", home, program });
  const r = await one.run("# A\n\n```bash\necho local\n```\n", { image: "base" });
  assert.equal(r.steps[0]!.stdout, "local\n");
  await one.close();
  const two = new Turnstone({ host: "local", home, program: join(root, "not-needed") });
  const log = await two.session(one.contextId).log();
  assert.equal(log.turns.length, 1);
  await two.close();
  assert.equal((await pids()).length, 1);
  assert.equal((await stat(join(home, "client", "key"))).mode & 0o777, 0o600);
});

test(
  "several clients at one time share one server",
  { skip: !real && "this turn command has no serve --local" },
  async () => {
    const pid = (await pids())[0]!;
    process.kill(pid, "SIGTERM");
    while (alive(pid)) await new Promise((r) => setTimeout(r, 50));
    const all = Array.from({ length: 3 }, () => new Turnstone({ host: "local", home, program }));
    await Promise.all(all.map((c) => c.usage()));
    await Promise.all(all.map((c) => c.close()));
  },
);

test("a program that uses a client ends by itself", async () => {
  const code = `
    const { Turnstone } = await import(${JSON.stringify(new URL("../src/index.js", import.meta.url).href)});
    const c = new Turnstone({ host: "local", home: ${JSON.stringify(home)}, program: ${JSON.stringify(program)} });
    await c.run("# A\\n\\n\`\`\`bash\\ntrue\\n\`\`\`\\n", { image: "base" });
    console.log((await c.session().log()).turns.length);`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", code], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  let out = "";
  child.stdout.on("data", (p: Buffer) => (out += p.toString()));
  const status = await new Promise((resolve) => child.once("close", resolve));
  assert.deepEqual([status, out], [0, "1\n"]);
});

test("a server that ends at its start says why", async () => {
  const bad = join(root, "bad");
  await writeFile(bad, "#!/bin/sh\necho 'no room on this machine' >&2\nexit 3\n");
  await chmod(bad, 0o755);
  const client = new Turnstone({ host: "local", home: join(root, "other"), program: bad });
  await assert.rejects(
    client.usage(),
    (e: TurnstoneError) => e.kind === "unavailable" && /no room on this machine/.test(e.message),
  );
  await client.close();
});

test("a socket where others can put another is refused", async () => {
  const shared = join(root, "shared");
  await mkdir(shared);
  await chmod(shared, 0o777);
  const { createServer } = await import("node:net");
  const l = createServer();
  const path = join(shared, "server.sock");
  await new Promise<void>((resolve) => l.listen(path, resolve));
  await assert.rejects(checkOwn(path), (e: TurnstoneError) => e.kind === "invalid");
  await chmod(shared, 0o700);
  await checkOwn(path);
  l.close();
  await writeFile(join(shared, "file"), "");
  await assert.rejects(checkOwn(join(shared, "file")), (e: TurnstoneError) => e.kind === "invalid");
  await assert.rejects(
    checkOwn(join(shared, "none")),
    (e: TurnstoneError) => e.kind === "unavailable",
  );
});
