// E2B's JavaScript clients, unchanged, against a server of ours: scripts/suites/e2b runs this.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, describe, test } from 'node:test'
import {
  AuthenticationError, CommandExitError, FileNotFoundError, InvalidArgumentError, NotFoundError, Sandbox,
  TimeoutError,
} from 'e2b'
import { Sandbox as Interpreter } from '@e2b/code-interpreter'

const life = 1_800_000 // longer than this suite
const bound = 300_000

// until waits for what is meant, with a generous bound.
async function until(what) {
  for (const end = Date.now() + bound; Date.now() < end;) {
    const value = await what()
    if (value) return value
    await new Promise((done) => setTimeout(done, 50))
  }
  throw new Error('it did not happen')
}

// withSandbox describes tests with one sandbox.
function withSandbox(name, tests) {
  describe(name, () => {
    const of = {}
    before(async () => {
      of.s = await Sandbox.create({ timeoutMs: life, metadata: { suite: name }, envs: { FROM: 'create' } })
    })
    after(() => of.s?.kill())
    tests(of)
  })
}

withSandbox('commands', (of) => {
  for (const [name, command, options, stdout, stderr] of [
    ['stdout', 'echo hello', {}, 'hello\n', ''],
    ['stderr', 'echo hello >&2', {}, '', 'hello\n'],
    ['pipes', 'seq 100 | tail -n 1', {}, '100\n', ''],
    ['quotes', `printf '%s|' "a b" 'c "d'`, {}, 'a b|c "d|', ''],
    ['unicode', `printf 'héllo 世界'`, {}, 'héllo 世界', ''],
    ['several lines', `cat <<'X'\na\nb\nX`, {}, 'a\nb\n', ''],
    ['the environment of the creation', 'echo $FROM', {}, 'create\n', ''],
    ['an environment', 'echo $A-$B', { envs: { A: '1', B: 'x=y' } }, '1-x=y\n', ''],
    ['the nearest environment wins', 'echo $FROM', { envs: { FROM: 'call' } }, 'call\n', ''],
    ['a directory', 'pwd', { cwd: '/tmp' }, '/tmp\n', ''],
    ['a relative directory', 'pwd', { cwd: '../tmp' }, '/tmp\n', ''],
    ['a user', 'whoami', { user: 'root' }, 'root\n', ''],
    ['another user', 'whoami', { user: 'nobody', cwd: '/' }, 'nobody\n', ''],
    ['no input', 'cat', {}, '', ''],
    ['much output', `head -c 3000000 /dev/zero | tr '\\0' x | wc -c`, {}, '3000000\n', ''],
    ['nothing', 'true', {}, '', ''],
  ]) {
    test(name, async () => {
      const r = await of.s.commands.run(command, { timeoutMs: bound, ...options })
      assert.deepEqual([r.stdout, r.stderr, r.exitCode], [stdout, stderr, 0])
    })
  }

  test('an exit code', async () => {
    await assert.rejects(of.s.commands.run('echo out; exit 7'),
      (e) => e instanceof CommandExitError && e.exitCode === 7 && e.stdout === 'out\n')
  })
  for (const [command, exitCode, error] of [
    ['exit 7', 7, 'exit status 7'], ['kill -9 $$', -1, 'signal: killed'], ['kill -TERM $$', -1, 'signal: terminated'],
    ["bash -c 'kill -9 $$'; exit $?", 137, 'exit status 137'],
  ]) {
    test(`the error of ${command}`, async () => {
      await assert.rejects(of.s.commands.run(command), (e) => {
        assert.deepEqual([e.exitCode, e.error], [exitCode, error])
        return true
      })
    })
  }
  test('an unknown program', async () => {
    await assert.rejects(of.s.commands.run('no-such-program'), (e) => e.exitCode === 127)
  })
  test('a missing directory', async () => {
    await assert.rejects(of.s.commands.run('pwd', { cwd: '/no/such' }), InvalidArgumentError)
  })
  test('an unknown user', async () => {
    await assert.rejects(of.s.commands.run('id', { user: 'no-such-user' }), AuthenticationError)
  })
  test('a timeout kills', async () => {
    await assert.rejects(of.s.commands.run('exec sleep 1000', { timeoutMs: 1000 }), TimeoutError)
    await until(async () => !(await of.s.commands.list()).some((p) => p.args.join(' ').includes('sleep 1000')))
  })
  test('callbacks', async () => {
    let out = '', err = ''
    await of.s.commands.run('echo a; echo b >&2', {
      onStdout: (d) => { out += d }, onStderr: (d) => { err += d },
    })
    assert.deepEqual([out, err], ['a\n', 'b\n'])
  })
  test('the background', async () => {
    const h = await of.s.commands.run('sleep 1000', { background: true })
    assert.ok(h.pid > 0)
    assert.equal(await h.kill(), true)
    await assert.rejects(h.wait(), (e) => e instanceof CommandExitError && e.error === 'signal: killed')
  })
  test('a list', async () => {
    const h = await of.s.commands.run('sleep 1001', { background: true })
    const found = (await of.s.commands.list()).find((p) => p.pid === h.pid)
    assert.deepEqual([found.cmd, found.args], ['/bin/bash', ['-l', '-c', 'sleep 1001']])
    await h.kill()
  })
  test('standard input', async () => {
    const h = await of.s.commands.run('cat', { background: true, stdin: true })
    await of.s.commands.sendStdin(h.pid, 'one\n')
    await of.s.commands.sendStdin(h.pid, 'two\n')
    await of.s.commands.closeStdin(h.pid)
    assert.equal((await h.wait()).stdout, 'one\ntwo\n')
  })
  test('a connection to a command', async () => {
    const h = await of.s.commands.run('read line; echo got $line', { background: true, stdin: true })
    await h.disconnect()
    const again = await of.s.commands.connect(h.pid)
    await of.s.commands.sendStdin(h.pid, 'it\n')
    assert.equal((await again.wait()).stdout, 'got it\n')
  })
  test('killing an unknown command', async () => {
    assert.equal(await of.s.commands.kill(999_999), false)
  })
  test('input of an unknown command', async () => {
    await assert.rejects(of.s.commands.sendStdin(999_999, 'x'), NotFoundError)
  })
  test('a connection to an unknown command', async () => {
    await assert.rejects(of.s.commands.connect(999_999), NotFoundError)
  })
  test('a command that was left continues', async () => {
    const h = await of.s.commands.run('sleep 1; echo done > /tmp/continued', { background: true })
    await h.disconnect()
    await until(() => of.s.files.exists('/tmp/continued'))
  })
  test('many at once', async () => {
    const all = await Promise.all([...Array(8).keys()].map((n) => of.s.commands.run(`echo ${n}`)))
    assert.deepEqual(all.map((r) => r.stdout), [...Array(8).keys()].map((n) => `${n}\n`))
  })
})

