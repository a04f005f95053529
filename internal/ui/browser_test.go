package ui_test

import (
	"context"
	"net"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/loopback"
	"turnstone.dev/turnstone/internal/ui"
)

// serve serves a place until the test ends, and returns the page's address.
func serve(t testing.TB, p *place) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	token := loopback.NewToken()
	s := ui.New(ui.Options{Guard: loopback.Guard{Token: token},
		Place: ui.Place{Sessions: p, Evidence: p, Files: p, Runner: p, Changer: p}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String() + "/" + token + "/"
}

// harmless fails if anything of a guest has become more than text.
func (b *browser) harmless() {
	b.t.Helper()
	const check = `(() => {
		const wrong = [];
		if (globalThis.pwned !== undefined) wrong.push("a script ran: " + pwned);
		if (document.querySelectorAll("script").length !== 1) wrong.push("another script");
		for (const e of document.querySelectorAll("img, iframe, object, embed, style, base, video, audio, " +
			"svg:not(.rails), link:not([href='app.css']), meta[http-equiv]")) wrong.push(e.outerHTML.slice(0, 200));
		const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\u3164\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/u;
		for (const e of document.querySelectorAll("*")) for (const a of e.attributes) {
			if (/^on/i.test(a.name) || ["srcdoc", "action", "formaction", "ping"].includes(a.name)) wrong.push(a.name);
			if (a.name === "style" && !/^(top|height): \d+px;$/.test(a.value)) wrong.push("style " + a.value);
			if (a.name !== "value" && hidden.test(a.value)) wrong.push("a control character in " + a.name);
		}
		for (const e of document.querySelectorAll("a[href], [src], [href]")) {
			if (["SCRIPT", "LINK"].includes(e.tagName)) continue;
			if (!/^https?:\/\//.test(e.getAttribute("href")) || !e.rel.split(" ").includes("noopener") ||
				!e.rel.split(" ").includes("noreferrer")) wrong.push(e.outerHTML);
		}
		if (hidden.test(document.body.textContent + document.title)) wrong.push("a control character");
		if (document.documentElement.scrollWidth > innerWidth) wrong.push("the page is wider than its window");
		return wrong.join("\n");
	})()`
	if wrong := b.eval(check); wrong != "" {
		b.t.Errorf("%v", wrong)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.others) > 0 {
		b.t.Errorf("requests to others: %q", b.others)
	}
}

// has is true if the first element of a selector has a text.
func has(selector, text string) string {
	return "document.querySelector('" + selector + "')?.textContent.includes('" + text + "')"
}

// TestHostile shows what a hostile guest wrote, in all parts of the page.
func TestHostile(t *testing.T) {
	p := newPlace()
	at := serve(t, p)
	b := open(t, 1280, 900, "light")
	b.visit(at+"#session=hostile", has(".markdown", "pwned=17"))
	b.harmless()
	for _, want := range []string{
		`document.querySelectorAll(".markdown a").length === 4`,
		has(".markdown", "⟨https://evil.example/bank⟩"),
		has(".markdown", "<script>pwned=4</script>"),
		has(".markdown", "<iframe srcdoc="),
		has(".row .title", "<script>pwned=1"),
		has(".sessions", "<script>pwned=1"),
	} {
		b.await(want)
	}
	b.picture("hostile")
	b.press("2")
	b.await(has(".commands", "<script>pwned=1"))
	b.harmless()
	b.press("3")
	b.await(has(".files", "<script>pwned=1"))
	b.eval(`document.querySelector(".files [aria-expanded]").click()`)
	b.await(has(".files pre", "content <script>"))
	b.harmless()
	b.picture("files")
	b.press("4")
	b.await(has(".patch .plus", "new <script>") + "||" + has(".patch", "new <script>"))
	b.harmless()
	b.press("5")
	b.await(has("dl", "<script>pwned=1"))
	b.harmless()
	for key, text := range map[string]string{"v": "1 problem", "p": "the directory differs|differs"} {
		b.press(key)
		b.await("/" + text + "/.test(document.querySelector('.jobs')?.textContent)")
	}
	b.harmless()
	b.eval(`(() => { try { document.body.innerHTML += "<img src=x onerror=pwned=21>" } catch {} })()`)
	b.harmless()
	// The policy refuses what this test has tried itself, after the browser has noted the request.
	b.eval(`import("data:text/javascript,globalThis.pwned=20").catch(() => {})`)
	b.await("globalThis.pwned === undefined")
}

// TestHostileText shows links, control characters and lines without end, and dialogs with the names
// that a guest gave.
func TestHostileText(t *testing.T) {
	p := newPlace()
	at := serve(t, p)
	b := open(t, 1000, 700, "dark")
	b.visit(at+"#session=hostile&turn=t_hostile0001", has(".markdown", "the end"))
	b.harmless()
	want := "https://good.example/auto https://good.example/bare https://good.example/ref " +
		"https://user:pw@evil.example/ https://xn--pple-43d.example/"
	if got := b.eval(`[...document.querySelectorAll(".markdown a")].map((e) => e.href).sort().join(" ")`); got != want {
		t.Errorf("links:\n%v, want\n%v", got, want)
	}
	for _, code := range []string{"001B", "009B", "202E", "2066", "00AD", "2028", "E0041", "FEFF", "180E", "3164"} {
		b.await(has(".markdown", "⟨U+"+code+"⟩"))
	}
	b.await(has(".markdown pre:not(.html)", "⟨U+001B⟩]8;;https://evil.example⟨U+0007⟩"))
	b.picture("hostile-text")
	for key, ready := range map[string]string{"f": "dialog input", "m": "dialog select option", "r": "dialog textarea"} {
		b.press(key)
		b.await(`document.querySelector("` + ready + `")`)
		b.harmless()
		b.eval(`document.querySelector("dialog").close()`)
		b.await(`!document.querySelector("dialog")`)
	}
	b.press("5")
	b.await(has("dl", "<script>pwned=1"))
	b.harmless()
	if faults := b.noted(); len(faults) > 0 {
		t.Errorf("faults of the page: %v", faults)
	}
}

// TestPage works with the page as a person does, with keys.
func TestPage(t *testing.T) {
	p := newPlace()
	p.calm = true
	at := serve(t, p)
	b := open(t, 1280, 800, "light")
	const ready = `document.querySelectorAll(".row").length === 13 && document.querySelector(".markdown table")`
	b.visit(at+"#session=research&turn=t_research0012", ready)
	selected := func(n string) {
		b.await(`document.querySelector(".row.selected .number")?.textContent === "` + n + `"`)
	}
	selected("12")
	b.picture("page")
	t.Logf("first paint after %v ms, all after %.0f ms",
		b.eval(`Math.round(performance.getEntriesByName("first-contentful-paint")[0]?.startTime)`),
		b.eval(`performance.now()`))
	b.press("j")
	selected("11")
	// Two keys in one frame are two moves.
	b.eval(`for (const key of "kk") document.querySelector(".tree").dispatchEvent(new KeyboardEvent("keydown",
		{key, bubbles: true}))`)
	b.press("k")
	b.press("j")
	b.press("k")
	selected("13")
	b.press("Enter")
	b.await(`document.activeElement.id === "part"`)
	b.press("Escape")
	b.await(`document.activeElement.classList.contains("tree")`)
	b.press("?")
	b.await(`document.querySelector("dialog[open]")?.textContent.includes("search turns")`)
	b.eval(`document.querySelector("dialog").close()`)
	b.await(`!document.querySelector("dialog")`)
	b.press("/")
	b.await(`document.activeElement.type === "search"`)
	b.call("Input.insertText", map[string]any{"text": "fix/units"}, nil)
	b.await(`document.querySelectorAll(".row").length === 3`)
	b.press("Escape")
	b.await(`document.querySelectorAll(".row").length === 13`)
	b.await(`document.querySelector(".tree").getAttribute("role") === "listbox" &&
		document.getElementById(document.querySelector(".tree").getAttribute("aria-activedescendant"))`)
	if faults := b.noted(); len(faults) > 0 {
		t.Errorf("faults of the page: %v", faults)
	}
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{
		"name": "prefers-color-scheme", "value": "dark"}}}, nil)
	b.picture("dark")
}

