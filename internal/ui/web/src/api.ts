// What the server answers: the types of report_*.go that the page uses.
export interface Session { id: string; name?: string; created: string; turns: number; running: number;
	branches: string[]; used: string; title?: string }
export interface Turn { id: string; number: number; branch: string; parents?: string[]; title?: string;
	status: string; result?: string; interrupted?: boolean; started: string; locked?: boolean }
export interface Branch { name: string; head?: string }
export interface Tag { name: string; turn: string }
export interface Graph { session: { id: string; name?: string }; turns: Turn[]; branches: Branch[]; tags: Tag[] }
export interface Sessions { place: string; version: string; sessions: Session[] }
export interface Start { sessions: Sessions; of?: string; tree?: Graph; ref?: string; receipt?: Receipt }
export interface Node { k: string; t?: string; i?: string; l?: number; h?: string; c?: Node[] }
export interface Receipt { front: string; body: Node[]; size: number; cut: boolean; evidence?: string; source: string }
export interface Step { name: string; status: string; exit_code?: number | null }
export interface Info { turn: Turn; session: { id: string; name?: string }; heads: string[]; tags: string[];
	children: number[]; record: null | { image: string; isolation?: string; substrate?: string; started: string;
		duration_ms: number; result: string; error?: string; steps?: Step[];
		layer: { added: number; changed: number; removed: number } };
	state: null | { tree: { fs_hash: string }; cwd: string; env: string[] }; kept?: string }
export interface Place { line: number; column: number; end_line: number; end_column: number }
export interface Command { id: number; parent: number; kind: string; language: string; text: string; place?: Place;
	start_ms: number; duration_ms: number; exit_code: number | null }
export interface TraceStep { index: number; name: string; line: number; language: string; status: string;
	exit_code: number | null; duration_ms: number; command_count: number; left_out?: number; untraced?: string;
	commands: Command[] }
export interface File { path: string; type: string; mode: string | number; uid: number; gid: number; size: number;
	target?: string }
export interface Change { path: string; status: string; old_path?: string; what?: string[]; plus?: number;
	minus?: number; binary?: boolean; patch?: string }
export interface Diff { files: Change[]; env: { name: string; old: string | null; new: string | null }[];
	cwd?: { old: string; new: string }; more: number }
export interface Version { type?: string; mode?: string; size?: number; target?: string; digest: string; path?: string }
export interface Conflict { path: string; kind: string; detail?: string; base: Version | null; ours: Version | null;
	theirs: Version | null; resolution?: string }
export interface Merge { outcome: string; dry_run: boolean; session: string; into: string; number?: number; id?: string;
	branch?: string; theirs?: { id: string; number: number } | null;
	conflicts: Conflict[]; resolved: Conflict[]; merged: string[];
	layer: { added: number; changed: number; removed: number } }
export interface Ran { id: string; session: string; number: number; result: string; error?: string; hint?: string }
export interface Replayed { same: boolean; steps: { name: string; what: string[] | null }[] | null;
	files: { path: string; what: string }[] | null; env: string[] | null; cwd: boolean }
export interface Verified { ok: boolean; turns: unknown[] | null;
	problems: { where: string; error: string; hint?: string }[] | null }
// A Result has the fields of one of these, by the kind of its job.
export type Result = Partial<Ran & Replayed & Verified & Merge>;
export interface Job { id: string; kind: string; what: string; started: string; steps?: string[]; done?: boolean }
export interface Failure { error: string; kind?: string; hint?: string }
export interface Event { kind: string; step?: number; name?: string; stream?: number; text?: string; status?: string;
	exit?: number; ms?: number; result?: Result | null; failed?: Failure }

export class Refused extends Error {
	hint: string;
	constructor(f: Failure) { super(f.error); this.hint = f.hint ?? ""; }
}

async function result<T>(r: Response): Promise<T> {
	const text = await r.text();
	if (!(r.headers.get("Content-Type") ?? "").startsWith("application/json")) throw new Refused({ error: text });
	const value = JSON.parse(text);
	if (!r.ok) throw new Refused(value);
	return value;
}

// get asks for what changes nothing.
export async function get<T>(name: string, query: Record<string, string> = {}, signal?: AbortSignal): Promise<T> {
	return result<T>(await fetch(`api/${name}?${new URLSearchParams(query)}`, { signal, cache: "no-store" }));
}

export async function post<T>(name: string, body: unknown): Promise<T> {
	return result<T>(await fetch(`api/${name}`, { method: "POST", body: JSON.stringify(body),
		headers: { "Content-Type": "application/json" } }));
}
