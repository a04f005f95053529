import { h, Fragment, type ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { get, post, type Conflict, type Job, type Merge, type Receipt, type Version } from "./api";
import { Failed, G, bytes, visible } from "./text";

function Dialog({ title, close, children }: { title: string; close(): void; children: ComponentChildren }) {
	const d = useRef<HTMLDialogElement>(null);
	// Before the next key: one that is pressed meanwhile is for the dialog.
	useLayoutEffect(() => { d.current!.showModal(); }, []);
	return <dialog ref={d} aria-label={title} onClose={close}>
		<h2>{title}</h2>{children}
	</dialog>;
}

// Form is a dialog whose button calls act, and which closes after it.
function Form({ title, button, close, act, children }: { title: string; button: string; close(): void;
	act(): Promise<void>; children: ComponentChildren }) {
	const [error, setError] = useState<unknown>();
	const [busy, setBusy] = useState(false);
	const submit = async (e: Event) => {
		e.preventDefault();
		if (busy) return;
		setBusy(true);
		try { await act(); close(); } catch (e) { setError(e); setBusy(false); }
	};
	return <Dialog title={title} close={close}><form onSubmit={submit} onKeyDown={(e) => {
		if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) submit(e);
	}}>
		{children}<Failed error={error} />
		<div class="actions"><button type="submit" disabled={busy}>{button}</button><button type="button" onClick={close}>close</button></div>
	</form></Dialog>;
}

const example = "# A new turn\n\n```bash\nuname -a\n```\n";

export function RunDialog({ session, branch, turn, close, started }: { session: string; branch: string; turn: string;
	close(): void; started(j: Job): void }) {
	const [text, setText] = useState(example);
	const [name, setName] = useState(session);
	const [on, setOn] = useState(branch);
	const [error, setError] = useState<unknown>();
	const copy = () => get<Receipt>("receipt", { ref: turn }).then((r) => setText(r.source), setError);
	return <Form title="Run a document" button="run" close={close} act={async () => {
		started(await post<Job>("run", { document: text, session: name, branch: on })); // its end is not awaited
	}}>
		<div class="pair"><label>session <input value={name} onInput={(e) => setName(e.currentTarget.value)} placeholder="a new one" /></label>
			<label>branch <input value={on} onInput={(e) => setOn(e.currentTarget.value)} placeholder="main" /></label></div>
		<label>document <textarea rows={18} spellcheck={false} autofocus value={text} onInput={(e) => setText(e.currentTarget.value)} /></label>
		{turn && <button type="button" class="link" onClick={copy}>begin with the selected turn's receipt</button>}
		<p class="quiet">The turn begins on the newest turn of the branch, in a sandbox. Ctrl-Enter runs it.</p>
		<Failed error={error} />
	</Form>;
}

export function ForkDialog({ id, number, close, made }: { id: string; number: number; close(): void; made(branch: string): void }) {
	const [name, setName] = useState("");
	return <Form title={`Fork turn ${number}`} button="fork" close={close} act={async () => {
		const b = await post<{ name: string }>("fork", { ref: id, branch: name });
		made(b.name);
	}}><label>new branch <input required autofocus value={name} onInput={(e) => setName(e.currentTarget.value)} placeholder="fix/auth" /></label></Form>;
}

export interface MergeStart { session: string; from: string; into: string; found?: Merge }

export function MergeDialog({ start, branches, close, started }: { start: MergeStart; branches: string[]; close(): void; started(j: Job): void }) {
	const [into, setInto] = useState(start.into);
	const [from, setFrom] = useState(start.from);
	const [prefer, setPrefer] = useState("");
	const [markers, setMarkers] = useState(false);
	const [dry, setDry] = useState(!start.found);
	const [paths, setPaths] = useState<Record<string, string>>({});
	const conflicts = start.found?.conflicts ?? [];
	return <Form title="Merge" button={dry ? "try" : "merge"} close={close} act={async () => {
		started(await post<Job>("merge", { session: start.session, from, into, dry_run: dry, prefer, paths, markers }));
	}}>
		<div class="pair"><label>from <input required value={from} onInput={(e) => setFrom(e.currentTarget.value)} /></label>
			<label>into branch <select value={into} onChange={(e) => setInto(e.currentTarget.value)}>
				{branches.map((b) => <option key={b} value={b}>{visible(b)}</option>)}</select></label></div>
		{conflicts.length > 0 && <Conflicts list={conflicts} paths={paths} pick={(p, side) => setPaths((old) => ({ ...old, [p]: side }))} />}
		<label>other conflicts <select value={prefer} onChange={(e) => setPrefer(e.currentTarget.value)}>
			<option value="">stop</option><option value="ours">ours: the branch</option><option value="theirs">theirs: the merged turn</option></select></label>
		<label class="check"><input type="checkbox" checked={markers} onChange={(e) => setMarkers(e.currentTarget.checked)} /> write conflict markers into text files</label>
		<label class="check"><input type="checkbox" checked={dry} onChange={(e) => setDry(e.currentTarget.checked)} /> dry run: report conflicts, store nothing</label>
	</Form>;
}

function Conflicts({ list, paths, pick }: { list: Conflict[]; paths: Record<string, string>; pick(path: string, side: string): void }) {
	return <div class="scroll"><table class="conflicts"><thead><tr><th>path</th><th>conflict</th><th>base</th><th>ours</th><th>theirs</th></tr></thead>
		<tbody>{list.slice(0, 500).map((c, i) => <tr key={i}>
			<td><G text={c.path} /></td><td>{c.kind} <G text={c.detail ?? ""} /></td><td><V v={c.base} /></td>
			{(["ours", "theirs"] as const).map((side) => <td key={side}><label><input type="radio" name={`conflict-${i}`}
				aria-label={`${side} for ${visible(c.path.slice(0, 80))}`} checked={paths[c.path] === side} onChange={() => pick(c.path, side)} /> <V v={c[side]} /></label></td>)}
		</tr>)}</tbody></table></div>;
}

function V({ v }: { v: Version | null }) {
	if (!v) return <span class="quiet">absent</span>;
	return <Fragment><G text={v.target ?? ""} /> {v.type ? `${v.type} ` : ""}{v.mode ?? ""} {v.size ? bytes(v.size) : ""}
		{v.digest && <code title={v.digest}> {v.digest.replace(/^sha256:/, "").slice(0, 8)}</code>}</Fragment>;
}

const keys: [string, string][] = [["j, k", "the next turn, the one before"], ["Home, End", "the newest turn, the oldest"], ["Enter", "read the turn"],
	["1 … 5", "receipt, commands, files, diff, about"], ["/", "search turns"], ["s", "sessions"], ["r", "run a document"], ["f", "fork"], ["m", "merge"],
	["p", "replay"], ["v", "verify"], ["x", "compare other turns with this one"], ["Escape", "back to the tree"], ["?", "this help"]];

export function Help({ close }: { close(): void }) {
	return <Dialog title="Keys" close={close}><dl>{keys.map(([k, what]) => <Fragment key={k}><dt><kbd>{k}</kbd></dt><dd>{what}</dd></Fragment>)}</dl>
		<div class="actions"><button type="button" autofocus onClick={close}>close</button></div></Dialog>;
}
