import { h, Fragment, type ComponentChild, type ComponentChildren } from "preact";
import type { Node } from "./api";

// visible shows the characters of a guest that have no picture, or that change the order of others.
export function visible(text: string): string {
	return text.replaceAll("\r\n", "\n").replace(hidden,
		(c) => `⟨U+${c.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

// Controls except tab and line feed, formats (bidi, joiners, tags), separators, and letters that are empty.
const hidden = /[\p{Cf}\p{Zl}\p{Zp}\u0000-\u0008\u000b-\u001f\u007f-\u009f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0]/gu;

// shortened cuts words that no person reads: Chromium takes minutes to break one of 200,000 characters
// into lines.
function shortened(text: string): string {
	return text.replace(/\S{4000,}/gu, (w) => `${w.slice(0, 4000)}⟨${w.length - 4000} more characters⟩`);
}

// G is a guest's text within a line.
export function G({ text }: { text: string }) { return <bdi>{shortened(visible(text))}</bdi>; }

export function Pre({ text, label }: { text: string; label?: string }) {
	return <pre tabIndex={0} aria-label={label && visible(label)}><code>{visible(text)}</code></pre>;
}

// Link is a link of a guest. Its target is shown, and only addresses of http and https are links.
function Link({ node }: { node: Node }) {
	const kids = <Kids nodes={node.c} />;
	const image = node.i === "image" ? "picture: " : "";
	let to: URL | undefined;
	try { to = new URL(node.h ?? ""); } catch { /* it leads nowhere */ }
	if (!to || to.protocol !== "http:" && to.protocol !== "https:") return <span>{image}{kids}</span>;
	const only = node.c?.length === 1 ? node.c[0] : undefined;
	const plain = only?.k === "text" && only.t === to.href;
	return <Fragment>
		<a href={to.href} target="_blank" rel="noopener noreferrer nofollow" referrerpolicy="no-referrer">{image}{kids}</a>
		{!plain && <span class="target"> ⟨{visible(to.href)}⟩</span>}
	</Fragment>;
}

function Kids({ nodes }: { nodes?: Node[] | undefined }) {
	return <Fragment>{nodes?.map((n, i) => <One key={i} node={n} />)}</Fragment>;
}

const plainTags = new Map([["p", "p"], ["quote", "blockquote"], ["ul", "ul"], ["li", "li"], ["em", "em"],
	["strong", "strong"], ["del", "del"], ["code", "code"], ["tr", "tr"], ["span", "span"]]);

function One({ node }: { node: Node }): ComponentChild {
	const kids = () => <Kids nodes={node.c} />;
	switch (node.k) {
	case "text": return shortened(visible(node.t ?? ""));
	case "html": return <pre class="html" tabIndex={0}><code>{visible(node.t ?? "")}</code></pre>;
	case "pre": return <pre tabIndex={0} data-language={visible(node.i ?? "").split(" ")[0]}>
		<code>{visible(node.t ?? "")}</code></pre>;
	// The page has its own headings above.
	case "h": return h(`h${Math.min((node.l ?? 1) + 2, 6)}`, { class: `l${node.l}` }, kids());
	case "a": return <Link node={node} />;
	case "hr": return <hr />;
	case "ol": return <ol start={node.l}>{kids()}</ol>;
	case "table": return <div class="scroll"><table><tbody>{kids()}</tbody></table></div>;
	case "td": return <td>{kids()}</td>;
	}
	const tag = plainTags.get(node.k) ?? "span";
	return h(tag, node.k === "tr" && node.i === "head" ? { class: "head" } : null, kids());
}

// Markdown shows a receipt.
export function Markdown({ nodes }: { nodes: Node[] }) { return <div class="markdown" dir="auto"><Kids nodes={nodes} /></div>; }

export function Failed({ error }: { error: unknown }) {
	if (!error) return null;
	const e = error as { message?: string; hint?: string };
	return <p role="alert" class="failed"><G text={e.message ?? String(error)} />
		{e.hint ? <Fragment><br />hint: <G text={e.hint} /></Fragment> : null}</p>;
}

export function Waiting({ children }: { children?: ComponentChildren }) {
	return <p class="quiet" aria-busy="true">{children ?? "loading …"}</p>;
}

export function count(n: number, what: string): string { return `${n} ${what}${n === 1 ? "" : "s"}`; }

export function bytes(n: number): string {
	const units = ["B", "KiB", "MiB", "GiB", "TiB"];
	let u = 0;
	while (n >= 1024 && u < units.length - 1) { n /= 1024; u++; }
	return `${u ? n.toFixed(1) : n} ${units[u]}`;
}

export function took(ms: number): string {
	if (ms < 1000) return `${Math.round(ms * 10) / 10} ms`;
	if (ms < 120e3) return `${(ms / 1000).toFixed(1)} s`;
	return `${Math.round(ms / 60e3)} min`;
}

export function ago(time: string): string {
	const s = Math.max(0, (Date.now() - Date.parse(time)) / 1000);
	for (const [unit, size] of [["d", 86400], ["h", 3600], ["m", 60]] as const) {
		if (s >= size) return `${Math.floor(s / size)}${unit} ago`;
	}
	return `${Math.floor(s)}s ago`;
}
