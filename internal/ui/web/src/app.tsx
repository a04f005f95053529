import { h, Fragment, render } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { post, type Graph, type Job, type Sessions } from "./api";
import { ForkDialog, Help, MergeDialog, RunDialog, type MergeStart } from "./dialogs";
import { Jobs, useJobs, verdict } from "./jobs";
import { begin, useGet } from "./load";
import { rails } from "./rails";
import { Failed, G, Waiting, ago, count, visible } from "./text";
import { Tree } from "./tree";
import { TurnView, tabs, type Tab } from "./turn";

interface Where { session: string; turn: string; tab: Tab }

// The place of the page is in the address after the #, so that "back" works.
function read(): Where {
	const q = new URLSearchParams(location.hash.slice(1));
	const tab = q.get("tab") as Tab;
	return { session: q.get("session") ?? "", turn: q.get("turn") ?? "", tab: tabs.includes(tab) ? tab : "receipt" };
}

const label = (s: { id: string; name?: string }) => s.name || s.id;
const pause = 3000; // milliseconds between two looks at the sessions

function App() {
	const [where, setWhere] = useState(read);
	const [tick, setTick] = useState(0);
	const [filter, setFilter] = useState("");
	const [against, setAgainst] = useState("");
	const [dialog, setDialog] = useState("");
	const [merge, setMerge] = useState<MergeStart>();
	const [said, say] = useState("");
	const [error, setError] = useState<unknown>();
	const search = useRef<HTMLInputElement>(null);

	useEffect(() => {
		const back = () => setWhere(read());
		addEventListener("popstate", back);
		const timer = setInterval(() => { if (!document.hidden) setTick((n) => n + 1); }, pause);
		return () => { removeEventListener("popstate", back); clearInterval(timer); };
	}, []);
	const go = (to: Partial<Where>) => setWhere((old) => {
		const n = { ...old, ...to };
		if (to.session && to.session !== old.session && !to.turn) n.turn = "";
		const hash = "#" + new URLSearchParams({ ...n });
		if (n.session !== old.session || n.tab !== old.tab) history.pushState(null, "", hash);
		else history.replaceState(null, "", hash);
		return n;
	});

	const sessions = useGet<Sessions>("sessions", {}, tick);
	const list = sessions.value?.sessions ?? [];
	const session = where.session || list[0]?.id || "";
	// The tree is asked for again when the list says that something changed, and while something runs.
	const info = list.find((s) => s.id === session || s.name === session);
	const change = info ? `${info.turns} ${info.running} ${info.used} ${info.branches.join()} ${info.running ? tick : ""}` : "";
	const [poke, setPoke] = useState(0);
	const loaded = useGet<Graph>("log", session ? { session } : null, change + poke);
	const graph = loaded.value;
	const rows = useMemo(() => {
		if (!graph) return [];
		const all = rails(graph.turns);
		const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
		if (words.length === 0) return all;
		return all.filter(({ turn: t }) => {
			const text = `${t.number} ${t.id} ${t.title ?? ""} ${t.branch} ${t.result ?? t.status}`.toLowerCase();
			return words.every((w) => text.includes(w));
		}).map((r) => ({ ...r, lines: [], at: 0, width: 1 }));
	}, [graph, filter]);
	const selected = rows.some((r) => r.turn.id === where.turn) ? where.turn : rows[0]?.turn.id ?? "";
	const turn = graph?.turns.find((t) => t.id === selected);

	const jobs = useJobs((s) => {
		say(`${s.job.kind} ${verdict(s)}`);
		setTick((n) => n + 1);
		setPoke((n) => n + 1);
	});
	const start = (name: string, body: unknown) => post<Job>(name, body).then((j) => { setError(undefined); jobs.follow(j); }, setError);
	const act = (what: string) => {
		if (what === "run") { setDialog("run"); return; }
		if (!turn || !graph) return;
		switch (what) {
		case "fork": setDialog("fork"); break;
		case "merge": setMerge({ session: label(graph.session), from: turn.id,
			into: graph.branches.some((b) => b.name === "main") ? "main" : graph.branches[0]?.name ?? "" }); break;
		case "replay": case "verify": start(what, { ref: turn.id }); break;
		}
	};
	const move = (to: (at: number) => number) => {
		const at = rows.findIndex((r) => r.turn.id === selected);
		const n = Math.min(Math.max(to(at), 0), rows.length - 1);
		if (rows[n]) go({ turn: rows[n].turn.id });
	};
	const read1 = () => document.getElementById("part")?.focus();
	const tree = () => document.querySelector<HTMLElement>(".tree")?.focus();

	// Not useEffect: that runs after the next frame, and a key pressed before it would work with the
	// selection of the frame before.
	useLayoutEffect(() => {
		const press = (e: KeyboardEvent) => {
			const on = e.target as HTMLElement;
			const types = on.matches("input,textarea,select");
			if (e.key === "Escape" && !on.closest("dialog")) { on.blur(); tree(); return; }
			if (types || on.closest("dialog") || e.ctrlKey || e.metaKey || e.altKey) return;
			if (e.repeat && /^[rfmpvx?]$/.test(e.key)) return; // a held key does not start one thing after another
			const inTree = on === document.body || !!on.closest(".tree");
			let done = true;
			switch (e.key) {
			case "j": move((n) => n + 1); break;
			case "k": move((n) => n - 1); break;
			case "ArrowDown": if (inTree) move((n) => n + 1); else done = false; break;
			case "ArrowUp": if (inTree) move((n) => n - 1); else done = false; break;
			case "PageDown": if (inTree) move((n) => n + 15); else done = false; break;
			case "PageUp": if (inTree) move((n) => n - 15); else done = false; break;
			case "Home": if (inTree) move(() => 0); else done = false; break;
			case "End": if (inTree) move(() => rows.length); else done = false; break;
			case "Enter": if (on === document.body) read1(); else done = false; break;
			case "/": search.current?.focus(); break;
			case "s": document.querySelector<HTMLElement>(".sessions [aria-current]")?.focus(); break;
			case "?": setDialog("help"); break;
			case "r": act("run"); break;
			case "f": act("fork"); break;
			case "m": act("merge"); break;
			case "p": act("replay"); break;
			case "v": act("verify"); break;
			case "x": setAgainst(selected); say(`turn ${turn?.number} is compared with`); break;
			default:
				done = /^[1-5]$/.test(e.key);
				if (done) go({ tab: tabs[Number(e.key) - 1] });
			}
			if (done) e.preventDefault();
		};
		addEventListener("keydown", press);
		return () => removeEventListener("keydown", press);
	});
	useEffect(() => { document.title = graph ? `${visible(label(graph.session))} – Turnstone` : "Turnstone"; }, [graph]);

	return <Fragment>
		<header class="top">
			<h1>Turnstone</h1><span class="quiet"><G text={sessions.value?.place || "this machine"} /></span>
			<input ref={search} type="search" aria-label="Search turns" aria-keyshortcuts="/" placeholder="search turns  /" value={filter}
				onInput={(e) => setFilter(e.currentTarget.value)}
				onKeyDown={(e) => { if (e.key === "Enter") tree(); if (e.key === "Escape") setFilter(""); }} />
			<button type="button" aria-keyshortcuts="r" onClick={() => act("run")}>run a document</button>
			<button type="button" aria-label="Keys" aria-keyshortcuts="?" onClick={() => setDialog("help")}>?</button>
		</header>
		<nav class="sessions" aria-label="Sessions">
			<Failed error={sessions.error} />
			{sessions.value && list.length === 0 && <p class="quiet">There are no sessions yet. Press r to run a document.</p>}
			<ul>{list.map((s) => <li key={s.id}><button type="button" aria-current={s.id === session || s.name === session ? "page" : undefined}
				onClick={() => { setFilter(""); go({ session: s.id }); }}>
				<span class="name"><G text={label(s)} /></span>
				<span class="quiet">{count(s.turns, "turn")}{s.running ? ` · ${s.running} running` : ""} · {ago(s.used)}</span></button></li>)}</ul>
		</nav>
		<main>
			<section class="left" aria-label="Tree">
				{graph ? <Tree graph={graph} rows={rows} selected={selected} select={(id) => go({ turn: id })} open={read1} />
					: <div class="tree">{loaded.error ? <Failed error={loaded.error} /> : session ? <Waiting /> : null}</div>}
			</section>
			<section class="right" aria-label="Turn">
				<Failed error={error} />
				<Jobs jobs={jobs.all} drop={jobs.drop} go={(s, id) => { setPoke((n) => n + 1); go({ session: list.find((l) => label(l) === s)?.id ?? session, turn: id, tab: "receipt" }); }}
					choose={(m) => {
						if (graph && m.theirs) setMerge({ session: m.session, from: m.theirs.id, into: m.into, found: m });
					}} />
				{graph && turn && <TurnView graph={graph} id={selected} tab={where.tab} pick={(tab) => go({ tab })} against={against}
					compare={setAgainst} act={act} again={turn.status === "running" ? tick : 0}
					go={(n) => { const t = graph.turns.find((t) => t.number === n); if (t) go({ turn: t.id }); }} />}
			</section>
		</main>
		<div class="sr" role="status" aria-live="polite">{said}</div>
		{dialog === "help" && <Help close={() => setDialog("")} />}
		{dialog === "run" && <RunDialog session={graph ? label(graph.session) : ""} branch={turn?.branch ?? ""} turn={selected}
			close={() => setDialog("")} started={jobs.follow} />}
		{dialog === "fork" && turn && <ForkDialog id={turn.id} number={turn.number} close={() => setDialog("")}
			made={(b) => { say(`branch ${b}`); setTick((n) => n + 1); setPoke((n) => n + 1); }} />}
		{merge && graph && <MergeDialog key={merge.from + !!merge.found} start={merge} branches={graph.branches.map((b) => b.name)}
			close={() => setMerge(undefined)} started={jobs.follow} />}
	</Fragment>;
}

// The first picture has all parts: until then the page has its header, from index.html.
await begin({ ...read() });
render(<App />, document.getElementById("app")!);
