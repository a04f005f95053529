package turn

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/hostca"
	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/network/proxy"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/sandboxtest"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

var update = flag.Bool("update", false, "write testdata anew")

// goldenLimits make the plans of testdata/plans.txt independent of the machine that makes them.
const goldenLimits = "[limits]\ncpus = 4\nmemory = \"2GiB\"\ndisk = \"16GiB\"\ntimeout = " +
	"\"2h\"\nsandboxes = 3\noutput = \"1MiB\"\nentries = 1000\nfile_size = \"1GiB\"\n" +
	"free_space = \"1MiB\"\n"

// A goldenCase is a request on a host, and the turn's initial state.
type goldenCase struct {
	name   string
	front  string // the document's front matter
	req    plan.Request
	again  *Repeat              // the turn that req repeats
	host   string               // text of config.toml, in addition to goldenLimits
	parent *turnstone.TurnState // state of the last turn of session "s"
}

func on() *bool  { v := true; return &v }
func off() *bool { v := false; return &v }

func goldenCases(dir string) []goldenCase {
	rules := func(n document.NetworkRules) *document.NetworkRules { return &n }
	on2 := func(image, cwd string, env ...string) *turnstone.TurnState {
		return &turnstone.TurnState{Image: image, Cwd: cwd, Env: env}
	}
	return []goldenCase{
		{name: "nothing said"},
		{name: "all in the document",
			front: "image: python\ncpus: 2\nmemory: 768MiB\ndisk: 4GiB\ntimeout: 5m\nnetwork: " +
				"on\ncwd: sub\nenv:\n  A: doc\n  B: two"},
		{name: "flags win over the document",
			front: "image: python\ncpus: 2\nmemory: 768MiB\ntimeout: 5m\ncwd: sub\nnetwork: " +
				"on\nenv:\n  A: doc",
			req: plan.Request{Image: "base", CPUs: 1, Memory: 512 << 20, Disk: 2 << 30,
				Timeout: time.Minute, Network: off(), Env: []string{"A=flag", "C=3"},
				Substrate: "qemu"}},
		{name: "smaller limits than the defaults",
			host: "cpus = 1\nmemory = \"256MiB\"\ndisk = \"1GiB\"\ntimeout = \"10m\""},
		{name: "deterministic", front: "deterministic: true\nseed: 42\nclock: 2000-02-29"},
		{name: "deterministic on a state", front: "deterministic: true",
			req: plan.Request{Session: "s", Env: []string{"A=1"},
				Tier: turnstone.TierStrict, Disk: 1 << 30},
			parent: on2("base", "/srv", "B=2")},
		{name: "more than the limits", front: "memory: 4GiB"},
		{name: "the time asked for is more than the limit",
			req: plan.Request{Timeout: 3 * time.Hour}},
		{name: "files of the document, added and fetched",
			front: "files: [data.csv, 'data.csv:in/', 'data.csv:/etc/x']\ncwd: sub",
			req: plan.Request{Dir: dir,
				Add: []document.Transfer{{Path: filepath.Join(dir, "data.csv"), Dest: "/a/"}},
				Get: []document.Transfer{{Path: "out"}, {Path: "/etc/passwd", Dest: "pw"}}}},
		{name: "files that leave the folder", front: "files: [../x]", req: plan.Request{Dir: dir}},
		{name: "files from a pipe", front: "files: [data.csv]", req: plan.Request{Dir: dir,
			Piped: true}},
		{name: "files from a pipe, granted", front: "files: [data.csv]", req: plan.Request{Dir: dir,
			Piped: true, Grant: []string{"files"}}},
		{name: "secrets", req: plan.Request{Secrets: []string{"TOKEN=tok-5f3a-XYZZY",
			"OTHER=oth-77aa-PLUGH"}, Env: []string{"A=1"}}},
		{name: "a secret in the open", req: plan.Request{Secrets: []string{"TOKEN=tok-5f3a-XYZZY"},
			Env: []string{"A=tok-5f3a-XYZZY"}}},
		{name: "a new session", req: plan.Request{Session: "s"}},
		{name: "a branch that is not there", req: plan.Request{Session: "s", Branch: "b"}},
		{name: "a branch without a session", req: plan.Request{Branch: "b"}},
		{name: "on a turn", req: plan.Request{Session: "s", Env: []string{"A=2"}},
			parent: on2("base", "/srv/app", "A=1", "N=1")},
		{name: "on a turn, with files and a cwd of its own", front: "cwd: /else\nfiles: [data.csv]",
			req: plan.Request{Session: "s", Dir: dir}, parent: on2("base", "/srv/app")},
		{name: "on a turn, with files in its directory", front: "files: [data.csv]",
			req: plan.Request{Session: "s", Dir: dir, Get: []document.Transfer{{Path: "out"}},
				Add: []document.Transfer{{Path: filepath.Join(dir, "data.csv")}}},
			parent: on2("base", "/srv/app")},
		{name: "on a turn with a larger image", req: plan.Request{Session: "s"},
			parent: on2("browser", "/workspace")},
		{name: "on a turn with a larger image, smaller by a flag", req: plan.Request{Session: "s",
			Memory: 512 << 20}, parent: on2("browser", "/workspace")},
		{name: "on a turn with a larger image, within smaller limits",
			req: plan.Request{Session: "s"}, host: "memory = \"512MiB\"",
			parent: on2("browser", "/workspace")},
		{name: "on a turn of an image of a registry", req: plan.Request{Session: "s"},
			parent: on2("docker.io/library/python:3.12@sha256:"+strings.Repeat("0", 64), "/")},
		{name: "on a turn of an image of a registry that the host names",
			req: plan.Request{Session: "s"}, host: "[images]\nregistries = [\"docker.io\"]",
			parent: on2("docker.io/library/python:3.12@sha256:"+strings.Repeat("0", 64), "/")},
		{name: "on a turn of another image", req: plan.Request{Session: "s", Image: "base"},
			parent: on2("python", "/")},
		{name: "on a turn of a template that is unknown", req: plan.Request{Session: "s"},
			parent: on2("mine", "/")},
		{name: "a machine that stays", req: plan.Request{Session: "s",
			Lifetime: turnstone.LifetimeSession, Branch: "main"}},
		{name: "a machine that stays, by a document", front: "session: s\nlifetime: session"},
		{name: "a snapshot", req: plan.Request{Snapshot: document.SnapshotVM}},
		{name: "a home", req: plan.Request{Home: "h"}, front: "isolation: microvm"},
		{name: "a session that the host grants", front: "session: s\nhome: h",
			host: "[documents]\nsessions = [\"s*\"]\nhomes = [\"h\"]"},
		{name: "the network is off by default", host: "[network]\ndefault = \"off\""},
		{name: "the network is off by default, and asked for", front: "network: on",
			host: "[network]\ndefault = \"off\""},
		{name: "the network is off by default, and rules ask for it",
			host: "[network]\ndefault = \"off\"",
			req: plan.Request{NetworkRules: rules(document.NetworkRules{HasAllow: true,
				Allow: []string{"pypi.org"}})}},
		{name: "the host's rules beside the document's",
			front: "network: {allow: [pypi.org], deny: [evil.example]}",
			host: "[network]\nallow = [\"10.0.0.0/8\"]\ndeny = [\"10.9.9.9\"]\ndns = " +
				"\"10.0.0.53:53\"\n[documents]\nallow = [\"10.1.0.0/16\"]"},
		{name: "the host's rules are locked", front: "network: {deny: [evil.example]}",
			host: "[network]\nallow = [\"10.0.0.0/8\"]\nlocked = true"},
		{name: "rules beyond locked ones",
			host: "[network]\nallow = [\"10.0.0.0/8\"]\nlocked = true",
			req: plan.Request{NetworkRules: rules(document.NetworkRules{HasAllow: true,
				Allow: []string{"192.168.0.0/16"}})}},
		{name: "the caller's rules in the place of the document's",
			front: "network: {allow: [pypi.org], deny: [evil.example], record: true}",
			req: plan.Request{Network: on(),
				NetworkRules: rules(document.NetworkRules{HasAllow: true,
					Allow: []string{"example.com"}, Deny: []string{"other.example"},
					NoHostCA: true})}},
		{name: "record", req: plan.Request{
			NetworkRules: rules(document.NetworkRules{Record: true})}},
		{name: "replay without a recording",
			req: plan.Request{NetworkRules: rules(document.NetworkRules{Replay: true})}},
		{name: "intercepted", front: "network: {intercept: true}\nenv:\n  SSL_CERT_FILE: " +
			"/mine.pem"},
		{name: "certificates of its own", front: "env:\n  CURL_CA_BUNDLE: /mine.pem"},
		{name: "a secret header",
			req: plan.Request{SecretHeaders: []string{
				"api.example.com=Authorization: Bearer hdr-99-QUUX"},
				Secrets: []string{"TOKEN=tok-5f3a-XYZZY"}}},
		{name: "a secret header of a snapshot",
			req: plan.Request{SecretHeaders: []string{
				"api.example.com=Authorization: Bearer hdr-99-QUUX"},
				Snapshot: document.SnapshotVM}},
		{name: "a turn that is run again", front: "image: base\ntimeout: 1h\nlifetime: turn",
			req: plan.Request{Env: []string{"A=1"}, Substrate: "gvisor",
				Secrets: []string{"TOKEN=tok-5f3a-XYZZY"}},
			again: &Repeat{Inputs: []turnstone.RecordInput{{Dest: "/x"}}}},
		{name: "all at once", front: "image: python\ncpus: 2\nnetwork: {allow: [pypi.org], " +
			"record: true}\nfiles: [data.csv]\nsession: other\nenv:\n  A: doc",
			host: "memory = \"1GiB\"\n[network]\ndefault = \"off\"\ndeny = [\"10.9.9.9\"]",
			req: plan.Request{Session: "s", Dir: dir, Env: []string{"B=flag"},
				Secrets: []string{"TOKEN=tok-5f3a-XYZZY"}, Network: on(),
				Grant:         []string{"network"},
				SecretHeaders: []string{"api.example.com=X-Key: hdr-99-QUUX"},
				Commands:      true, Memory: 1 << 30}, parent: on2("python", "/srv/app", "A=1")},
	}
}

