package plan

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/secret"
	"turnstone.dev/turnstone/internal/template"
)

func parse(t testing.TB, src string) *document.Document {
	t.Helper()
	d, err := document.Parse("test.md", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestPlanPrecedence(t *testing.T) {
	off := false
	doc := parse(t, "---\nimage: python\ncpus: 2\nmemory: 512MiB\ntimeout: 5m\nnetwork: on\n"+
		"cwd: sub\nenv:\n  A: doc\n---\n")
	p, err := ofTurn(Request{Document: doc, Image: "base", Memory: 1 << 30, Network: &off,
		Env: []string{"A=flag"}}, "/workspace", false)
	if err != nil {
		t.Fatal(err)
	}
	want := turnstone.Shape{CPUs: 2, Memory: 1 << 30, Disk: turnstone.DefaultShape().Disk,
		Network: false}
	if p.Image != "base" || p.Shape != want || p.Timeout != 5*time.Minute ||
		p.Cwd != "/workspace/sub" {
		t.Errorf("%+v", p)
	}
	if got := strings.Join(p.Env, " "); got != "A=doc A=flag" { // the later value wins
		t.Errorf("env %q", got)
	}
}

func TestPlanDefaults(t *testing.T) {
	p, err := ofTurn(Request{Document: parse(t, "")}, "/srv", false)
	if err != nil {
		t.Fatal(err)
	}
	if p.Image != DefaultImage || p.Shape != turnstone.DefaultShape() ||
		p.Timeout != defaultTimeout || p.Cwd != "/srv" || p.Driver != "auto" {
		t.Errorf("%+v", p)
	}
}

func TestPlanRefusals(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "secret")
	for _, err := range []error{
		os.WriteFile(outside, []byte("x"), 0o600), os.Symlink(outside, filepath.Join(dir, "link")),
		os.WriteFile(filepath.Join(dir, "ok"), nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	empty := parse(t, "")
	for name, c := range map[string]struct {
		req  Request
		says string
	}{
		"little memory":     {Request{Document: empty, Memory: 1 << 20}, "memory"},
		"much memory":       {Request{Document: empty, Memory: 1 << 50}, "memory"},
		"little disk":       {Request{Document: empty, Disk: 1}, "disk"},
		"too many cpus":     {Request{Document: empty, CPUs: 10_000}, "cpus"},
		"negative cpus":     {Request{Document: empty, CPUs: -1}, "cpus"},
		"negative timeout":  {Request{Document: empty, Timeout: -1}, "timeout"},
		"unknown substrate": {Request{Document: empty, Substrate: "docker"}, "docker"},
		"microvm of gvisor": {Request{Document: parse(t, "---\nisolation: microvm\n---\n"),
			Substrate: "gvisor"}, "is not a microVM"},
		"home of one that stays": {Request{Document: empty, Session: "s", Home: "h",
			Lifetime: turnstone.LifetimeSession}, "keep the home from all others"},
		"home with a secret": {Request{Document: empty, Home: "h",
			Secrets: []string{"T=tok-5f3a-XYZZY"}}, "would keep the secrets"},
		"env without =":       {Request{Document: empty, Env: []string{"A"}}, "NAME=VALUE"},
		"env with a bad name": {Request{Document: empty, Env: []string{"1A=x"}}, "NAME=VALUE"},
		"env with NUL":        {Request{Document: empty, Env: []string{"A=\x00"}}, "NAME=VALUE"},
		"added file missing": {Request{Document: empty,
			Add: []document.Transfer{{Path: filepath.Join(dir, "none")}}}, "none"},
		"get of nothing": {Request{Document: empty, Get: []document.Transfer{{}}}, "no path"},
		"files above": {Request{Document: parse(t, "---\nfiles: [../secret]\n---\n"),
			Dir: dir}, "leaves the document's folder"},
		"files absolute": {Request{Document: parse(t, "---\nfiles: [/etc/passwd]\n---\n"),
			Dir: dir}, "leaves the document's folder"},
		"files through link": {Request{Document: parse(t, "---\nfiles: [link]\n---\n"), Dir: dir},
			"escapes"},
		"files missing": {Request{Document: parse(t, "---\nfiles: [none]\n---\n"), Dir: dir},
			"none"},
		"files from a pipe": {Request{Document: parse(t, "---\nfiles: [ok]\n---\n")},
			"no folder"},
	} {
		_, err := ofTurn(c.req, "/workspace", false)
		if err == nil || turnstone.KindOf(err) != turnstone.KindInvalid ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want kind invalid and %q", name, err, c.says)
		}
	}
}

func TestParseTransfer(t *testing.T) {
	for text, want := range map[string]document.Transfer{
		"a": {Path: "a"}, "a:b": {Path: "a", Dest: "b"}, "a:/b/": {Path: "a", Dest: "/b/"},
		"12:30.csv:": {Path: "12:30.csv"}, "12:30.csv:x": {Path: "12:30.csv", Dest: "x"},
	} {
		if got, err := document.ParseTransfer(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", ":x", ":"} {
		if got, err := document.ParseTransfer(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func TestPlanTransfers(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "data.csv"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	doc := parse(t, "---\nfiles:\n- data.csv\n- data.csv:other.csv\n- data.csv:/etc/x\n"+
		"- data.csv:in/\n---\n")
	file := filepath.Join(dir, "data.csv")
	p, err := ofTurn(Request{Document: doc, Dir: dir,
		Add: []document.Transfer{{Path: file, Dest: "/a/b/"}},
		Get: []document.Transfer{{Path: "out"}, {Path: "/etc/passwd", Dest: "pw"}}},
		"/workspace", false)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	in := p.folder
	wantAdd := []sandbox.Transfer{{Path: file, Dest: "/workspace/data.csv", In: in},
		{Path: file, Dest: "/workspace/other.csv", In: in}, {Path: file, Dest: "/etc/x", In: in},
		{Path: file, Dest: "/workspace/in/", In: in}, {Path: file, Dest: "/a/b/"}}
	wantGet := []sandbox.Transfer{{Path: "/workspace/out", Dest: "."},
		{Path: "/etc/passwd", Dest: "pw"}}
	for i, want := range wantAdd {
		if i >= len(p.Add) || p.Add[i] != want {
			t.Errorf("add %d: %+v, want %+v", i, p.Add, want)
		}
	}
	for i, want := range wantGet {
		if i >= len(p.Get) || p.Get[i] != want {
			t.Errorf("get %d: %+v, want %+v", i, p.Get, want)
		}
	}
}

// A file of a document is looked up again when it is read: a link that replaced the file in the
// meantime is not followed out of the folder.
func TestFilesSwappedForALink(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	for _, f := range []string{filepath.Join(dir, "data"), filepath.Join(outside, "secret")} {
		if err := os.WriteFile(f, []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p, err := ofTurn(Request{Document: parse(t, "---\nfiles: [data]\n---\n"), Dir: dir},
		"/workspace", false)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var b bytes.Buffer
	if err := p.Add[0].Pack(t.Context(), &b); err != nil ||
		!bytes.Contains(b.Bytes(), []byte("secret")) {
		t.Fatalf("the file itself: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "data")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "data")); err != nil {
		t.Fatal(err)
	}
	b.Reset()
	if err := p.Add[0].Pack(t.Context(), &b); err == nil ||
		bytes.Contains(b.Bytes(), []byte("secret")) {
		t.Errorf("%v, %q", err, b.Bytes())
	}
}

// TestFilesOfAFolderThatWasSwapped checks that the document's folder is opened once: a folder that
// replaces it is not read.
func TestFilesOfAFolderThatWasSwapped(t *testing.T) {
	dir, outside := filepath.Join(t.TempDir(), "docs"), t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(outside, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"data", "d/data"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("checked"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(outside, name), []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p, err := ofTurn(Request{Document: parse(t, "---\nfiles: [data, d]\n---\n"), Dir: dir},
		"/workspace", false)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := os.Rename(dir, dir+".was"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, dir); err != nil {
		t.Fatal(err)
	}
	for _, f := range p.Add {
		var b bytes.Buffer
		if err := f.Pack(t.Context(), &b); err != nil ||
			!bytes.Contains(b.Bytes(), []byte("checked")) ||
			bytes.Contains(b.Bytes(), []byte("secret")) {
			t.Errorf("%s: %v, %q", f.Path, err, b.Bytes())
		}
	}
}

// TestOpenSecret checks that a secret's value in the open parts of a request is rejected, because
// it would be stored with the turn.
func TestOpenSecret(t *testing.T) {
	doc := func(text string) *document.Document { return parse(t, text+"\n\n```bash\ntrue\n```\n") }
	for what, req := range map[string]Request{
		"session":  {Document: doc("# T"), Session: "tok-5f3a"},
		"branch":   {Document: doc("# T"), Session: "s", Branch: "tok-5f3a"},
		"image":    {Document: doc("# T"), Image: "tok-5f3a:1"},
		"document": {Document: doc("# T\n\ntok-5f3a")},
		"env":      {Document: doc("# T"), Env: []string{"A=tok-5f3a"}},
	} {
		req.Secrets = []string{"A_SECRET=tok-5f3a"}
		_, err := ofTurn(req, "/workspace", false)
		if turnstone.KindOf(err) != turnstone.KindInvalid ||
			!strings.Contains(err.Error(), "holds the value of a secret (A_SECRET)") ||
			strings.Contains(err.Error(), "tok-5f3a") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestInheritKeepsThePlan checks that a turn inherits its parent's values in a copy of its plan.
func TestInheritKeepsThePlan(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "data"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	req := Request{Document: parse(t, "---\nfiles: [data]\n---\n"), Dir: dir, Session: "s",
		Env: []string{"A=1"}}
	made, err := Make(&Authority{Request: req}, "base", "/workspace")
	if err != nil {
		t.Fatal(err)
	}
	defer made.Close()
	was := fmt.Sprintf("%+v", *made)
	settled, err := made.On(&Below{Image: "browser", Cwd: "/srv/app"},
		template.NewStore(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	settled.Env = append(settled.Env, "B=2")
	settled.Env[0] = "A=2"
	if now := fmt.Sprintf("%+v", *made); now != was {
		t.Errorf("the plan was %s, and is %s", was, now)
	}
	if settled.Image != "browser" || settled.Cwd != "/srv/app" ||
		settled.Add[0].Dest != "/srv/app/data" {
		t.Errorf("%+v", settled)
	}
}

// TestNoSecretIsGiven checks that a stored turn contains no value of a secret, even if its caller
// writes the value openly.
func TestNoSecretIsGiven(t *testing.T) {
	const value = "tok-5f3a-XYZZY"
	secrets := []string{"TOKEN=" + value, "QUOTED=p&ss'$XYZZYrd"}
	for name, req := range map[string]Request{
		"document": {Document: parse(t, "# Fetch\n\n```bash\ncurl -H 'X: "+value+
			"' example.org\n```\n")},
		"title":  {Document: parse(t, "# "+value+"\n")},
		"front":  {Document: parse(t, "---\nenv:\n  COPY: "+value+"\n---\n")},
		"env":    {Document: parse(t, "# A\n"), Env: []string{"COPY=Bearer " + value}},
		"quoted": {Document: parse(t, "# A\n\n```bash\nX=\"p&ss'\\$XYZZYrd\"\n```\n")},
		"get":    {Document: parse(t, "# A\n"), Get: []document.Transfer{{Path: "/" + value}}},
	} {
		req.Secrets = secrets
		_, err := ofTurn(req, "/workspace", false)
		if turnstone.KindOf(err) != turnstone.KindInvalid || !errors.Is(err, secret.ErrFound) ||
			strings.Contains(err.Error()+turnstone.HintOf(err), value) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The results of an earlier run do not run again.
	if _, err := ofTurn(Request{Document: parse(t, "# A\n"), Env: []string{"COPY=other"},
		Secrets: secrets}, "/workspace", false); err != nil {
		t.Error(err)
	}
}

// TestSandboxShape checks that zero sizes of a sandbox's shape are those of its template, or else
// the defaults.
func TestSandboxShape(t *testing.T) {
	def := turnstone.DefaultShape()
	machine := turnstone.Machine{Memory: 2 << 30}
	for _, c := range []struct{ shape, want turnstone.Shape }{
		{turnstone.Shape{},
			turnstone.Shape{CPUs: def.CPUs, Memory: 2 << 30, Disk: def.Disk, Network: def.Network}},
		{turnstone.Shape{CPUs: 2}, turnstone.Shape{CPUs: 2, Memory: 2 << 30, Disk: def.Disk}},
		{turnstone.Shape{Memory: 1 << 30, Network: true},
			turnstone.Shape{CPUs: def.CPUs, Memory: 1 << 30, Disk: def.Disk, Network: true}},
	} {
		p, err := ForSandbox(Sandbox{Shape: c.shape, Machine: machine}, Host{})
		if err != nil || p.Shape != c.want {
			t.Errorf("%+v: %+v, %v, want %+v", c.shape, p, err, c.want)
		}
	}
}