// TestActions runs, forks and merges from the page.
func TestActions(t *testing.T) {
	p := newPlace()
	at := serve(t, p)
	b := open(t, 1280, 800, "light")
	b.visit(at+"#session=research&turn=t_research0013",
		`document.querySelectorAll(".row").length === 13 && document.querySelector(".markdown table")`)
	b.press("r")
	b.await(`document.querySelector("dialog textarea")`)
	b.eval(`document.querySelector("dialog form").requestSubmit()`)
	b.await(`document.querySelector(".job .steps")?.textContent.includes("printed <script>")`)
	b.await(`document.querySelector(".job .steps .mark.running") && !document.querySelector("dialog")`)
	b.harmless()
	b.picture("live")
	p.resume <- struct{}{}
	b.await(`document.querySelector(".job .steps .mark.passed") && document.querySelector(".job header").textContent.includes("turn 12")`)
	if !strings.Contains(p.notes(), "run research@try/parquet piped true grants 0") {
		t.Error(p.notes())
	}
	b.eval(`[...document.querySelectorAll(".job .link")].find((e) => e.textContent === "close").click()`)
	b.await(`!document.querySelector(".job")`)
	b.press("f")
	b.await(`document.querySelector("dialog input")`)
	b.eval(`document.querySelector("dialog input").focus()`)
	b.call("Input.insertText", map[string]any{"text": "next"}, nil)
	b.eval(`document.querySelector("dialog form").requestSubmit()`)
	b.await(`[...document.querySelectorAll(".ref.branch")].some((e) => e.textContent === "branch next")`)
	b.press("m")
	b.await(`document.querySelector("dialog select")`)
	b.eval(`document.querySelector("dialog form").requestSubmit()`)
	b.await(`document.querySelector(".job")?.textContent.includes("1 conflict")`)
	b.eval(`[...document.querySelectorAll(".job button")].find((e) => e.textContent === "choose").click()`)
	b.await(`document.querySelectorAll(".conflicts input[type=radio]").length === 2`)
	b.harmless()
	b.picture("conflicts")
	b.eval(`document.querySelectorAll(".conflicts input[type=radio]")[1].click()`)
	b.eval(`document.querySelector("dialog form").requestSubmit()`)
	b.await(`document.querySelector(".job .mark.merged")`)
	if !strings.Contains(p.notes(), "dry false paths 1") {
		t.Error(p.notes())
	}
	if faults := b.noted(); len(faults) > 0 {
		t.Errorf("faults of the page: %v", faults)
	}
}