// TestPlansGolden checks all parts of a turn's plan when the turn starts: the plan combines the
// values of the caller, the document, the template, the parent and the host, in a fixed order. With
// -update it writes the plans anew.
func TestPlansGolden(t *testing.T) {
	const path = "testdata/plans.txt"
	ownAuthority(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "data.csv"), []byte("1,2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, c := range goldenCases(dir) {
		fmt.Fprintf(&b, "# %s\n", c.name)
		for _, line := range goldenPlan(t, c) {
			fmt.Fprintln(&b, "  "+strings.ReplaceAll(line, dir, "DIR"))
		}
		fmt.Fprintln(&b)
	}
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(b.String(), "\n")
	at := ""
	for i, line := range strings.Split(string(want), "\n") {
		if strings.HasPrefix(line, "#") {
			at = line
		}
		if i >= len(got) || got[i] != line {
			t.Fatalf("%s: line %d of %s\nwant %s\ngot  %s", at, i+1, path, line,
				append(got, "(nothing)")[min(i, len(got))])
		}
	}
	if len(got) > strings.Count(string(want), "\n")+1 {
		t.Errorf("there is more than in %s", path)
	}
}

// goldenPlan returns the plan of c, or its error.
func goldenPlan(t *testing.T, c goldenCase) []string {
	t.Helper()
	p := newPast(t)
	p.x.host.Launcher.Drivers = &sandboxtest.Driver{Dir: t.TempDir()} // of the tier seeded
	limits, rest := goldenLimits, ""
	if before, _, ok := strings.Cut(c.host, "["); ok {
		rest = strings.TrimPrefix(c.host, before)
		c.host = before
	}
	for line := range strings.Lines(c.host) {
		key, _, _ := strings.Cut(line, " ")
		kept := slices.DeleteFunc(slices.Collect(strings.Lines(limits)),
			func(l string) bool { return strings.HasPrefix(l, key+" ") })
		limits = strings.Join(kept, "") + strings.TrimSuffix(line, "\n") + "\n"
	}
	if err := os.WriteFile(p.x.host.Dir.Path(config.File), []byte(limits+rest), 0o600); err != nil {
		t.Fatal(err)
	}
	if c.parent != nil {
		p.state(p.Session("s"), *c.parent)
	}
	c.req.Document = parse(t, "---\n"+c.front+"\n---\n\n# A turn\n\n```bash\ntrue\n```\n")
	r, err := p.x.begin(t.Context(), c.req, c.again, nil, "", &observer{})
	if err != nil {
		return []string{"error " + strings.ReplaceAll(err.Error(), p.x.host.Dir.Root, "HOME"),
			"kind " + string(turnstone.KindOf(err)),
			"hint " + strings.ReplaceAll(turnstone.HintOf(err), p.x.host.Dir.Root, "HOME")}
	}
	defer r.close()
	defer r.at.Abandon(t.Context())
	var lines []string
	for _, line := range describePlan(t, r) {
		lines = append(lines, strings.ReplaceAll(line, string(r.info.ID), "TURN"))
	}
	return lines
}

