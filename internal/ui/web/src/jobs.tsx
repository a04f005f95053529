import { h, Fragment } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, post, type Event, type Failure, type Job, type Merge, type Result } from "./api";
import { Failed, G, Pre, count, visible } from "./text";

export interface StepState { name: string; status: string; output: string; exit?: number }
export interface JobState { job: Job; steps: StepState[]; said: string; done: boolean; result?: Result | null; failed?: Failure }

const tail = 16 << 10; // characters of a step's output that are shown

function apply(s: JobState, events: Event[]): JobState {
	const n = { ...s, steps: s.steps.slice() };
	for (const e of events) {
		const at = (e.step ?? 0) - 1;
		const step = () => (n.steps[at] = { ...(n.steps[at] ?? { name: e.name ?? `step ${at + 1}`, status: "", output: "" }) });
		switch (e.kind) {
		case "say": n.said = e.text ?? ""; break;
		case "step": Object.assign(step(), { status: "running", name: e.name }); n.said = ""; break;
		case "output": { const o = step(); o.output = (o.output + (e.text ?? "")).slice(-tail); break; }
		case "passed": Object.assign(step(), { status: e.status, exit: e.exit }); break;
		case "end": n.done = true; n.result = e.result; n.failed = e.failed; break;
		}
	}
	return n;
}

// useJobs follows jobs until they end.
export function useJobs(ended: (s: JobState) => void) {
	const [all, setAll] = useState<JobState[]>([]);
	const follow = async (job: Job) => {
		let state: JobState = { job, said: "", done: false,
			steps: (job.steps ?? []).map((name) => ({ name, status: "waiting", output: "" })) };
		setAll((old) => [...old.filter((o) => o.job.id !== job.id), state]);
		for (let after = 0, wrong = 0; !state.done;) {
			try {
				const r = await get<{ events: Event[]; next: number; done: boolean }>("job", { id: job.id, after: String(after) });
				after = r.next;
				wrong = 0;
				state = apply(state, r.events ?? []);
				if (r.done) state.done = true;
			} catch (e) {
				if (++wrong < 5) { await new Promise((f) => setTimeout(f, 1000)); continue; }
				state = { ...state, done: true, failed: { error: (e as Error).message } };
			}
			const now = state;
			setAll((old) => old.map((o) => o.job.id === job.id ? now : o));
		}
		ended(state);
	};
	useEffect(() => { get<{ jobs: Job[] }>("jobs").then((r) => r.jobs.filter((j) => !j.done).forEach(follow), () => {}); }, []);
	const drop = (id: string) => setAll((old) => old.filter((o) => o.job.id !== id));
	return { all, follow, drop };
}

interface Props { jobs: JobState[]; drop(id: string): void; choose(m: Merge, s: JobState): void; go(session: string, id: string): void }

// Jobs shows what the page has started.
export function Jobs({ jobs, drop, choose, go }: Props) {
	if (jobs.length === 0) return null;
	return <section class="jobs" aria-label="Activity">
		{jobs.slice().reverse().map((s) => <article key={s.job.id} class="job" aria-label={`${s.job.kind} ${visible(s.job.what.slice(0, 80))}`}>
			<header><span class={`mark ${s.done ? verdict(s).split(",")[0] : "running"}`} aria-hidden="true" /> <strong>{s.job.kind}</strong> <G text={s.job.what} />
				<span class="quiet"> {s.done ? verdict(s) : "runs"}</span>
				{s.done ? <button type="button" class="link" onClick={() => drop(s.job.id)}>close</button>
					: <button type="button" class="link" onClick={() => post("cancel", { id: s.job.id }).catch(() => {})}>cancel</button>}
				<ToTurn result={s.result} go={go} /></header>
			{s.said && !s.done && <p class="quiet"><G text={s.said} /></p>}
			{s.steps.length > 0 && <ol class="steps">{s.steps.map((t, i) => t && <li key={i}>
				<span class={`mark ${t.status}`} title={t.status} /> <G text={t.name} /> <span class="quiet">{t.status}{t.exit ? `, exit ${t.exit}` : ""}</span>
				{t.output && <Pre text={t.output} label="output" />}</li>)}</ol>}
			{s.failed && <Failed error={{ message: s.failed.error, hint: s.failed.hint }} />}
			{s.done && s.result && <Outcome s={s} r={s.result} choose={choose} />}
		</article>)}
	</section>;
}

function ToTurn({ result, go }: { result?: Result | null; go: Props["go"] }) {
	const { id, session, number } = result ?? {};
	if (!id || !number) return null;
	return <button type="button" class="link" onClick={() => go(session ?? "", id)}>turn {number}</button>;
}

export function verdict(s: JobState): string {
	if (s.failed || !s.result) return "failed";
	switch (s.job.kind) {
	case "run": return s.result.result ?? "";
	case "replay": return s.result.same ? "same" : "differs";
	case "verify": return s.result.ok ? "verified" : "not verified";
	}
	return (s.result.outcome ?? "") + (s.result.dry_run ? ", dry run" : "");
}

function Outcome({ s, r, choose }: { s: JobState; r: Result; choose: Props["choose"] }) {
	if (s.job.kind === "replay") return <ul>
		{r.steps?.map((d) => <li key={d.name}><G text={d.name} />: <G text={(d.what ?? []).join(", ")} /></li>)}
		{r.files?.slice(0, 100).map((f) => <li key={f.path}><G text={f.path} /> {f.what}</li>)}
		{r.env?.length ? <li>environment: <G text={r.env.join(", ")} /></li> : null}
		{r.cwd ? <li>the directory differs</li> : null}
	</ul>;
	if (s.job.kind === "verify") return <Fragment>
		<p>{count(r.turns?.length ?? 0, "turn")}, {count(r.problems?.length ?? 0, "problem")}</p>
		<ul>{r.problems?.slice(0, 100).map((p, i) => <li key={i}><G text={p.where} />: <G text={p.error} />
			{p.hint ? <span class="quiet"> hint: <G text={p.hint} /></span> : null}</li>)}</ul></Fragment>;
	if (s.job.kind === "merge") {
		const m = { ...r as Merge, conflicts: r.conflicts ?? [], resolved: r.resolved ?? [], merged: r.merged ?? [] };
		return <Fragment>
			<p>{count(m.conflicts.length, "conflict")}, {m.resolved.length} resolved, {count(m.merged.length, "file")} with merged lines</p>
			{(m.conflicts.length > 0 || m.dry_run) && <button type="button" onClick={() => choose(m, s)}>
				{m.conflicts.length > 0 ? "choose" : "merge now"}</button>}</Fragment>;
	}
	if (s.job.kind === "run" && r.error) return <p class="failed"><G text={r.error} />{r.hint ? ` hint: ${visible(r.hint)}` : ""}</p>;
	return null;
}
