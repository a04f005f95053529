package ui_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
)

// evil is what a guest writes wherever it can.
const evil = "<script>pwned=1</script><img src=x onerror=pwned=2>\u202e\u2066\x1b[31m\x1b]0;x\x07</code></pre>"

// A place has three sessions: one as people have them, a large one, and one of a hostile guest.
// Nothing runs in it: it notes what is asked of it.
type place struct {
	mu     sync.Mutex
	asked  []string
	forks  []turnstone.Branch
	resume chan struct{} // a step of a run ends
	calm   bool          // nothing hostile is listed
	live   string        // the receipt so far of a turn of another command; empty: there is none
}

func newPlace() *place { return &place{resume: make(chan struct{}, 10)} }

// runElsewhere is another command that runs a turn, whose receipt so far is text.
func (p *place) runElsewhere(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live = text
}

func (p *place) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, fmt.Sprintf(format, args...))
}

func (p *place) notes() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.asked, "\n")
}

func id(session string, n int) turnstone.TurnID {
	return turnstone.TurnID(fmt.Sprintf("t_%s%04d", session, n))
}

func turn(session string, n int, branch, title string, parents ...int) turnstone.Turn {
	at := time.Now().Add(-time.Duration(200-n%200) * 7 * time.Minute)
	t := turnstone.Turn{ID: id(session, n), Session: turnstone.SessionID(session), Number: n,
		Branch: branch, Title: title, Status: turnstone.TurnDone, Result: turnstone.ResultPassed,
		Kind: turnstone.TurnKindRun, Started: at, Ended: at.Add(time.Second), Record: "sha256:00"}
	for _, p := range parents {
		t.Parents = append(t.Parents, id(session, p))
	}
	if len(parents) > 1 {
		t.Kind = turnstone.TurnKindMerge
	}
	return t
}