withSandbox('terminals', (of) => {
  const terminal = async (options, type) => {
    let out = ''
    const h = await of.s.pty.create({
      cols: 80, rows: 24, timeoutMs: bound, onData: (d) => { out += new TextDecoder().decode(d) }, ...options,
    })
    await type(h)
    await h.wait().catch(() => {})
    return out
  }
  const send = (h, text) => of.s.pty.sendInput(h.pid, new TextEncoder().encode(text))
  test('size and resize', async () => {
    assert.match(await terminal({}, async (h) => {
      await of.s.pty.resize(h.pid, { cols: 111, rows: 33 })
      await send(h, 'stty size; exit\n')
    }), /33 111/)
  })
  test('an environment', async () => {
    assert.match(await terminal({ envs: { A: 'here' }, cwd: '/tmp' },
      (h) => send(h, 'echo $A-$TERM-$PWD; exit\n')), /here-xterm-256color-\/tmp/)
  })
  test('the end', async () => {
    await terminal({}, async (h) => assert.equal(await of.s.pty.kill(h.pid), true))
  })
  test('no size', async () => {
    await assert.rejects(of.s.pty.create({ cols: 0, rows: 0, onData: () => {} }), InvalidArgumentError)
  })
})

withSandbox('files', (of) => {
  const bytes = Uint8Array.from({ length: 256 }, (_, n) => n)
  for (const [name, path, data, want] of [
    ['a text', '/tmp/w/text', 'hello', 'hello'],
    ['an empty file', '/tmp/w/empty', '', ''],
    ['unicode', '/tmp/w/hé 世', '世', '世'],
    ['spaces', '/tmp/w/a b & c?d=e#f%20', 'x', 'x'],
    ['a relative path', 'relative.txt', 'x', 'x'],
    ['new directories', '/tmp/w/deep/er/and/deeper', 'x', 'x'],
    ['dots', '/tmp/w/../w/dots', 'x', 'x'],
    ['a blob', '/tmp/w/blob', new Blob(['blob']), 'blob'],
    ['newlines', '/tmp/w/lines', 'a\r\nb\n\n', 'a\r\nb\n\n'],
  ]) {
    test(`write ${name}`, async () => {
      await of.s.files.write(path, data)
      assert.equal(await of.s.files.read(path), want)
    })
  }
  test('write bytes', async () => {
    await of.s.files.write('/tmp/w/bytes', bytes.buffer)
    assert.deepEqual(await of.s.files.read('/tmp/w/bytes', { format: 'bytes' }), bytes)
  })
  test('overwrite', async () => {
    await of.s.files.write('/tmp/over', 'long content')
    await of.s.files.write('/tmp/over', 'short')
    assert.equal(await of.s.files.read('/tmp/over'), 'short')
  })
  test('several', async () => {
    const infos = await of.s.files.write([{ path: '/tmp/s/0', data: '0' }, { path: '/tmp/s/1', data: '1' }])
    assert.deepEqual(infos.map((i) => i.path), ['/tmp/s/0', '/tmp/s/1'])
    assert.equal(await of.s.files.read('/tmp/s/1'), '1')
  })
  test('a large one is streamed', async () => {
    const part = new Uint8Array(1 << 20).fill(7)
    let left = 32
    await of.s.files.write('/tmp/large', new ReadableStream({
      pull(c) { if (left-- > 0) c.enqueue(part); else c.close() },
    }))
    let got = 0
    for await (const b of await of.s.files.read('/tmp/large', { format: 'stream' })) got += b.length
    assert.equal(got, 32 << 20)
  })
  test('read a missing one', async () => {
    await assert.rejects(of.s.files.read('/tmp/no-such'), FileNotFoundError)
  })
  test('read a directory', async () => {
    await assert.rejects(of.s.files.read('/tmp'), InvalidArgumentError)
  })
  test('write to a directory', async () => {
    await assert.rejects(of.s.files.write('/tmp', 'x'), InvalidArgumentError)
  })
  test('exists', async () => {
    await of.s.files.write('/tmp/there', '')
    assert.deepEqual([await of.s.files.exists('/tmp/there'), await of.s.files.exists('/tmp/not')], [true, false])
  })
  test('info', async () => {
    await of.s.files.write('/tmp/info', '12345')
    await of.s.commands.run('chmod 640 /tmp/info')
    const i = await of.s.files.getInfo('/tmp/info')
    assert.deepEqual([i.name, i.path, i.size, i.mode, i.permissions, i.owner, i.group, i.type],
      ['info', '/tmp/info', 5, 0o640, '-rw-r-----', 'root', 'root', 'file'])
  })
  test('info of a link', async () => {
    await of.s.commands.run('ln -sfn /etc/hosts /tmp/link; ln -sfn link /tmp/link2; ln -sfn nothing /tmp/link3')
    for (const [path, target] of [['/tmp/link', '/etc/hosts'], ['/tmp/link2', '/etc/hosts'], ['/tmp/link3', '/tmp/link3']]) {
      assert.equal((await of.s.files.getInfo(path)).symlinkTarget, target)
    }
  })
  test('list', async () => {
    await of.s.commands.run('mkdir -p /tmp/l/d; touch /tmp/l/b /tmp/l/a /tmp/l/d/c')
    const paths = async (depth) => (await of.s.files.list('/tmp/l', { depth })).map((e) => e.path)
    assert.deepEqual(await paths(1), ['/tmp/l/a', '/tmp/l/b', '/tmp/l/d'])
    assert.deepEqual(await paths(2), ['/tmp/l/a', '/tmp/l/b', '/tmp/l/d', '/tmp/l/d/c'])
  })
  test('list a missing one', async () => {
    await assert.rejects(of.s.files.list('/tmp/no-such'), FileNotFoundError)
  })
  test('make a directory', async () => {
    assert.equal(await of.s.files.makeDir('/tmp/made/below'), true)
    assert.equal(await of.s.files.makeDir('/tmp/made/below'), false)
  })
  test('rename', async () => {
    await of.s.files.write('/tmp/old', 'x')
    assert.equal((await of.s.files.rename('/tmp/old', '/tmp/n/new')).path, '/tmp/n/new')
    assert.equal(await of.s.files.exists('/tmp/old'), false)
  })
  test('remove', async () => {
    await of.s.files.write('/tmp/rm/a/b', 'x')
    await of.s.files.remove('/tmp/rm')
    assert.equal(await of.s.files.exists('/tmp/rm'), false)
  })
  test('a zero byte', async () => {
    await assert.rejects(of.s.files.exists('/tmp/a\0b'), InvalidArgumentError)
  })
  test('watch', async () => {
    await of.s.files.makeDir('/tmp/watched')
    const seen = []
    const w = await of.s.files.watchDir('/tmp/watched', (e) => { seen.push(`${e.type} ${e.name}`) })
    await of.s.files.write('/tmp/watched/f', 'x')
    await until(() => seen.includes('create f') && seen.includes('write f'))
    await w.stop()
  })
  test('watch recursively', async () => {
    await of.s.files.makeDir('/tmp/tree/below')
    const seen = []
    const w = await of.s.files.watchDir('/tmp/tree', (e) => { seen.push(`${e.type} ${e.name}`) }, { recursive: true })
    await of.s.commands.run('echo x > /tmp/tree/below/f; rm /tmp/tree/below/f')
    await until(() => seen.includes('remove below/f'))
    await w.stop()
  })
  test('watch a missing one', async () => {
    await assert.rejects(of.s.files.watchDir('/tmp/no-such', () => {}), NotFoundError)
  })
  test('a signed link', async () => {
    await of.s.files.write('/tmp/a b', 'content')
    const url = await of.s.downloadUrl('/tmp/a b', { useSignatureExpiration: 3600 })
    assert.equal(await (await fetch(url)).text(), 'content')
    assert.equal((await fetch(`${url}0`)).status, 401)
    assert.equal((await fetch(url.replace('a%20b', 'c').replace('a+b', 'c'))).status, 401)
  })
  test('a signed link to upload', async () => {
    const form = new FormData()
    form.append('file', new Blob(['up']), 'f')
    const a = await fetch(await of.s.uploadUrl('/tmp/up'), { method: 'POST', body: form })
    assert.equal(a.status, 200)
    assert.equal(await of.s.files.read('/tmp/up'), 'up')
  })
  test('the host of a port', () => {
    assert.equal(of.s.getHost(8000), `8000-${of.s.sandboxId}.localhost:${new URL(process.env.E2B_SANDBOX_URL).port}`)
  })
})