// state commits a turn that leaves st.
func (p *past) state(s turnstone.Session, st turnstone.TurnState) {
	p.t.Helper()
	ctx := p.t.Context()
	turn := ok[turnstone.Turn](p.t)(p.cs.DB.Start(ctx, session.StartTurn{Session: s.ID,
		Branch: "main", Kind: turnstone.TurnKindRun, Title: "a turn"}))
	batch, err := p.cs.Store.Begin(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = batch.Close() }()
	st.Format, st.Tree = repo.StateFormat, treetest.Make(p.t, batch)
	put := func(v any) turnstone.Digest {
		b, err := json.Marshal(v)
		if err != nil {
			p.t.Fatal(err)
		}
		return ok[turnstone.Digest](p.t)(batch.Put(ctx, b))
	}
	state := put(st)
	rec := put(turnstone.TurnRecord{Format: repo.RecordFormat, ID: turn.ID, Session: turn.Session,
		Number: turn.Number, Branch: "main", Kind: turnstone.TurnKindRun, Image: st.Image,
		State: state, Document: turnstone.Content{}})
	if err := batch.Flush(ctx); err != nil {
		p.t.Fatal(err)
	}
	if _, _, err = p.cs.DB.Finish(ctx, session.Finish{Turn: turn.ID, Result: turnstone.ResultPassed,
		Record: rec, State: state, MoveBranch: true}); err != nil {
		p.t.Fatal(err)
	}
}

