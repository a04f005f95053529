import { h, Fragment, type ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Graph, Info, Receipt, TraceStep } from "./api";
import { DiffView } from "./diff";
import { Files } from "./files";
import { useGet } from "./load";
import { Failed, G, Markdown, Pre, Waiting, bytes, took, visible } from "./text";
import { outcome } from "./tree";

export const tabs = ["receipt", "commands", "files", "diff", "about"] as const;
export type Tab = typeof tabs[number];

interface Props { graph: Graph; id: string; tab: Tab; pick(tab: Tab): void; against: string;
	compare(id: string): void; go(number: number): void; act(what: string): void; again: unknown }

export const actions: [string, string][] = [["run", "r"], ["fork", "f"], ["merge", "m"], ["replay", "p"], ["verify", "v"]];

// TurnView shows one turn.
export function TurnView(p: Props) {
	const t = p.graph.turns.find((t) => t.id === p.id);
	if (!t) return <p class="quiet">no turn is selected</p>;
	const result = outcome(t);
	return <Fragment>
		<header class="turn">
			<h2><span class={`mark ${result}`} aria-hidden="true" /> turn {t.number} <G text={t.title ?? ""} /></h2>
			<p class="quiet">{result} on <G text={t.branch} /> · <code>{t.id}</code></p>
			<div class="actions" role="group" aria-label="Actions">
				{actions.map(([name, key]) => <button key={name} type="button" title={`key ${key}`} aria-keyshortcuts={key}
					disabled={t.status === "running" && name !== "run"} onClick={() => p.act(name)}>{name}</button>)}
			</div>
		</header>
		<div role="tablist" aria-label="Parts of the turn">
			{tabs.map((name, i) => <button key={name} type="button" role="tab" id={`tab-${name}`} aria-controls="part" title={`key ${i + 1}`}
				aria-selected={p.tab === name} tabIndex={p.tab === name ? 0 : -1} onClick={() => p.pick(name)}
				onKeyDown={(e) => {
					const d = e.key === "ArrowRight" ? 1 : e.key === "ArrowLeft" ? -1 : 0;
					if (!d) return;
					const to = tabs[(i + d + tabs.length) % tabs.length] ?? name;
					p.pick(to);
					document.getElementById(`tab-${to}`)?.focus();
				}}>{name}</button>)}
		</div>
		<div role="tabpanel" id="part" aria-labelledby={`tab-${p.tab}`} tabIndex={0} key={p.id + p.tab}>
			{t.status === "running" && <Waiting>the turn runs; its receipt was written before its current step, as if it ended there</Waiting>}
			{p.tab === "receipt" && <ReceiptView id={t.id} again={[t.status, p.again].join()} />}
			{p.tab === "commands" && <Commands id={t.id} again={t.status} />}
			{p.tab === "files" && <Files id={t.id} />}
			{p.tab === "diff" && <DiffView graph={p.graph} turn={t} against={p.against} compare={p.compare} />}
			{p.tab === "about" && <About id={t.id} go={p.go} again={p.again} />}
		</div>
	</Fragment>;
}

function ReceiptView({ id, again }: { id: string; again: unknown }) {
	const { value: r, error } = useGet<Receipt>("receipt", { ref: id }, again);
	if (error) return <Failed error={error} />;
	if (!r) return <Waiting />;
	return <Fragment>
		{r.front && <details><summary>front matter</summary><Pre text={r.front} label="front matter" /></details>}
		<Markdown nodes={r.body} />
		{r.cut && <p class="quiet">the receipt has {bytes(r.size)}; its beginning is shown. turn show --receipt {id} prints it</p>}
		{r.evidence && <details><summary>signatures</summary><Pre text={r.evidence} label="signatures" /></details>}
	</Fragment>;
}

function Commands({ id, again }: { id: string; again: unknown }) {
	const { value: r, error } = useGet<{ steps: TraceStep[]; more: number }>("commands", { ref: id }, again);
	if (error) return <Failed error={error} />;
	if (!r) return <Waiting />;
	if (r.steps.length === 0) return <p class="quiet">the turn has no steps</p>;
	return <Fragment>
		{r.steps.map((s) => <section key={s.index} class="step" aria-label={`step ${visibleName(s)}`}>
			<h3><span class={`mark ${s.status}`} title={s.status} /> <G text={s.name} />
				<span class="quiet"> {s.status} · <G text={s.language} /> · line {s.line} · {took(s.duration_ms)}
					{s.exit_code ? ` · exit ${s.exit_code}` : ""}</span></h3>
			{s.commands.length > 0 && <div class="scroll"><table class="commands">
				<thead><tr><th>line</th><th>language</th><th>start</th><th>time</th><th>exit</th><th>command</th></tr></thead>
				<tbody>{s.commands.map((c) => <tr key={c.id}>
					<td>{c.place ? `${c.place.line}:${c.place.column}` : "–"}</td><td><G text={c.language || c.kind} /></td>
					<td>+{took(c.start_ms)}</td><td>{took(c.duration_ms)}</td>
					<td class={c.exit_code ? "bad" : ""}>{c.exit_code ?? "–"}</td><td><code><G text={c.text} /></code></td>
				</tr>)}</tbody></table></div>}
			{s.left_out ? <p class="quiet">{s.left_out} commands have no line</p> : null}
			{s.untraced ? <p class="quiet"><G text={s.untraced} /></p> : null}
		</section>)}
		{r.more > 0 && <p class="quiet">{r.more} more commands: turn show --commands {id}</p>}
	</Fragment>;
}

function visibleName(s: TraceStep): string { return visible(s.name.slice(0, 80)); }

function About({ id, go, again }: { id: string; go(n: number): void; again: unknown }) {
	const { value: i, error } = useGet<Info>("turn", { ref: id }, again);
	const [all, setAll] = useState(false);
	useEffect(() => setAll(false), [id]);
	if (error) return <Failed error={error} />;
	if (!i) return <Waiting />;
	const row = (name: string, value: ComponentChildren) => value ? <Fragment><dt>{name}</dt><dd>{value}</dd></Fragment> : null;
	const text = (s?: string) => s ? <G text={s} /> : null;
	const r = i.record, env = i.state?.env ?? [];
	return <Fragment>
		<dl>
			{row("session", text(i.session.name || i.session.id))}
			{row("head of", text((i.heads ?? []).join(", ")))}
			{row("tags", text((i.tags ?? []).join(", ")))}
			{row("parents", i.turn.parents?.length ? <code>{i.turn.parents.join(" ")}</code> : null)}
			{row("children", i.children?.length ? i.children.map((n) =>
				<button key={n} type="button" class="link" onClick={() => go(n)}>turn {n}</button>) : null)}
			{row("started", text(new Date(i.turn.started).toLocaleString()))}
			{r && row("took", took(r.duration_ms))}
			{r && row("image", text(r.image))}
			{r && row("isolation", text(r.isolation))}
			{r && row("error", text(r.error))}
			{r && row("files", `${r.layer.added} added, ${r.layer.changed} changed, ${r.layer.removed} removed`)}
			{row("kept", text(i.kept))}
			{i.state && row("directory", text(i.state.cwd))}
			{i.state && row("FS hash", <code>{i.state.tree.fs_hash}</code>)}
		</dl>
		{env.length > 0 && <section>
			<h3>environment</h3>
			<Pre text={(all ? env : env.slice(0, 50)).join("\n")} label="environment" />
			{!all && env.length > 50 && <button type="button" onClick={() => setAll(true)}>show all</button>}
		</section>}
	</Fragment>;
}