describe('life', () => {
  const kept = []
  const make = async (options = {}, template) => {
    const all = { timeoutMs: life, ...options }
    const s = await (template ? Sandbox.create(template, all) : Sandbox.create(all))
    kept.push(s)
    return s
  }
  after(() => Promise.all(kept.map((s) => s.kill())))

  test('info and kill', async () => {
    const s = await make({ metadata: { a: 'b' } })
    const i = await s.getInfo()
    assert.deepEqual([i.sandboxId, i.templateId, i.metadata, i.state], [s.sandboxId, 'base', { a: 'b' }, 'running'])
    assert.equal(await s.isRunning(), true)
    assert.equal(await s.kill(), true)
    assert.equal(await s.isRunning(), false)
    assert.equal(await Sandbox.kill(s.sandboxId), false)
    await assert.rejects(Sandbox.getInfo(s.sandboxId), NotFoundError)
    await assert.rejects(s.commands.run('true'))
  })
  test('killed while it is used', async () => {
    for (const end of [(s) => s.kill(), (s) => s.setTimeout(1000)]) {
      const s = await make()
      const h = await s.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
      const uses = [h, await s.commands.connect(h.pid, { timeoutMs: 0 }),
        await s.pty.create({ cols: 80, rows: 24, onData: () => {}, timeoutMs: 0 })].map((u) => u.wait())
      const ends = Promise.all(uses.map((u) => assert.rejects(u, /killed/)))
      await end(s)
      await ends
      for (const call of [() => s.commands.run('true'), () => s.files.read('/etc/hosts'), () => s.files.write('/tmp/x', 'y')]) {
        await assert.rejects(call(), /was not found|not running anymore/)
      }
    }
  })
  test('a timeout', async () => {
    const s = await make()
    await s.setTimeout(7_200_000)
    assert.ok((await s.getInfo()).endAt - Date.now() > 7_000_000)
  })
  test('the end of its time', async () => {
    const s = await make({ timeoutMs: 1000 })
    await until(async () => !(await s.isRunning()))
  })
  test('connect', async () => {
    const s = await make()
    await s.files.write('/tmp/x', 'kept')
    assert.equal(await (await Sandbox.connect(s.sandboxId)).files.read('/tmp/x'), 'kept')
  })
  test('pause keeps the memory', async () => {
    const s = await make()
    const h = await s.commands.run('sleep 10000', { background: true, timeoutMs: 0 })
    assert.equal(await s.pause(), true)
    assert.equal(await Sandbox.pause(s.sandboxId), false)
    assert.equal(await s.isRunning(), false)
    assert.equal((await s.getInfo()).state, 'paused')
    const page = await Sandbox.list({ query: { state: ['paused'] } }).nextItems()
    assert.ok(page.some((i) => i.sandboxId === s.sandboxId))
    await h.wait().catch(() => {})
    const again = await Sandbox.connect(s.sandboxId, { timeoutMs: life })
    assert.ok((await again.commands.list()).some((p) => p.pid === h.pid))
  })
  test('a fork', async () => {
    const s = await make()
    await s.files.write('/tmp/x', 'before')
    const clones = await s.fork({ timeoutMs: life, count: 2 })
    kept.push(...clones)
    await clones[0].files.write('/tmp/x', 'clone')
    assert.deepEqual(await Promise.all([s, ...clones].map((b) => b.files.read('/tmp/x'))),
      ['before', 'clone', 'before'])
  })
  test('a snapshot', async () => {
    const s = await make()
    await s.files.write('/tmp/x', 'kept')
    const snap = await s.createSnapshot()
    await s.kill()
    assert.equal(await (await make({}, snap.snapshotId)).files.read('/tmp/x'), 'kept')
    assert.equal(await Sandbox.deleteSnapshot(snap.snapshotId), true)
    assert.equal(await Sandbox.deleteSnapshot(snap.snapshotId), false)
  })
  test('pages', async () => {
    const mark = randomUUID()
    const made = []
    for (let n = 0; n < 3; n++) made.unshift((await make({ metadata: { mark, n: String(n) } })).sandboxId)
    for (const limit of [1, 2, 100]) {
      const all = []
      const p = Sandbox.list({ query: { metadata: { mark } }, limit })
      while (p.hasNext) all.push(...(await p.nextItems()).map((i) => i.sandboxId))
      assert.deepEqual(all, made)
    }
    const one = await Sandbox.list({ query: { metadata: { mark, n: '1' } } }).nextItems()
    assert.deepEqual(one.map((i) => i.sandboxId), [made[1]])
  })
  test('metrics', async () => {
    const [m] = await (await make()).getMetrics()
    assert.equal(m.cpuCount, 1)
    assert.ok(m.memTotal > m.memUsed)
  })
  test('no internet', async () => {
    const s = await make({ allowInternetAccess: false })
    assert.equal((await s.commands.run('ls /sys/class/net | grep -v lo || true')).stdout, '')
  })
  test('an unknown template', async () => {
    await assert.rejects(Sandbox.create('no-such-template'))
  })
  test('an option that is refused', async () => {
    await assert.rejects(Sandbox.create({ lifecycle: { onTimeout: 'pause' } }), /400|cannot/)
  })
})