// describePlan describes the turn r before its start, with a line for each value that is not zero.
func describePlan(t *testing.T, r *run) []string {
	t.Helper()
	p, n, link := r.plan, &r.plan.Net, r.setup.Link
	if link == nil {
		link = &netplan.Link{}
	}
	outer := map[string]string{} // the variables of authorities that later turns get
	for _, name := range []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE",
		"NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO"} {
		for _, kv := range link.Inherited([]string{name + "=" + hostca.GuestPath}) {
			_, outer[name], _ = strings.Cut(kv, "=")
		}
	}
	files := func(all []sandbox.Transfer) (out []string) {
		for _, f := range all {
			s := f.Path + " to " + f.Dest
			if f.In != nil {
				s += " (in the document's folder)"
			}
			out = append(out, s)
		}
		return out
	}
	headers := func(spec any) string {
		b, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	wanted := fmt.Sprintf("%d %d %d", p.Wants.CPUs, p.Wants.Memory, p.Wants.Disk)
	determinism := ""
	if p.Determinism != nil {
		determinism = p.Determinism.String()
	}
	if p.Wants.Network != nil {
		wanted += fmt.Sprint(" ", *p.Wants.Network)
	}
	session := r.info.Session
	if strings.HasPrefix(session, "s_") {
		session = "(anonymous)"
	}
	var lines []string
	for _, l := range []struct {
		name  string
		value any
	}{
		{"image", p.Image}, {"asked", p.Asked}, {"anonymous", p.Anonymous},
		{"shape", fmt.Sprintf("%+v", p.Shape)}, {"wants", wanted},
		{"env", r.setup.Env}, {"given", p.Given}, {"cwd", p.Cwd}, {"timeout", p.Timeout},
		{"timed", p.Timed},
		{"add", files(p.Add)}, {"get", files(p.Get)}, {"driver", p.Driver}, {"live", p.Live},
		{"kept", p.Kept}, {"needs", fmt.Sprintf("%+v", p.Needs())},
		{"determinism", determinism}, {"isolation", string(p.Isolation)}, {"hostname", p.Hostname}, {"session", p.Session},
		{"branch", p.Branch}, {"lifetime", string(p.Lifetime)},
		{"home", p.Home}, {"snapshot", string(p.Snapshot)}, {"secrets", p.Secrets.Names()},
		{"its environment", p.Secrets.Env()}, {"turn", string(r.setup.Turn)},
		{"limits", fmt.Sprintf("%+v", p.Host.Limits)}, {"looks at the disk", p.Host.Room != nil},
		{"network: asked", headers(n.Asked)}, {"network: spec", headers(n.Spec)},
		{"network: policy", fmt.Sprintf("%+v", n.Policy)},
		{"network: says who", fmt.Sprint(len(n.Host))}, {"network: record", n.Mode.Record},
		{"network: replay", n.Mode.Replay}, {"network: replay of", n.Mode.ReplayOf},
		{"network: replay named", n.Mode.Named}, {"network: masks", n.Secrets.Names()},
		{"network: authority", link.CA != nil},
		{"network: host's authorities", fmt.Sprint(len(link.HostCA))},
		{"network: recorder", r.tape.Recording()}, {"network: budget", r.setup.Link != nil},
		{"network: outer", fmt.Sprint(outer)}, {"network: bundle", link.Bundle},
		{"receipt: image", r.info.Image}, {"receipt: session", session},
		{"receipt: number", fmt.Sprint(r.info.Number)}, {"receipt: branch", r.info.Branch},
		{"receipt: parents", fmt.Sprint(len(r.info.Parents))}, {"receipt: secrets", r.info.Secrets},
		{"receipt: home", r.info.Home},
		{"first step in", p.Cwd}, {"all commands", p.Commands},
	} {
		switch v := l.value.(type) {
		case []string:
			for _, s := range v {
				lines = append(lines, l.name+": "+s)
			}
			continue
		case bool:
			if !v {
				continue
			}
		case string:
			if v == "" || v == "0" || v == "map[]" {
				continue
			}
		}
		lines = append(lines, fmt.Sprintf("%s: %v", l.name, l.value))
	}
	return lines
}

// ownAuthority gives this process a certificate authority that is not public.
func ownAuthority(t *testing.T) {
	t.Helper()
	ca, err := proxy.NewCA()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "bundle.pem")
	if err := os.WriteFile(path, ca.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", path)
	t.Setenv("SSL_CERT_DIR", "")
}
