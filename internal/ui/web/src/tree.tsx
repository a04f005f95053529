import { h } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Graph, Turn } from "./api";
import { maxColumns, type Row } from "./rails";
import { G, ago } from "./text";

const height = 34, step = 14, spare = 8; // pixels of a row and of a column; rows beside the visible ones

export function outcome(t: Turn): string {
	if (t.status === "running") return "running";
	return t.interrupted ? "interrupted" : t.result ?? "";
}

function Rails({ row }: { row: Row }) {
	const x = (c: number) => 9 + c * step, middle = height / 2;
	return <svg class="rails" width={x(row.width)} height={height} aria-hidden="true">
		{row.lines.map((l, i) => {
			const [y0, y1] = l.part === 1 ? [0, middle] : l.part === 2 ? [middle, height] : [0, height];
			const m = (y0 + y1) / 2;
			return <path key={i} class={`c${l.color}`}
				d={`M${x(l.a)} ${y0}C${x(l.a)} ${m} ${x(l.b)} ${m} ${x(l.b)} ${y1}`} />;
		})}
		{row.at < maxColumns && ((row.turn.parents?.length ?? 0) > 1
			? <circle class={`c${row.color} merge`} cx={x(row.at)} cy={middle} r="5" />
			: <circle class={`c${row.color}`} cx={x(row.at)} cy={middle} r="5" />)}
	</svg>;
}

interface Props { graph: Graph; rows: Row[]; selected: string; select(id: string): void; open(): void }

// Tree is the list of turns. Only the rows that are seen, and some beside them, are elements.
export function Tree({ graph, rows, selected, select, open }: Props) {
	const box = useRef<HTMLDivElement>(null);
	const [view, setView] = useState({ top: 0, size: 800 });
	const frame = useRef(0);
	const look = () => {
		cancelAnimationFrame(frame.current);
		frame.current = requestAnimationFrame(() => {
			if (box.current) setView({ top: box.current.scrollTop, size: box.current.clientHeight });
		});
	};
	useEffect(() => {
		const o = new ResizeObserver(look);
		o.observe(box.current!);
		return () => { o.disconnect(); cancelAnimationFrame(frame.current); };
	}, []);
	const at = rows.findIndex((r) => r.turn.id === selected);
	useLayoutEffect(() => {
		const b = box.current!;
		if (at < 0) return;
		if (at * height < b.scrollTop) b.scrollTop = at * height;
		else if ((at + 1) * height > b.scrollTop + b.clientHeight) b.scrollTop = (at + 1) * height - b.clientHeight;
	}, [at, rows.length]);
	const first = Math.max(0, Math.floor(view.top / height) - spare);
	const end = Math.min(rows.length, Math.ceil((view.top + view.size) / height) + spare);
	return <div class="tree" ref={box} onScroll={look} tabIndex={0} role="listbox" aria-label="Turns, newest first"
		aria-activedescendant={at >= first && at < end ? `turn-${selected}` : undefined}
		onKeyDown={(e) => { if (e.key === "Enter") { e.preventDefault(); open(); } }}>
		<div class="all" role="presentation" style={{ height: `${rows.length * height}px` }}>
			{rows.slice(first, end).map((r, i) => {
				const t = r.turn;
				const result = outcome(t);
				return <div key={t.id} id={`turn-${t.id}`} class={`row${t.id === selected ? " selected" : ""}`} role="option"
					aria-selected={t.id === selected} aria-setsize={rows.length} aria-posinset={first + i + 1}
					style={{ top: `${(first + i) * height}px` }} onClick={() => select(t.id)} onDblClick={open}>
					<Rails row={r} />
					<span class="number">{t.number}</span>
					<span class={`mark ${result}`} title={result}><span class="sr">{result}</span></span>
					{graph.branches.filter((b) => b.head === t.id).map((b) => <span key={b.name} class="ref branch">
						<span class="sr">branch </span><G text={b.name} /></span>)}
					{graph.tags.filter((b) => b.turn === t.id).map((b) => <span key={b.name} class="ref tag">
						<span class="sr">tag </span><G text={b.name} /></span>)}
					<span class="title"><G text={t.title ?? (t.locked ? "locked" : "")} /></span>
					<span class="quiet when">{ago(t.started)}</span>
				</div>;
			})}
		</div>
	</div>;
}