func (p *place) Sessions(context.Context) ([]turnstone.SessionInfo, error) {
	var list []turnstone.SessionInfo
	for _, s := range []struct {
		name  string
		turns int
	}{{"research", 13}, {"large", 1000}, {"hostile", 2}} {
		list = append(list, turnstone.SessionInfo{Session: turnstone.Session{
			ID: turnstone.SessionID(s.name), Name: s.name}, Turns: s.turns, Branches: []string{"main"},
			Used: time.Now().Add(-7 * time.Minute)})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live != "" {
		list[0].Turns, list[0].Running = 14, 1
	}
	if list[2].Name += evil; p.calm {
		list[1].Name, list[2].Name = "survey", "build"
	}
	return list, nil
}

func (p *place) Log(_ context.Context, ref string, _ int) (*turnstone.Graph, error) {
	p.note("log %s", ref)
	g := &turnstone.Graph{Session: turnstone.Session{ID: turnstone.SessionID(ref), Name: ref}}
	branch := func(name string, n int) {
		g.Branches = append(g.Branches, turnstone.Branch{Name: name, Head: id(ref, n)})
	}
	switch ref {
	case "research":
		g.Turns = researchTurns()
		branch("main", 12)
		branch("try/parquet", 13)
		branch("fix/units", 8)
		g.Tags = []turnstone.Tag{{Name: "report-1", Turn: id(ref, 7)}}
		p.mu.Lock()
		if p.live != "" {
			t := turn(ref, 14, "main", "Elsewhere", 12)
			t.Status, t.Result, t.Record = turnstone.TurnRunning, "", ""
			g.Turns = slices.Insert(g.Turns, 0, t)
		}
		g.Branches = append(g.Branches, p.forks...)
		p.mu.Unlock()
	case "large":
		for n := 1000; n >= 1; n-- {
			t := turn(ref, n, "main", fmt.Sprintf("turn %d of many", n))
			switch {
			case n%10 == 0 && n > 10:
				t.Parents = []turnstone.TurnID{id(ref, n-1), id(ref, n-4)}
			case n%10 == 7:
				t.Parents = []turnstone.TurnID{id(ref, n-2)}
			case n > 1:
				t.Parents = []turnstone.TurnID{id(ref, n-1)}
			}
			g.Turns = append(g.Turns, t)
		}
		branch("main", 1000)
	case "hostile":
		g.Turns = []turnstone.Turn{turn(ref, 2, "main"+evil, evil, 1), turn(ref, 1, evil, evil+strings.Repeat("B", 100_000))}
		branch(evil, 2)
		g.Tags = []turnstone.Tag{{Name: evil, Turn: id(ref, 1)}}
	default:
		return nil, turnstone.Errorf("log", turnstone.KindNotFound, ref, "no such session")
	}
	return g, nil
}

func researchTurns() []turnstone.Turn {
	const s = "research"
	list := []turnstone.Turn{
		turn(s, 13, "try/parquet", "Store the table as Parquet", 11),
		turn(s, 12, "main", "Plot the yearly means", 10),
		turn(s, 11, "try/parquet", "Measure the size of the CSV", 9),
		turn(s, 10, "main", "Merge fix/units into main", 9, 8),
		turn(s, 9, "main", "Compute yearly means", 7),
		turn(s, 8, "fix/units", "Convert Fahrenheit to Celsius", 6),
		turn(s, 7, "main", "Check the first report", 5),
		turn(s, 6, "fix/units", "Find rows with wrong units", 5),
		turn(s, 5, "main", "Join stations and readings", 4),
		turn(s, 4, "main", "Clean the readings", 3),
		turn(s, 3, "main", "Read the archive", 2),
		turn(s, 2, "main", "Install pandas", 1),
		turn(s, 1, "main", "Weather of ten stations"),
	}
	list[7].Result = turnstone.ResultFailed
	return list
}

func (p *place) Show(_ context.Context, ref string) (*turnstone.TurnInfo, error) {
	p.note("show %s", ref)
	t := turn("research", 9, "main", "x")
	t.ID = turnstone.TurnID(ref)
	return &turnstone.TurnInfo{Turn: t, Session: turnstone.Session{ID: "research", Name: evil},
		Heads: []string{evil}, Tags: []string{}, Children: []int{10, 11},
		Record: &turnstone.TurnRecord{Image: "python", Isolation: evil, Millis: 1200, Result: t.Result},
		State:  &turnstone.TurnState{Cwd: evil, Env: []string{"X=" + evil}}}, nil
}

const receipt = "---\nimage: python\nturn:\n  result: passed\n---\n# Plot the yearly means\n\n" +
	"The table of turn 9 has a row for each station and year. The data is from " +
	"[the archive](https://data.example/stations).\n\n" +
	"```bash {name=means}\npython3 means.py readings.csv > means.csv\nhead -4 means.csv\n```\n\n" +
	"```text {turn=output}\nstation,year,mean\nBasel,2023,11.9\nBasel,2024,12.1\nBern,2023,10.4\n```\n\n" +
	"| step | result | time |\n|---|---|---|\n| means | passed | 1.2 s |\n| plot | passed | 3.4 s |\n\n" +
	"```bash {name=plot}\npython3 plot.py means.csv -o means.svg\n```\n"

// hostile is a receipt of a guest that wants to be more than text.
const hostile = "# Title <script>pwned=3</script>\n\n" + evil + "\n\n" +
	"<script>pwned=4</script>\n\n<iframe srcdoc=\"<script>parent.pwned=5</script>\"></iframe>\n\n" +
	"<svg onload=pwned=6>\n\n<style>body{display:none}</style>\n\n<meta http-equiv=refresh content=0>\n\n" +
	"[a](javascript:pwned=7) [b](JaVaScRiPt:pwned=8) [c](data:text/html,<script>pwned=9</script>) " +
	"[d](java&#x73;cript:pwned=10) [e](//evil.example/x) [f](file:///etc/passwd) [g](vbscript:x) " +
	"[h](\x01javascript:x) [i](https://good.example/\"onmouseover=pwned=11 'x') " +
	"[bank.example](https://evil.example/bank) ![p](https://evil.example/pixel.png) " +
	"<javascript:pwned=12> <https://good.example/auto>\n\n" +
	"```html\n</code></pre><script>pwned=13</script>\n```\n\n" +
	"| <b onclick=pwned=14>x</b> |\n|---|\n| <img src=x onerror=pwned=15> |\n\n" +
	"> > > > `<script>pwned=16</script>`\n\n- <details open ontoggle=pwned=17>\n"

// hostileText has what is no markup and misleads all the same.
const hostileText = "# ANSI \x1b[31mred\x1b[0m \u009b31m \u202egnp.exe \u2066x\u2069 \u00ad \u2028 \U000E0041 \ufeff \u180e \u3164\n\n" +
	"![a](data:image/svg+xml,<svg/onload=pwned=30>) [b](data:text/html;base64,PHNjcmlwdD4=) [c](blob:https://x/y) " +
	"[d](java\tscript:pwned=31) [e](https:evil.example) [f](http:///evil.example) [g](\\\\evil.example\\x) " +
	"[h](https://user:pw@evil.example/) [i](https://\u0430pple.example/) [j][r] [k][js] <data:text/html,x> " +
	"<https://good.example/auto> [](javascript:pwned=32) [l](ws://evil.example) [m](#session=large) [n](/api/fork) " +
	"[o](https://good.example/bare)\n\n" +
	"[r]: https://good.example/ref\n[js]: javascript:pwned=33\n\n" +
	"<a href=\"javascript:pwned=34\" style=\"position:fixed;inset:0\">x</a>\n\n" +
	"<link rel=stylesheet href=https://evil.example/x.css><base href=https://evil.example/>\n\n" +
	"<form action=https://evil.example/><button formaction=javascript:pwned=35></form>\n\n" +
	"<math><mtext><style><img src onerror=pwned=36></style></mtext></math>\n\n" +
	"```text\n\x1b]8;;https://evil.example\x07click\x1b]8;;\x07\r\x1b[2J\x00\n```\n\n"

func (p *place) Receipt(_ context.Context, ref string) ([]byte, error) {
	p.note("receipt %s", ref)
	p.mu.Lock()
	live := p.live
	p.mu.Unlock()
	switch {
	case ref == "t_research0014":
		return []byte(live), nil
	case ref == "t_hostile0001":
		long := strings.Repeat("A", 200_000)
		return []byte(hostileText + long + "\n\n" + strings.Repeat("word ", 20_000) + "\n\n| " + long[:50_000] + " |\n|---|\n\n```\n" + long[:50_000] +
			"\n```\n\n" + strings.Repeat("> ", 300) + "deep\n\nthe end\n"), nil
	case strings.HasPrefix(ref, "t_hostile"):
		return []byte(hostile), nil
	}
	return []byte(receipt), nil
}

func (p *place) Trace(_ context.Context, ref string, each func(turnstone.TraceLine) error) error {
	p.note("trace %s", ref)
	one := 1
	text, language := "python3 means.py readings.csv", "bash"
	if strings.HasPrefix(ref, "t_hostile") {
		text, language = evil, evil
	}
	for _, l := range []turnstone.TraceLine{
		{Turn: &turnstone.TraceHead{Format: 1}},
		{Step: &turnstone.TraceStep{Index: 1, Name: language, Language: language, Line: 6,
			Status: turnstone.StepPassed, Untraced: evil}},
		{Command: &turnstone.CommandReport{ID: 1, Parent: -1, Kind: "simple", Language: language, Text: text,
			Place: &turnstone.Place{Line: 7, Column: 1}, ExitCode: &one}},
		{End: &turnstone.TraceEnd{Steps: 1, Commands: 1}},
	} {
		if err := each(l); err != nil {
			return err
		}
	}
	return nil
}

func (p *place) Verify(_ context.Context, r turnstone.VerifyRequest) (*turnstone.VerifyReport, error) {
	p.note("verify %s", r.Ref)
	return &turnstone.VerifyReport{Problems: []turnstone.VerifyProblem{{Where: evil, Error: evil}}}, nil
}

func (p *place) ListFiles(_ context.Context, ref, name string, _ bool,
	each func(turnstone.FileInfo) error) error {
	p.note("ls %s:%s", ref, name)
	n := 3
	if name == "/many" {
		n = 10_000
	}
	for i := range n {
		f := turnstone.FileInfo{Path: fmt.Sprintf("%s/%d%s", strings.TrimSuffix(name, "/"), i,
			strings.ReplaceAll(evil, "/", "|")), Type: "file", Size: 20}
		if i == 0 {
			f.Path, f.Type = strings.TrimSuffix(name, "/")+"/many", "dir"
		}
		if err := each(f); err != nil {
			return err
		}
	}
	return nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func (p *place) OpenFile(_ context.Context, ref, name string) (io.ReadCloser, error) {
	p.note("cat %s:%s", ref, name)
	switch name {
	case "/zeros":
		return io.NopCloser(zeros{}), nil
	case "/long":
		return io.NopCloser(io.LimitReader(repeat("é"), 1<<20)), nil
	}
	return io.NopCloser(strings.NewReader("content " + evil + "\n")), nil
}

// repeat is a text again and again.
type repeat string

func (r repeat) Read(p []byte) (int, error) {
	return copy(p, strings.Repeat(string(r), len(p)/len(r)+1)), nil
}

func (p *place) Diff(_ context.Context, r turnstone.DiffRequest) (*turnstone.StateDiff, error) {
	p.note("diff %s %s", r.From, r.To)
	v := evil
	d := &turnstone.StateDiff{Env: []turnstone.EnvChange{{Name: evil, New: &v}},
		Cwd: &turnstone.CwdChange{Old: evil, New: "/"}}
	patch := "--- a/means.csv\n+++ b/means.csv\n@@ -1,2 +1,2 @@\n-old " + evil + "\n+new " + evil + "\n"
	d.Files = []turnstone.FileChange{{Path: "/workspace/" + evil, OldPath: evil, Status: "R",
		Patch: patch, Plus: 1, Minus: 1}}
	for i := range 3000 {
		d.Files = append(d.Files, turnstone.FileChange{Path: fmt.Sprint("/f", i), Status: "A",
			Patch: strings.Repeat("+x\n", 10_000)})
	}
	if r.To == "" {
		d.Files = d.Files[:3]
	}
	return d, nil
}

func (p *place) Run(ctx context.Context, r executor.Request, o executor.Observer) (
	*turnstone.TurnReport, error) {
	p.note("run %s@%s piped %v grants %d", r.Session, r.Branch, r.Piped, len(r.Grant)+len(r.Add))
	o.Preparing("a machine starts " + evil)
	for _, s := range r.Document.Steps {
		o.StepStarted(s)
		o.StepOutput(s, turnstone.Stdout, []byte("printed "+evil+"\n"))
		select {
		case <-p.resume:
		case <-ctx.Done():
			return &turnstone.TurnReport{ID: "t_x", Result: turnstone.ResultError, Error: "interrupted"},
				ctx.Err()
		}
		o.StepFinished(s, turnstone.StepReport{Status: turnstone.StepPassed})
	}
	return &turnstone.TurnReport{ID: id("research", 12), Session: "research", Number: 12, Branch: "main",
		Result: turnstone.ResultPassed}, nil
}

func (p *place) Replay(_ context.Context, ref string, _ executor.ReplayOptions, _ executor.Observer) (
	*turnstone.ReplayReport, error) {
	p.note("replay %s", ref)
	return &turnstone.ReplayReport{Steps: []turnstone.StepDifference{{Name: evil, What: []string{evil}}},
		Changes: []turnstone.FileDifference{{Path: evil, What: "differs"}}, Env: []string{evil}}, nil
}

func (p *place) Fork(_ context.Context, ref, name string) (turnstone.Branch, error) {
	p.note("fork %s %s", ref, name)
	b := turnstone.Branch{Name: name, Head: turnstone.TurnID(ref)}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forks = append(p.forks, b)
	return b, nil
}

func (p *place) Merge(_ context.Context, r executor.MergeRequest) (*turnstone.MergeReport, error) {
	p.note("merge %s %s into %s dry %v paths %d", r.Session, r.From, r.Into, r.DryRun, len(r.Paths))
	m := &turnstone.MergeReport{Outcome: turnstone.MergeConflicts, Session: r.Session, Into: r.Into,
		DryRun: r.DryRun, Theirs: &turnstone.MergeSide{ID: id("research", 13), Number: 13},
		Conflicts: []turnstone.Conflict{{Path: "/workspace/" + evil, Kind: turnstone.ConflictContent,
			Ours:   &turnstone.ConflictVersion{Type: "file", Size: 3, Digest: "sha256:1111111111"},
			Theirs: &turnstone.ConflictVersion{Type: "file", Size: 5, Target: evil}}}}
	if len(r.Paths) > 0 {
		m.Outcome, m.Conflicts, m.Number, m.ID = turnstone.MergeDone, nil, 14, id("research", 14)
	}
	return m, nil
}
