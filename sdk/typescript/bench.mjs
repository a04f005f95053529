// Measures this SDK. Each line of the input is a measurement and a number, such as "exec 20", and is
// answered with a line of JSON: a list of milliseconds.
import { randomBytes } from "node:crypto";
import { createInterface } from "node:readline";
import { Turnstone } from "./dist/index.js";

const size = (64 << 20) / Number(process.env.TURNSTONE_BENCH_DIVISOR ?? 1);
const content = Buffer.alloc(size, randomBytes(1 << 20));
const path = "/var/tmp/bench";
const client = new Turnstone();
const sb = await client.sandbox({ image: "base", session: false });

function check(ok) {
  if (!ok) throw new Error("the sandbox answers something else");
}

const what = {
  exec: async () => check((await sb.exec(["true"])).exitCode === 0),
  up: () => sb.files.write(path, content),
  down: async () => check((await sb.files.readBytes(path)).length === size),
  first: async () => {
    const fresh = await client.sandbox({ image: "base", session: false });
    const r = await fresh.exec(["echo", "hello"]);
    const ended = performance.now();
    check(r.stdout === "hello\n");
    await fresh.close();
    return ended;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [name, count] = line.split(" ");
  const took = [];
  for (let i = 0; i < Number(count); i++) {
    const began = performance.now();
    const ended = await what[name]();
    took.push((ended ?? performance.now()) - began);
  }
  console.log(JSON.stringify(took));
}
await sb.close();
await client.close();
