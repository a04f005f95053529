// What an older client of E2B does most, with what later ones say of the same. Errors are the client's own.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { CommandExitError, NotFoundError, Sandbox } from 'e2b'

const { version } = JSON.parse(readFileSync('node_modules/e2b/package.json'))
const [, minor, patch] = version.split('.').map(Number)
const timeoutMs = 1_800_000
const bound = 300_000

const s = await Sandbox.create({ timeoutMs })

assert.equal((await s.commands.run('echo $((6*7))')).stdout, '42\n')
await assert.rejects(s.commands.run('echo out; exit 7'), (e) => {
  assert.deepEqual([e.exitCode, e.stdout, e.error], [7, 'out\n', 'exit status 7'])
  return e instanceof CommandExitError
})
const h = await s.commands.run('sleep 1000', { background: true })
assert.ok((await s.commands.list()).some((p) => p.pid === h.pid))
assert.equal(await h.kill(), true)
await assert.rejects(h.wait(), (e) => {
  assert.deepEqual([e.exitCode, e.error], [-1, 'signal: killed'])
  return true
})

await s.files.write('/tmp/note', 'text')
assert.equal(await s.files.read('/tmp/note'), 'text')
assert.ok((await s.files.list('/tmp')).some((e) => e.name === 'note'))
await s.commands.run('ln -s note /tmp/one; ln -s one /tmp/two')
assert.equal((await s.files.getInfo('/tmp/two')).symlinkTarget, '/tmp/note')
await new Promise((seen, failed) => {
  s.files.watchDir('/tmp', (e) => { if (e.name === 'later') seen() }).then(() => s.files.write('/tmp/later', '')).catch(failed)
})
await assert.rejects(s.files.read('/tmp/no-such'), NotFoundError)

assert.equal(s.getHost(8000), `8000-${s.sandboxId}.localhost:${new URL(process.env.E2B_SANDBOX_URL).port}`)
assert.ok((await Sandbox.list().nextItems()).some((i) => i.sandboxId === s.sandboxId))
assert.equal((await s.getInfo()).sandboxId, s.sandboxId)
await s.setTimeout(timeoutMs)
for (const clone of s.fork ? await s.fork({ timeoutMs }) : []) {
  assert.equal(await clone.files.read('/tmp/note'), 'text')
  await clone.kill()
}
await (s.pause ?? s.betaPause).call(s)
const again = await Sandbox.connect(s.sandboxId, { timeoutMs })
assert.equal(await again.files.read('/tmp/note'), 'text')
if (again.createSnapshot) {
  const copy = await Sandbox.create((await again.createSnapshot()).snapshotId, { timeoutMs })
  assert.equal(await copy.files.read('/tmp/note'), 'text')
  await copy.kill()
}

const left = await again.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
const ended = left.wait().then(() => 'nothing', (e) => e.message)
await again.kill()
const said = await ended
assert.ok(minor < 30 || minor === 30 && patch < 1 || said.includes('killed'), said) // since then clients look
assert.equal(await again.isRunning(), false)
await assert.rejects(Sandbox.connect(again.sandboxId), NotFoundError)

const other = await Sandbox.create({ timeoutMs, network: { denyOut: ['8.8.8.8'] } })
assert.equal(await other.isRunning(), true)
await other.kill()

if (process.argv.includes('interpreter')) {
  const { Sandbox: Interpreter } = await import('@e2b/code-interpreter')
  const i = await Interpreter.create({ timeoutMs, requestTimeoutMs: 600_000 })
  const done = await i.runCode(`print('hi')\n6 * 7`, { timeoutMs: bound })
  assert.deepEqual([done.text, done.logs.stdout], ['42', ['hi\n']])
  const shown = await i.runCode(`display({'application/x-other': 'value'}, raw=True)`, { timeoutMs: bound })
  assert.deepEqual(shown.results.map((r) => r.extra), [{ 'application/x-other': 'value' }])
  await i.kill()
}

delete process.env.E2B_API_KEY
const refused = await Sandbox.create({ timeoutMs }).then(() => assert.fail('a sandbox without a key'), (e) => e)
console.log('npm e2b', version, 'works; without a key:', refused.name)
process.exit()
