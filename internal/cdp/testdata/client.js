// A stock client, npm's chrome-remote-interface, drives sandboxes. What it knows
// of the protocol it reads from the server. Arguments: port, token, two sandboxes.
'use strict';

const assert = require('assert');
const CDP = require('chrome-remote-interface');

const [port, token, first, second] = process.argv.slice(2);
const options = {host: '127.0.0.1', port: Number(port), alterPath: (path) => `/${token}${path}`};
const base64 = (text) => Buffer.from(text).toString('base64');

// collect gathers the output of processes until their end.
function collect(client, session) {
    const processes = {};
    const of = (id) => processes[id] = processes[id] || {stdout: '', stderr: '', waiting: []};
    const changed = (p) => { p.waiting = p.waiting.filter((done) => !done()); };
    const on = (name, handler) => client.on(session ? `${name}.${session}` : name, handler);
    on('Process.output', ({processId, stream, offset, data}) => {
        const p = of(processId);
        assert.strictEqual(offset, p[stream].length, 'output without gaps');
        p[stream] += Buffer.from(data, 'base64').toString('latin1');
        changed(p);
    });
    on('Process.exited', ({processId, exit}) => {
        const p = of(processId);
        p.exit = exit;
        changed(p);
    });
    const until = (id, test) => new Promise((fulfill) => {
        const p = of(id);
        p.waiting.push(() => {
            if (!test(p)) return false;
            fulfill(p);
            return true;
        });
        changed(p);
    });
    return {exit: (id) => until(id, (p) => p.exit), output: (id, re) => until(id, (p) => re.test(p.stdout))};
}

async function onePage() {
    const list = await CDP.List(options);
    assert.deepStrictEqual(list.map((t) => t.id).sort(), [first, second].sort());
    const version = await CDP.Version(options);
    assert.match(version.Browser, /^turnstone\//);
    const client = await CDP({...options, target: first});
    const {Process, FileSystem} = client;
    assert.ok(Process.start.description, 'the descriptor came from the server');
    const seen = collect(client);

    // A process: standard input, output and exit as events.
    let {processId} = await Process.start({argv: ['sh', '-c', 'read line; echo "got $line"; echo err >&2; exit 7'], stdin: true});
    await Process.write({processId, data: base64('hello\n')});
    let end = await seen.exit(processId);
    assert.deepStrictEqual([end.stdout, end.stderr, end.exit.exitCode], ['got hello\n', 'err\n', 7]);

    // Much input, to its end.
    ({processId} = await Process.start({argv: ['wc', '-c'], stdin: true}));
    for (let n = 0; n < 4; n++) await Process.write({processId, data: base64('x'.repeat(100000))});
    await Process.closeStdin({processId});
    assert.strictEqual((await seen.exit(processId)).stdout.trim(), '400000');

    // A file.
    const dir = (await Process.start({argv: ['mktemp', '-d']})).processId;
    const path = (await seen.exit(dir)).stdout.trim() + '/file';
    await FileSystem.write({path, data: base64('content \u2713')});
    const file = await FileSystem.read({path});
    assert.strictEqual(Buffer.from(file.data, 'base64').toString(), 'content \u2713');
    await assert.rejects(FileSystem.read({path: path + '.none'}), (err) => err.response.data.kind === 'not_found');

    // A terminal, resized.
    ({processId} = await Process.start({argv: ['sh', '-c', 'stty size; read go; stty size'], terminal: {columns: 80, rows: 24}, stdin: true}));
    await seen.output(processId, /24 80/);
    await Process.resize({processId, columns: 123, rows: 45});
    await Process.write({processId, data: base64('\n')});
    end = await seen.exit(processId);
    assert.match(end.stdout, /45 123/);

    // Cancel: the whole tree ends.
    ({processId} = await Process.start({argv: ['sh', '-c', 'echo up; sleep 1000; echo never']}));
    await seen.output(processId, /up/);
    await Process.signal({processId, signal: 'TERM'});
    end = await seen.exit(processId);
    assert.deepStrictEqual([end.stdout, end.exit.exitCode, end.exit.signal], ['up\n', 143, 'SIGTERM']);

    // What is wrong is said, and nothing else suffers.
    await assert.rejects(Process.start({argv: ['no-such-command']}), (err) => err.response.data.kind === 'not_found');
    await assert.rejects(Process.start({arg: ['x']}), /unknown field/);
    await client.close();
    console.log('one page: ok');
}

async function flatSessions() {
    const {webSocketDebuggerUrl} = await CDP.Version(options);
    const client = await CDP({...options, target: webSocketDebuggerUrl});
    const {targetInfos} = await client.Target.getTargets();
    assert.strictEqual(targetInfos.length, 2);
    const sessions = [];
    for (const targetId of [first, second]) {
        sessions.push((await client.send('Target.attachToTarget', {targetId, flatten: true})).sessionId);
    }
    assert.notStrictEqual(sessions[0], sessions[1]);
    const ends = await Promise.all(sessions.map(async (session, n) => {
        const seen = collect(client, session);
        const params = {argv: ['sh', '-c', 'read line; echo "$line"'], stdin: true};
        const {processId} = await client.send('Process.start', params, session);
        await client.send('Process.write', {processId, data: base64(`for ${n}\n`)}, session);
        return seen.exit(processId);
    }));
    assert.deepStrictEqual(ends.map((e) => e.stdout), ['for 0\n', 'for 1\n']);
    await client.send('Target.detachFromTarget', {sessionId: sessions[0]});
    await assert.rejects(client.send('Process.list', {}, sessions[0]), /no session/);
    assert.ok((await client.send('Process.list', {}, sessions[1])).processes.length > 0);
    await client.close();
    console.log('flat sessions: ok');
}

async function refused() {
    await assert.rejects(CDP.List({host: '127.0.0.1', port: Number(port)}), /token/);
    await assert.rejects(CDP({host: '127.0.0.1', port: Number(port), target: `/devtools/page/${first}`}), /token/);
    console.log('refused: ok');
}

const timer = setTimeout(() => { console.error('it took too long'); process.exit(1); }, 120000);
onePage().then(flatSessions).then(refused).then(() => clearTimeout(timer), (err) => {
    console.error(err);
    process.exit(1);
});
