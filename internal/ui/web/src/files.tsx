import { h, Fragment } from "preact";
import { useState } from "preact/hooks";
import type { File } from "./api";
import { useGet } from "./load";
import { Failed, G, Pre, Waiting, bytes } from "./text";

const base = (path: string) => path.slice(path.lastIndexOf("/") + 1) || "/";
const above = (path: string) => path.slice(0, path.lastIndexOf("/")) || "/";

// Files lists the folders of a turn's state, and shows texts.
export function Files({ id }: { id: string }) {
	const [dir, setDir] = useState("/workspace");
	const [open, setOpen] = useState("");
	const list = useGet<{ files: File[]; more: boolean }>("files", { ref: id, path: dir });
	const into = (path: string) => { setDir(path); setOpen(""); };
	const parts = dir.split("/").filter(Boolean);
	return <Fragment>
		<nav aria-label="Folder" class="path">
			<button type="button" class="link" onClick={() => into("/")}>/</button>
			{parts.map((p, i) => <button key={i} type="button" class="link"
				onClick={() => into("/" + parts.slice(0, i + 1).join("/"))}><G text={p} />/</button>)}
		</nav>
		<Failed error={list.error} />
		{!list.value && !list.error && <Waiting />}
		{list.value && <ul class="files">
			{dir !== "/" && <li><button type="button" class="link" onClick={() => into(above(dir))}>..</button></li>}
			{list.value.files.filter((f) => f.path !== dir || f.type !== "dir").map((f) => <li key={f.path}>
				{f.type === "dir" ? <button type="button" class="link" onClick={() => into(f.path)}><G text={base(f.path)} />/</button>
					: f.type === "file" ? <button type="button" class="link" aria-expanded={open === f.path}
						onClick={() => setOpen(open === f.path ? "" : f.path)}><G text={base(f.path)} /></button>
					: <span><G text={base(f.path)} /> <span class="quiet">{f.type}</span></span>}
				{f.target ? <span class="quiet"> → <G text={f.target} /></span> : null}
				<span class="quiet size">{f.type === "file" ? bytes(f.size) : ""} {String(f.mode)} {f.uid}:{f.gid}</span>
				{open === f.path && <FileText id={id} file={f} />}
			</li>)}
		</ul>}
		{list.value?.more && <p class="quiet">the folder has more entries: turn ls {id}:{"PATH"}</p>}
	</Fragment>;
}

function FileText({ id, file }: { id: string; file: File }) {
	const { value: f, error } = useGet<{ text: string; binary: boolean; more: boolean }>("file", { ref: id, path: file.path });
	if (error) return <Failed error={error} />;
	if (!f) return <Waiting />;
	if (f.binary) return <p class="quiet">no text, {bytes(file.size)}</p>;
	return <Fragment><Pre text={f.text} label={`content of ${base(file.path)}`} />
		{f.more && <p class="quiet">the beginning of {bytes(file.size)}; turn cat prints the whole file</p>}</Fragment>;
}
