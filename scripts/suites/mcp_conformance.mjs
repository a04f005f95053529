// Runs the protocol's official conformance tests against a server's endpoint, for the newest version of
// the protocol and the one before it: those scenarios that need no tools of their own. A check that
// cannot be made without such a tool does not count. The tests show no token, so a proxy here adds it.
import {spawn} from 'node:child_process';
import {mkdtempSync, readdirSync, readFileSync} from 'node:fs';
import http from 'node:http';
import {createRequire} from 'node:module';
import {tmpdir} from 'node:os';
import {join} from 'node:path';

const both = ['tools-list', 'resources-list', 'prompts-list', 'server-sse-multiple-streams', 'dns-rebinding-protection'];
const scenarios = {
  '2025-11-25': ['server-initialize', 'server-session-lifecycle', 'ping', ...both],
  '2026-07-28': ['server-stateless', 'sep-2164-resource-not-found', 'caching', 'http-header-validation', ...both],
};
const [program] = process.argv.slice(2);
createRequire(import.meta.url).resolve(program);
const target = new URL(process.env.MCP_URL);

const proxy = http.createServer((request, response) => {
  const headers = {...request.headers, authorization: `Bearer ${process.env.TURN_TOKEN}`};
  const onward = http.request(target, {method: request.method, headers}, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
  });
  onward.on('error', () => response.destroy());
  response.on('close', () => onward.destroy());
  request.pipe(onward);
});
await new Promise((ready) => proxy.listen(0, '127.0.0.1', ready));
const url = `http://127.0.0.1:${proxy.address().port}/mcp`;

// checks runs a scenario, and returns its checks.
async function checks(version, scenario) {
  const results = mkdtempSync(join(tmpdir(), 'mcp-'));
  const run = spawn(process.execPath, [program, 'server', '--url', url, '--scenario', scenario,
    '--spec-version', version, '--timeout', '300000', '--output-dir', results], {stdio: ['ignore', 'ignore', 'inherit']});
  await new Promise((end) => run.on('exit', end));
  const file = readdirSync(results, {recursive: true}).find((name) => name.endsWith('checks.json'));
  return file ? JSON.parse(readFileSync(join(results, file))) : [];
}

let failed = 0;
for (const [version, names] of Object.entries(scenarios)) {
  for (const scenario of names) {
    const all = await checks(version, scenario);
    const passed = all.filter((check) => check.status === 'SUCCESS').length;
    const wrong = all.filter((check) => check.status === 'FAILURE' &&
      !/^Not testable: server does not list the diagnostic tool/.test(check.errorMessage));
    console.log(`${version} ${scenario}: ${passed} passed, ${wrong.length} failed`);
    for (const check of wrong) console.log(`  ${check.id}: ${check.errorMessage}`);
    if (passed === 0 || wrong.length > 0) failed = 1;
  }
}
proxy.close();
proxy.closeAllConnections();
process.exit(failed);