// TestElsewhere shows a turn of another command while it runs, without a reload.
func TestElsewhere(t *testing.T) {
	p := newPlace()
	at := serve(t, p)
	b := open(t, 420, 800, "light")
	b.visit(at+"#session=research", `document.querySelectorAll(".row").length === 13 && document.querySelector(".markdown table")`)
	b.eval("globalThis.same = true")
	p.runElsewhere("# Elsewhere\n\nbefore step 1 " + evil + "\n")
	b.await(`document.querySelector(".row .mark.running")`)
	b.press("k")
	b.await(has(".markdown", "before step 1"))
	p.runElsewhere("# Elsewhere\n\nbefore step 2 " + evil + "\n")
	b.await(has(".markdown", "before step 2"))
	b.harmless()
	b.picture("narrow")
	p.runElsewhere("")
	b.await(`document.querySelectorAll(".row").length === 13 && globalThis.same`)
	if faults := b.noted(); len(faults) > 0 {
		t.Errorf("faults of the page: %v", faults)
	}
}

// TestLargeTree scrolls through 1,000 turns, of which few are elements at any time.
func TestLargeTree(t *testing.T) {
	at := serve(t, newPlace())
	b := open(t, 1280, 800, "light")
	b.visit(at+"#session=large", `document.querySelector(".row .number")?.textContent === "1000"`)
	t.Logf("1,000 turns: the tree after %.0f ms", b.eval(`performance.now()`))
	const scroll = `(async () => {
		const tree = document.querySelector(".tree"), frames = [], empty = [];
		let last = performance.now(), most = 0;
		for (let y = 0; y < tree.scrollHeight; y += 340) {
			tree.scrollTop = y;
			await new Promise(requestAnimationFrame);
			const now = performance.now();
			frames.push(now - last);
			last = now;
			most = Math.max(most, document.querySelectorAll(".row").length);
		}
		frames.sort((a, b) => a - b);
		return {frames: frames.length, median: frames[frames.length >> 1],
			p99: frames[Math.floor(frames.length * .99)], most, height: tree.scrollHeight};
	})()`
	r := b.eval(scroll).(map[string]any)
	t.Logf("scrolling: %v", r)
	if r["most"].(float64) > 60 || r["height"].(float64) != 1000*34 {
		t.Errorf("the tree is not virtual: %v", r)
	}
	b.eval(`document.querySelector(".tree").focus()`)
	b.press("End")
	b.await(`document.querySelector(".row.selected .number")?.textContent === "1"`)
	b.picture("large")
}
