import assert from "node:assert/strict";
import { after, test } from "node:test";
import { Turnstone, TurnstoneError, type Progress } from "../src/index.js";

// Runs with scripts/test-server.

const client = new Turnstone();
after(() => client.close());
const doc = (script: string, title = "A turn"): string =>
  `# ${title}\n\n\`\`\`bash\n${script}\n\`\`\`\n`;
const text = (b: Uint8Array): string => new TextDecoder().decode(b);

test("what a sandbox leaves is a turn, on which the next sandbox and the next turn begin", async () => {
  {
    await using one = await client.sandbox({ image: "base" });
    await one.exec("export WORD=kept; echo 1 > /root/n");
  }
  {
    await using two = await client.sandbox({ image: "base" });
    assert.equal(await two.files.read("/root/n"), "1\n");
    assert.equal((await two.exec("echo $WORD")).stdout, "kept\n");
    await two.files.write("/root/n", "2\n");
    const kept = await two.commit();
    assert.equal(kept!.number, 2);
    await two.files.write("/root/n", "lost\n");
    await two.close({ discard: true });
  }
  const progress: Progress[] = [];
  const receipt = await client.run(doc("cat /root/n; echo $WORD; awk 'BEGIN{print 1}'"), {
    onProgress: (p) => progress.push(p),
  });
  assert.equal(receipt.passed, true);
  assert.equal(receipt.number, 3);
  assert.equal(receipt.session, client.contextId);
  const step = receipt.steps[0]!;
  assert.equal(step.stdout, "2\nkept\n1\n");
  assert.deepEqual([step.status, step.exitCode], ["passed", 0]);
  assert.equal(step.commands[0]!.text, "cat /root/n");
  assert.equal(step.commands[0]!.language, "bash");
  assert.equal(step.commands[0]!.place!.line, 4);
  assert.match(receipt.markdown, /\*\*passed\*\*/);
  const told = progress.map((p) => p.type);
  for (const want of ["started", "output", "finished"] as const)
    assert.ok(told.includes(want), told.join());
});

test("a failing step", async () => {
  const r = await client.run(doc("echo before; exit 9"), { session: "failing" });
  assert.deepEqual([r.passed, r.result, r.steps[0]!.exitCode], [false, "failed", 9]);
  await assert.rejects(client.run("# no end\n\n```bash\nif\n"), TurnstoneError);
});

test("variables, secrets and files of a turn", async () => {
  const r = await client.run(doc('echo "$A $S"; cat /root/in/x'), {
    session: false,
    image: "base",
    env: { A: "a" },
    secrets: { S: "sehr-geheim-1" },
    files: { "/root/in/x": "given" },
  });
  assert.equal(r.passed, true, r.markdown);
  assert.match(r.steps[0]!.stdout, /given/);
  assert.ok(!r.markdown.includes("sehr-geheim-1"));
});

test("log, show, receipt, fork, diff, merge, tag, compare", async () => {
  const s = client.session("graph");
  await client.run(doc("echo base > /root/a", "One"), { session: "graph" });
  await client.run(doc("echo main > /root/b", "Two"), { session: "graph" });
  const branch = await s.fork("side", { from: 1 });
  assert.equal(branch.name, "side");
  await client.run(doc("echo side > /root/c", "Three"), { session: "graph", branch: "side" });
  const log = await s.log();
  assert.deepEqual(
    log.turns.map((t) => [t.number, t.title, t.branch]),
    [
      [3, "Three", "side"],
      [2, "Two", "main"],
      [1, "One", "main"],
    ],
  );
  assert.match(await s.receipt(2), /# Two/);
  assert.equal(text(await s.readFile("side", "/root/c")), "side\n");
  const d = await s.diff(2, 3, { text: true });
  assert.deepEqual(
    d.files.map((f) => [f.path, f.status]),
    [
      ["/root/b", "D"],
      ["/root/c", "A"],
    ],
  );
  assert.deepEqual(
    (await s.diff(3)).files.map((f) => f.path),
    ["/root/c"],
  );
  const m = await s.merge("side", { message: "together" });
  assert.equal(m.number, 4);
  assert.deepEqual(m.conflicts, []);
  await s.tag("done", 4);
  assert.deepEqual(
    (await s.log()).tags.map((t) => t.name),
    ["done"],
  );
  assert.ok(await s.show("done"));
  assert.ok(await s.compare([2, 3]));
  await s.untag("done");
  assert.ok((await s.export()).length > 0);
  assert.equal((await s.verify("main")).ok, true);
  await assert.rejects(s.show(99), (e: TurnstoneError) => e.kind === "not_found");
});

test("replay", async () => {
  await client.run(doc("echo same"), { session: "again" });
  const r = await client.session("again").replay();
  assert.equal(r.same, true);
  assert.equal(r.turn!.steps[0]!.stdout, "same\n");
});

test("a turn ends with its signal, and its receipt stays", async () => {
  const abort = new AbortController();
  const run = client.run(doc("echo begun; sleep 1000"), {
    session: "aborted",
    signal: abort.signal,
    onProgress: (p) => {
      if (p.type === "output") abort.abort();
    },
  });
  await assert.rejects(run, (e: TurnstoneError) => e.kind === "canceled");
  const log = await client.session("aborted").log();
  assert.deepEqual(
    log.turns.map((t) => [t.status, t.result]),
    [["done", "error"]],
  );
  assert.match(await client.session("aborted").receipt(1), /begun/);
});

test("a session that is removed is gone", async () => {
  await client.run(doc("true"), { session: "short" });
  await client.session("short").remove();
  await assert.rejects(
    client.session("short").log(),
    (e: TurnstoneError) => e.kind === "not_found",
  );
});