withSandbox('access', (of) => {
  const weak = { apiKey: process.env.E2B_WEAK_KEY }
  test('a key that is none', async () => {
    await assert.rejects(Sandbox.list({ apiKey: 'e2b_nonsense' }).nextItems(), AuthenticationError)
  })
  test('a weak key lists', async () => {
    assert.ok((await Sandbox.list(weak).nextItems()).length > 0)
  })
  test('a weak key does not create', async () => {
    await assert.rejects(Sandbox.create(weak), /403/)
  })
  test('a weak key does not connect', async () => {
    await assert.rejects(Sandbox.connect(of.s.sandboxId, weak))
  })
  test('a weak key does not kill', async () => {
    await assert.rejects(Sandbox.kill(of.s.sandboxId, weak))
    assert.equal(await of.s.isRunning(), true)
  })
  test('forged IDs', async () => {
    for (const id of ['sb_000000000000000000', 'x'.repeat(1000)]) {
      await assert.rejects(Sandbox.getInfo(id), NotFoundError)
    }
  })
})

describe('the code interpreter', () => {
  let s
  before(async () => { s = await Interpreter.create({ timeoutMs: life, requestTimeoutMs: 600_000 }) })
  after(() => s?.kill())
  const run = (code, options = {}) => s.runCode(code, { timeoutMs: bound, ...options })

  test('a result', async () => {
    const e = await run(`print('hi')\n1 + 1`)
    assert.deepEqual([e.text, e.logs.stdout, e.error], ['2', ['hi\n'], undefined])
  })
  test('state', async () => {
    await run('kept = 41')
    assert.equal((await run('kept + 1')).text, '42')
  })
  test('an error', async () => {
    assert.equal((await run('1/0')).error.name, 'ZeroDivisionError')
  })
  test('rich results', async () => {
    const e = await run(`from IPython.display import *\ndisplay(HTML('<b>x</b>'))\ndisplay(JSON({'a': 1}))\n'main'`)
    assert.deepEqual(e.results.map((r) => r.html).filter(Boolean), ['<b>x</b>'])
    assert.deepEqual(e.results.map((r) => r.json).filter(Boolean), [{ a: 1 }])
    assert.equal(e.text, 'main')
  })
  test('other formats', async () => {
    const others = { 'application/x-other': 'value', 'text/vnd.a+json': { k: [1] }, word: 'x' }
    const e = await run(`display({'text/plain': 'p', 'html': '1', 'type': '2', **${JSON.stringify(others)}}, raw=True)`)
    assert.equal(e.error, undefined)
    assert.deepEqual(e.results.map((r) => [r.text, r.html, r.extra]), [['p', undefined, others]])
  })
  test('the default context', async () => {
    const s = await Interpreter.create({ timeoutMs: life, requestTimeoutMs: 600_000 })
    try {
      const [c, ...more] = await s.listCodeContexts()
      assert.deepEqual([c.language, c.cwd, more], ['python', '/home/user', []])
      await s.runCode('x = 1', { timeoutMs: bound })
      assert.equal((await s.runCode('x', { context: c, timeoutMs: bound })).text, '1')
    } finally {
      await s.kill()
    }
  })
  test('killed while it runs', async () => {
    const s = await Interpreter.create({ timeoutMs: life, requestTimeoutMs: 600_000 })
    await assert.rejects(s.runCode(`import time; print('begun', flush=True); time.sleep(1000)`,
      { timeoutMs: bound, onStdout: () => { s.kill().catch(() => {}) } }), /killed/)
  })
  test('callbacks', async () => {
    const out = []
    await run(`import sys\nprint('a')\nprint('b', file=sys.stderr)`,
      { onStdout: (m) => { out.push(m.line) }, onStderr: (m) => { out.push(m.line) } })
    assert.deepEqual(out.sort(), ['a\n', 'b\n'])
  })
  test('an environment', async () => {
    assert.equal((await run(`import os; os.environ['X']`, { envs: { X: 'y' } })).text, 'y')
  })
  test('contexts', async () => {
    const c = await s.createCodeContext({ cwd: '/tmp', requestTimeoutMs: bound })
    assert.equal((await run('import os; os.getcwd()', { context: c })).text, '/tmp')
    assert.ok((await s.listCodeContexts()).some((i) => i.id === c.id))
    await s.removeCodeContext(c)
    await assert.rejects(run('1', { context: c }))
  })
  test('a timeout interrupts', async () => {
    await assert.rejects(s.runCode('while True: pass', { timeoutMs: 2000 }))
    assert.equal((await run(`'free'`)).text, 'free')
  })
})
