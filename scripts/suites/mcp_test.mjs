// Tests of turn mcp and of a server's endpoint with the official npm clients: the SDK of version 1, and
// the client of version 2 with each version of the protocol. See the file mcp.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { Client as Client2, StreamableHTTPClientTransport as Http2 } from '@modelcontextprotocol/client'
import { StdioClientTransport as Stdio2 } from '@modelcontextprotocol/client/stdio'
import { Client as Client1 } from '@modelcontextprotocol/sdk/client/index.js'
import { StdioClientTransport as Stdio1 } from '@modelcontextprotocol/sdk/client/stdio.js'
import { StreamableHTTPClientTransport as Http1 } from '@modelcontextprotocol/sdk/client/streamableHttp.js'

const options = { timeout: 300_000 } // of a call, on a machine that is busy
const url = new URL(process.env.MCP_URL)
const http = { requestInit: { headers: { Authorization: `Bearer ${process.env.TURN_TOKEN}` } } }
const stdio = { command: 'turn', args: ['mcp'], env: process.env }
const info = { name: 'suite', version: '1' }
const mode = (mode) => ({ versionNegotiation: { mode } })

const doors = {
  'version 1, HTTP': () => [new Client1(info), new Http1(url, http)],
  'version 1, stdio': () => [new Client1(info), new Stdio1(stdio)],
  'version 2, HTTP': () => [new Client2(info, mode('auto')), new Http2(url, http), '2026-07-28'],
  'version 2, HTTP with a connection': () => [new Client2(info, mode('legacy')), new Http2(url, http)],
  'version 2, stdio': () => [new Client2(info, mode('auto')), new Stdio2(stdio), '2026-07-28'],
}

// call calls a tool of either version of the client.
async function call(client, name, args, more = {}) {
  const all = { ...options, ...more }
  const params = { name, arguments: args }
  const result = await (client instanceof Client1
    ? client.callTool(params, undefined, all) : client.callTool(params, all))
  assert.ok(!result.isError, JSON.stringify(result.content))
  return result.structuredContent
}

for (const [name, door] of Object.entries(doors)) {
  describe(name, () => {
    test('large results, progress, errors', async () => {
      const [client, transport, version] = door()
      await client.connect(transport)
      if (version) assert.equal(client.getNegotiatedProtocolVersion(), version)
      const session = `npm-${randomUUID()}`
      const told = []
      const out = await call(client, 'exec', {
        session, command: "for n in 1048000 1048576 5000000 8388608; do head -c $n /dev/zero | tr '\\0' '\\n' > f$n; done; " +
          "head -c 1000000 /dev/zero | tr '\\0' '<'; printf '\\377' > bytes",
      }, { onprogress: (p) => told.push(p.message) })
      assert.equal(out.exit_code, 0, out.stderr)
      assert.ok(told.length > 0)
      const whole = (await client.readResource({ uri: out.stdout_uri }, options)).contents[0].text
      assert.equal(whole, '<'.repeat(1_000_000))
      const { turn } = await call(client, 'snapshot', { session })
      for (const n of [1048000, 1048576, 5000000, 8388608]) {
        const uri = `turn://files/${turn}/workspace/f${n}`
        if (name.includes('stdio') && n * 2 > 10 << 20) {
          // these clients end the connection at a longer message
          await assert.rejects(client.readResource({ uri }, options), /as JSON, and a message has at most/)
          continue
        }
        const r = await client.readResource({ uri }, options)
        assert.equal(r.contents[0].text, '\n'.repeat(n))
      }
      const bytes = await client.readResource({ uri: `turn://files/${turn}/workspace/bytes` }, options)
      assert.equal(bytes.contents[0].blob, '/w==')
      const wrong = await client.callTool({ name: 'exec', arguments: { command: ['ls'], session } })
      assert.ok(wrong.isError)
      assert.match(wrong.content[0].text, /^command: is an array, not a string/m)
      await client.close()
    })
  })
}

test('clients that do not end their connections', async () => {
  // the first one has a sandbox, and stays; the others close only what they hold
  const [worker, stays] = doors['version 1, HTTP']()
  await worker.connect(stays)
  await call(worker, 'exec', { command: 'echo here > /tmp/here' })
  for (let n = 0; n < 80; n++) {
    const [client, transport] = doors[n % 2 ? 'version 1, HTTP' : 'version 2, HTTP with a connection']()
    await client.connect(transport)
    const { tools } = await client.listTools()
    assert.ok(tools.length > 10)
    await client.close()
  }
  assert.equal((await call(worker, 'exec', { command: 'cat /tmp/here' })).stdout, 'here\n')
  await stays.terminateSession()
  await worker.close()
})
