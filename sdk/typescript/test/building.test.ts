import assert from "node:assert/strict";
import { test } from "node:test";
import { Code, ConnectError, createRouterTransport } from "@connectrpc/connect";
import { givenPins } from "../src/attest/pins.js";
import { KeyPair } from "../src/channel/key.js";
import { TurnstoneClient, type ContextOptions } from "../src/client.js";
import { SandboxService } from "../src/gen/turnstone/v1/sandbox_pb.js";
import { TemplateService, TemplateState } from "../src/gen/turnstone/v1/template_pb.js";

// What a client says while a template is built. The server is one of this process.

interface Case {
  image?: string;
  answer: TemplateState | ConnectError;
  client?: ContextOptions;
  /** What is said while the server makes the sandbox; none: nothing. */
  says?: RegExp;
}

/** Makes two sandboxes, each of which the server answers when something was said, if that is expected. */
async function make(c: Case): Promise<{ said: string[]; asked: string[] }> {
  const said: string[] = [];
  const asked: string[] = [];
  let told = (): void => undefined;
  let wait = Promise.resolve();
  const client = new TurnstoneClient(
    {
      connect: async () => ({
        address: "memory",
        key: KeyPair.generate(),
        own: true,
        transport: (interceptors) =>
          createRouterTransport(
            (router) => {
              router.service(TemplateService, {
                getTemplate: (r) => {
                  asked.push(r.template);
                  if (c.answer instanceof ConnectError) throw c.answer;
                  return { template: { state: c.answer } };
                },
              });
              router.service(SandboxService, {
                createSandbox: async () => {
                  await wait;
                  return { sandbox: { sandboxId: "sb_1", node: "n1" } };
                },
              });
            },
            { transport: { interceptors } },
          ),
        token: async () => "",
        greet: async () => undefined,
        dial: () => Promise.reject(new Error("no channel")),
        pins: givenPins([], undefined, async () => new Set<string>()),
      }),
      close: () => undefined,
      trust: async () => [],
    },
    c.client ?? {},
  );
  for (let i = 0; i < 2; i++) {
    if (c.says) wait = new Promise((resolve) => (told = resolve));
    const sb = await client.sandbox({
      ...(c.image ? { image: c.image } : {}),
      onProgress: (text) => {
        said.push(text);
        told();
      },
    });
    sb.detach();
  }
  return { said, asked };
}

const gone = new ConnectError("no such template", Code.NotFound);
const cases: Record<string, Case> = {
  "a template that is missing": {
    image: "python",
    answer: TemplateState.MISSING,
    says: /template python is not built yet/,
  },
  "a template that is being built": {
    image: "python",
    answer: TemplateState.BUILDING,
    says: /template python is not built yet/,
  },
  "no image": { answer: TemplateState.MISSING, says: /template base/ },
  "an image that nobody has pulled": {
    image: "python:3.12",
    answer: gone,
    says: /image python:3.12 is not here/,
  },
  "a template that is built": { image: "python", answer: TemplateState.BUILT },
  "a template that does not exist": { image: "pithon", answer: gone },
  "a token that may not see templates": {
    image: "python",
    answer: new ConnectError("no", Code.PermissionDenied),
  },
  "a session with a template of its own": {
    answer: TemplateState.MISSING,
    client: { session: "mine" },
  },
};
for (const [name, c] of Object.entries(cases)) {
  test(`${name}: ${c.says ? "the wait is announced" : "nothing is said"}`, { timeout: 120_000 }, async () => {
    const { said, asked } = await make(c);
    assert.equal(said.length, c.says ? 2 : 0, said.join("\n"));
    for (const text of said) assert.match(text, c.says!);
    assert.ok(asked.length <= 2);
  });
}
