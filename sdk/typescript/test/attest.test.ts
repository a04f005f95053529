import assert from "node:assert/strict";
import { test } from "node:test";
import { checkAttestation, openAttestation } from "../src/attest/attest.js";
import { checkNode, openChain } from "../src/attest/certificate.js";
import { believe, KeyPins, RootPins, type KnownRoot } from "../src/attest/pins.js";
import { SignerKey } from "../src/attest/ssh.js";
import { fromBase64, toBase64, utf8 } from "../src/bytes.js";
import { TurnstoneError } from "../src/errors.js";
import { testdata } from "./testdata.js";

interface Case {
  name: string;
  statement: string;
  certificate: string;
  expected: { about: string; node?: string; client: string; nonce: string; owner: string };
  pins: {
    nodes?: Record<string, string[]>;
    revoked?: string[];
    root?: { key: string; epoch: number; former?: string[] };
  };
  now: string;
  fault: string;
  accepted?: {
    server_key: string;
    digest: string;
    node?: string;
    tenant?: string;
    root?: { key: string; epoch: number };
  };
}

const cases = testdata<{ cases: Case[] }>("attestation.json").cases;

function decide(c: Case): {
  statement: ReturnType<typeof openAttestation>;
  root: KnownRoot | undefined;
} {
  const node = c.expected.node ?? "";
  const now = Date.parse(c.now);
  const revoked = new Set(c.pins.revoked ?? []);
  const keys = Object.entries(c.pins.nodes ?? {})
    .filter(([name]) => node === "" || name === node)
    .flatMap(([, k]) => k);
  const pins = new KeyPins(keys, revoked);
  let root: KnownRoot | undefined = c.pins.root ? { former: [], ...c.pins.root } : undefined;
  const used = root
    ? new RootPins(pins, node, root, utf8(c.certificate), (chain) => {
        root = believe(root!, chain, now, revoked, (k) => SignerKey.parse(k).id);
      })
    : pins;
  const statement = openAttestation(utf8(c.statement));
  checkAttestation(
    statement,
    {
      pins: used,
      about: c.expected.about,
      client: fromBase64(c.expected.client)!,
      nonce: fromBase64(c.expected.nonce)!,
      owner: c.expected.owner ?? "",
    },
    now,
  );
  return { statement, root };
}

test("statements and certificates, as all clients decide about them", async (t) => {
  assert.ok(cases.length > 50);
  for (const c of cases) {
    await t.test(`${c.name}: ${c.fault || "accepted"}`, () => {
      if (c.fault) {
        assert.throws(
          () => decide(c),
          (e: unknown) => {
            assert.ok(e instanceof TurnstoneError, String(e));
            assert.equal(e.fault, c.fault);
            assert.equal(e.kind, "integrity");
            assert.ok(e.hint, "it has a hint");
            assert.equal(e.retryable, false);
            return true;
          },
        );
        return;
      }
      const { statement, root } = decide(c);
      assert.equal(toBase64(statement.serverKey), c.accepted!.server_key);
      assert.equal(statement.digest, c.accepted!.digest);
      assert.equal(statement.node, c.accepted!.node ?? "");
      assert.equal(statement.tenant, c.accepted!.tenant ?? "");
      if (c.accepted!.root) {
        assert.equal(root?.key, c.accepted!.root.key);
        assert.equal(root?.epoch, c.accepted!.root.epoch);
      }
    });
  }
});

test("no change of a single byte of a statement is accepted", () => {
  const c = cases.find((one) => one.fault === "" && one.certificate === "")!;
  const bytes = utf8(c.statement);
  for (let i = 0; i < bytes.length; i += 7) {
    const changed = bytes.slice();
    changed[i]! ^= 1 + (i % 127);
    assert.throws(
      () => decide({ ...c, statement: new TextDecoder().decode(changed) }),
      (e: TurnstoneError) => e.fault === "forged",
      `byte ${i}`,
    );
  }
});

test("a certificate is about one key and one name", () => {
  const c = cases.find((one) => one.name === "certified")!;
  const chain = openChain(utf8(c.certificate));
  const key = openAttestation(utf8(c.statement)).signer;
  checkNode(chain, "", key);
  assert.throws(
    () => checkNode(chain, "other", key),
    (e: TurnstoneError) => e.fault === "other_node",
  );
});

test("texts of keys have one spelling", () => {
  const key = cases.find((c) => c.pins.nodes?.["n1"])!.pins.nodes!["n1"]![0]!;
  assert.equal(SignerKey.parse(key).text, key);
  for (const bad of [
    ` ${key}`,
    `${key} x`,
    key.replace(/.$/, ""),
    key.replace("ssh-ed25519 ", "ssh-rsa "),
    "",
    7,
  ]) {
    assert.throws(() => SignerKey.parse(bad), TurnstoneError);
  }
});
