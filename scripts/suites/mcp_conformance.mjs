// Runs the protocol's official conformance tests against a server's endpoint: those scenarios that
// need no tools of their own. The tests show no token, so a proxy here adds it.
import {spawn} from 'node:child_process';
import http from 'node:http';
import {createRequire} from 'node:module';

const scenarios = ['server-initialize', 'ping', 'tools-list', 'resources-list', 'prompts-list',
  'server-sse-multiple-streams', 'dns-rebinding-protection'];
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

let failed = 0;
for (const scenario of scenarios) {
  const run = spawn(process.execPath, [program, 'server', '--url', url, '--scenario', scenario],
    {stdio: 'inherit'});
  const status = await new Promise((end) => run.on('exit', end));
  console.log(`${scenario}: ${status === 0 ? 'passed' : `failed (${status})`}`);
  if (status !== 0) failed = 1;
}
proxy.close();
proxy.closeAllConnections();
process.exit(failed);
