import { useEffect, useState } from "preact/hooks";
import { get } from "./api";

export interface Loaded<T> { value?: T; error?: unknown; of: string }

// useGet asks the server when name or query change, and again when again changes. The last answer
// stays meanwhile if it is about the same.
export function useGet<T>(name: string, query: Record<string, string> | null, again: unknown = 0): Loaded<T> {
	const of = query ? name + "?" + new URLSearchParams(query) : "";
	const [loaded, set] = useState<Loaded<T>>({ of: "" });
	useEffect(() => {
		if (!query) return;
		const abort = new AbortController();
		get<T>(name, query, abort.signal).then((value) => set({ value, of }),
			(error) => { if (!abort.signal.aborted) set((old) => ({ value: old.of === of ? old.value : undefined, error, of })); });
		return () => abort.abort();
	}, [of, again]);
	return loaded.of === of ? loaded : { of };
}
