import { h, Fragment } from "preact";
import { useState } from "preact/hooks";
import type { Change, Diff, Graph, Turn } from "./api";
import { useGet } from "./load";
import { Failed, G, Waiting, visible } from "./text";

const words: Record<string, string> = { A: "added", M: "changed", D: "deleted", T: "other type", R: "renamed" };

// DiffView compares a turn with its parent, or with the turn against.
export function DiffView({ graph, turn, against, compare }: { graph: Graph; turn: Turn; against: string; compare(id: string): void }) {
	const other = graph.turns.find((t) => t.id === against && t.id !== turn.id);
	const { value, error } = useGet<Diff>("diff", other ? { from: other.id, to: turn.id } : { from: turn.id });
	const d = value && { ...value, files: value.files ?? [], env: value.env ?? [] };
	return <Fragment>
		<label>compare with <select value={other?.id ?? ""} onChange={(e) => compare(e.currentTarget.value)}>
			<option value="">its parent</option>
			{graph.turns.filter((t) => t.id !== turn.id).slice(0, 500).map((t) =>
				<option key={t.id} value={t.id}>{`${t.number} ${visible(t.title ?? "").slice(0, 60)}`}</option>)}
		</select></label>
		<Failed error={error} />
		{!d && !error && <Waiting />}
		{d && <Fragment>
			<p class="quiet">{d.files.length + d.more} files differ{d.more ? `; the first ${d.files.length} are shown` : ""}</p>
			{d.cwd && <p>directory: <G text={d.cwd.old} /> → <G text={d.cwd.new} /></p>}
			{d.env.length > 0 && <section aria-label="environment"><h3>environment</h3><ul>{d.env.map((e) => <li key={e.name}>
				<code><G text={e.name} /></code>: <G text={e.old ?? "(not set)"} /> → <G text={e.new ?? "(not set)"} /></li>)}</ul></section>}
			{d.files.map((f) => <FileChange key={f.path} file={f} open={d.files.length <= 10} />)}
		</Fragment>}
	</Fragment>;
}

function FileChange({ file, open }: { file: Change; open: boolean }) {
	const [shown, show] = useState(open);
	const title = <Fragment><span class={`status s${file.status}`} title={words[file.status]}>{file.status}<span class="sr"> {words[file.status]}</span></span>{" "}
		{file.old_path ? <Fragment><G text={file.old_path} /> → </Fragment> : null}<G text={file.path} />
		<span class="quiet"> {file.what?.join(", ")}</span>
		{file.plus ? <span class="plus"> +{file.plus}</span> : null}{file.minus ? <span class="minus"> −{file.minus}</span> : null}
		{file.binary ? <span class="quiet"> no text</span> : null}</Fragment>;
	if (!file.patch) return <p class="change">{title}</p>;
	return <details class="change" open={shown} onToggle={(e) => show(e.currentTarget.open)}>
		<summary>{title}</summary>
		{shown && <pre tabIndex={0} class="patch" aria-label="patch"><code>{visible(file.patch).split("\n").map((line, i) =>
			<span key={i} class={kind(line)}>{line}{"\n"}</span>)}</code></pre>}
	</details>;
}

function kind(line: string): string {
	if (line.startsWith("@@")) return "hunk";
	if (line.startsWith("+")) return "plus";
	if (line.startsWith("-")) return "minus";
	return "";
}
