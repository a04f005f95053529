import { spawn } from "node:child_process";
import { mkdtemp, open, readFile, rm } from "node:fs/promises";
import { createConnection } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { sleep } from "../control/server.js";
import { fail, TurnstoneError } from "../errors.js";
import { checkOwn } from "./address.js";
import type { StateDir } from "./state.js";

const startTime = 120_000;
const pause = 50;

/** Reports whether a server of this user listens at a socket. */
async function answers(path: string): Promise<boolean> {
  try {
    await checkOwn(path);
  } catch (err) {
    if (err instanceof TurnstoneError && err.kind === "unavailable") return false;
    throw err;
  }
  return new Promise((resolve) => {
    const s = createConnection(path);
    s.once("connect", () => {
      s.destroy();
      resolve(true);
    });
    s.once("error", () => resolve(false));
  });
}

/**
 * Returns the socket of this machine's server. If nobody answers, it starts `turn serve --local`,
 * detached: a server with no address but the socket, which ends by itself some minutes after its last
 * use. Of several at one time, one serves, and the others exit with status 0.
 */
export async function localServer(dir: StateDir, program: string): Promise<string> {
  const socket = dir.path("server.sock");
  if (await answers(socket)) return socket;
  await dir.folder();
  const folder = await mkdtemp(join(tmpdir(), "turnstone-"));
  const logPath = join(folder, "log");
  const log = await open(logPath, "w", 0o600);
  let end: { code: number | null } | undefined;
  let failed: Error | undefined;
  try {
    const child = spawn(program, ["serve", "--local"], {
      detached: true,
      stdio: ["ignore", log.fd, log.fd],
      env: { ...process.env, TURN_HOME: dir.root },
    });
    child.once("error", (err) => (failed = err));
    child.once("exit", (code) => (end = { code }));
    child.unref();
    for (const late = Date.now() + startTime; ; ) {
      if (await answers(socket)) return socket;
      if (failed) {
        throw fail("unavailable", `does not start: ${(failed as Error).message}`, {
          op: "host.start",
          subject: program,
          hint: "install the turn command and put it into PATH, or set TURN_HOST to a server",
          cause: failed,
        });
      }
      if (end && end.code !== 0) throw ended(program, (await readFile(logPath, "utf8")).trim());
      if (Date.now() > late) {
        throw fail("timeout", "does not answer at its socket", {
          op: "host.start",
          subject: `${program} serve --local`,
        });
      }
      await sleep(pause);
    }
  } finally {
    await log.close();
    await rm(folder, { recursive: true, force: true });
  }
}

function ended(program: string, log: string): TurnstoneError {
  const last = log.split("\n").slice(-5).join("; ").slice(-1000);
  return fail("unavailable", `ended${last ? `: ${last}` : ""}`, {
    op: "host.start",
    subject: `${program} serve --local`,
    hint: "turn doctor says what this machine can run",
  });
}
