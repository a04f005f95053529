import type { Turn } from "./api";

// A Line leads from column a at the top (or the dot, if it begins there) of a row to column b at its
// bottom (or the dot). part: 0 passes, 1 ends at the dot, 2 begins at the dot.
export interface Line { a: number; b: number; part: 0 | 1 | 2; color: number }
export interface Row { turn: Turn; at: number; color: number; lines: Line[]; width: number }

export const maxColumns = 12; // that are drawn
const colors = 6;

// rails lays out turns, the highest number first, as git log --graph does: one column for each
// current line of turns.
export function rails(turns: Turn[]): Row[] {
	let columns: { id: string; color: number }[] = [];
	let next = 0;
	return turns.map((turn) => {
		const before = columns;
		let at = before.findIndex((c) => c.id === turn.id);
		if (at < 0) at = before.length;
		const color = before[at]?.color ?? next++ % colors;
		const after: typeof columns = [];
		const lines: Line[] = [];
		const place = (id: string, wish: number) => { // the column of a parent
			let to = after.findIndex((c) => c.id === id);
			if (to < 0) to = after.push({ id, color: wish }) - 1;
			return to;
		};
		const parents = turn.parents ?? [];
		const seen = new Set(before.map((c) => c.id));
		before.forEach((c, i) => {
			if (i === at) {
				lines.push({ a: i, b: i, part: 1, color });
				if (parents[0] !== undefined && !seen.has(parents[0])) place(parents[0], color);
				return;
			}
			after.push(c);
			if (i < maxColumns) lines.push({ a: i, b: after.length - 1, part: 0, color: c.color });
		});
		parents.forEach((p, i) => {
			const known = after.some((c) => c.id === p);
			const wish = known || i === 0 ? color : next++ % colors;
			const to = place(p, wish);
			lines.push({ a: at, b: to, part: 2, color: after[to]?.color ?? wish });
		});
		columns = after;
		const width = Math.min(Math.max(before.length, after.length, at + 1), maxColumns);
		return { turn, at, color, lines: lines.filter((l) => l.a < maxColumns && l.b < maxColumns), width };
	});
}
