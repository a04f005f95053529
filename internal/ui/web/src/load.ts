import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { get, type Start } from "./api";

export interface Loaded<T> { value?: T; error?: unknown; of: string }

const key = (name: string, query: Record<string, string>) => name + "?" + new URLSearchParams(query);

// Answers that came before the parts of the page that use them, each for one use.
const early = new Map<string, unknown>();

// begin asks for all that the first picture needs. If that fails, each part asks for itself, and shows
// why it got nothing.
export async function begin(query: Record<string, string>): Promise<void> {
	try {
		const s = await get<Start>("start", query);
		early.set(key("sessions", {}), s.sessions);
		if (s.of && s.tree) early.set(key("log", { session: s.of }), s.tree);
		if (s.ref && s.receipt) early.set(key("receipt", { ref: s.ref }), s.receipt);
	} catch { /* as above */ }
}

function take<T>(of: string): Loaded<T> {
	if (!early.has(of)) return { of: "" };
	const value = early.get(of) as T;
	early.delete(of);
	return { value, of };
}

// useGet asks the server when name or query change, and again when again changes. The last answer
// stays meanwhile if it is about the same.
export function useGet<T>(name: string, query: Record<string, string> | null, again: unknown = 0): Loaded<T> {
	const of = query ? key(name, query) : "";
	const [loaded, set] = useState<Loaded<T>>(() => take(of));
	const known = useRef(loaded.of === of); // the answer is there already
	// A layout effect, because others wait for the next frame.
	useLayoutEffect(() => {
		if (!query) return;
		if (known.current) { known.current = false; return; }
		const abort = new AbortController();
		get<T>(name, query, abort.signal).then((value) => set({ value, of }),
			(error) => { if (!abort.signal.aborted) set((old) => ({ value: old.of === of ? old.value : undefined, error, of })); });
		return () => abort.abort();
	}, [of, again]);
	return loaded.of === of ? loaded : { of };
}
