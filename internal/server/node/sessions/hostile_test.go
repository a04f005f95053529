package sessions

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/wire"
)

// TestTrustIsNoPath reads no file of the node that a client names.
func TestTrustIsNoPath(t *testing.T) {
	s := newScene(t)
	list := filepath.Join(s.dir, "a list")
	if err := os.WriteFile(list, []byte("node "+testKey+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := s.connect(s.service, s.mine)
	m := methods(t)["Session.verify"]
	for _, trust := range []string{"/etc/passwd", list, "node=" + list, "caller=/etc/passwd", "keys/node",
		"", " ", "#", "a\nnode " + testKey, "ssh-ed25519", strings.Repeat("x", 2000)} {
		_, err := call(t, c, "Session.verify", m, map[string]any{"ref": "research@2",
			"trust": []string{trust}})
		if turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%.40q: %v", trust, err)
		}
	}
	many := make([]string, maxTrust+1)
	for i := range many {
		many[i] = testKey
	}
	if _, err := call(t, c, "Session.verify", m, map[string]any{"ref": "research@2",
		"trust": many}); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Error(err)
	}
	for _, trust := range []string{testKey, "node=" + testKey, "node " + testKey} {
		if !isKeys(trust) {
			t.Errorf("%q is no key", trust)
		}
	}
}

// TestNoGrants holds the rule that a remote caller grants nothing, and chooses nothing that weakens
// the isolation.
func TestNoGrants(t *testing.T) {
	s := newScene(t)
	ctx := t.Context()
	x := s.remote(s.serve(player{s.x}), s.mine)
	no := false
	for name, err := range map[string]error{
		"grant":     second(x.Replay(ctx, "research@2", executor.ReplayOptions{Grant: []string{"network"}}, nil)),
		"substrate": second(x.Replay(ctx, "research@2", executor.ReplayOptions{Substrate: "x"}, nil)),
		"bisect": second(x.Bisect(ctx, executor.BisectRequest{Ref: "research@2",
			Options: executor.ReplayOptions{Grant: []string{"network"}}}, nil)),
		"range": second(x.ReplayRange(ctx, executor.RangeRequest{Ref: "research@2",
			Options: executor.ReplayOptions{Substrate: "x"}}, nil)),
		"frozen": second(x.Frozen(ctx, "r.md", nil, executor.Request{Network: &no}, nil)),
		"import": second(x.Import(ctx, executor.ImportRequest{Build: turnstone.BuildAll},
			strings.NewReader(""))),
		"import odd": second(x.Import(ctx, executor.ImportRequest{Build: "odd"}, strings.NewReader(""))),
	} {
		if turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, settings := range map[string]*wire.TurnSettings{"image": {Image: "x"}, "network": {Network: &no},
		"rules": {Rules: &wire.TurnNetworkRules{}}, "lifetime": {Lifetime: "session"}, "home": {Home: "h"},
		"snapshot": {Snapshot: "vm"}, "branch": {Branch: "b"}, "times": {Times: 2}} {
		if _, err := frozenRequest(settings); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("frozen: %s: %v", name, err)
		}
	}
}

// TestBounds rejects commands beyond the limits, and frees their places when the client leaves.
func TestBounds(t *testing.T) {
	s := newScene(t)
	service := New(Options{Executor: player{s.x}, Owners: s.store, Dir: s.dir, Commands: 3, Heavy: 2})
	replay := func(x interface {
		Replay(context.Context, string, executor.ReplayOptions, executor.Observer) (
			*turnstone.ReplayReport, error)
	}, started func()) error {
		_, err := x.Replay(t.Context(), "research@2", executor.ReplayOptions{Tier: "seeded"},
			&ender{end: started})
		return err
	}
	a, b := s.remote(service, s.mine), s.remote(service, s.writer)
	first, second := make(chan error, 1), make(chan error, 1)
	began := make(chan struct{}, 8)
	tell := func() { began <- struct{}{} }
	go func() { first <- replay(a, tell) }()
	go func() { second <- replay(b, tell) }()
	for range 4 { // two steps each
		<-began
	}
	if err := replay(s.remote(service, s.reader), tell); turnstone.KindOf(err) != turnstone.KindExhausted ||
		turnstone.HintOf(err) == "" {
		t.Fatal(err)
	}
	// light commands are not affected
	if _, err := a.Show(t.Context(), "research@2"); err != nil {
		t.Error(err)
	}
	_ = a.Close() // in the middle of its replay
	if err := <-first; turnstone.KindOf(err) != turnstone.KindDead {
		t.Error(err)
	}
	for len(service.heavy) > 1 { // until the node has noticed
		time.Sleep(time.Millisecond)
	}
	go func() { first <- replay(s.remote(service, s.reader), tell) }()
	<-began
	_ = b.Close()
	<-second
	v := &served{Service: service, running: make(chan struct{}, 1)}
	v.running <- struct{}{}
	if err := v.do(t.Context(), owners.Read, light, nil); turnstone.KindOf(err) != turnstone.KindExhausted {
		t.Error(err)
	}
	refs := make([]string, maxCompared+1)
	if _, err := s.remote(service, s.mine).Compare(t.Context(), refs); turnstone.KindOf(err) !=
		turnstone.KindInvalid {
		t.Error(err)
	}
}

// spec is a tar stream of one entry after another.
func spec(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		text := e.Linkname
		if e.Typeflag == tar.TypeReg {
			e.Size, e.Linkname = int64(len(text)), ""
		}
		e.Mode = 0o644
		if err := w.WriteHeader(&e); err != nil {
			t.Fatal(err)
		}
		if e.Typeflag == tar.TypeReg {
			_, _ = io.WriteString(w, text)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestHostileSpecs builds no template from a file of the node, and none under another's name.
func TestHostileSpecs(t *testing.T) {
	s := newScene(t)
	r := repotest.Open(&statedir.Dir{Root: s.dir})
	repotest.On(t, r).Template("ours", map[string]string{"/f": "x"})
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	service := s.serve(player{s.x})
	outside := filepath.Join(t.TempDir(), "template.toml")
	good := "base = \"base\"\n"
	if err := os.WriteFile(outside, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	file := func(name, text string) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: name, Linkname: text}
	}
	link := func(name, to string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	build := methods(t)["Template.build"]
	try := func(c owners.Caller, name string, stream []byte) error {
		params := map[string]any{"name": name}
		if stream != nil {
			params["spec"] = stream
		}
		_, err := call(t, s.connect(service, c), "Template.build", build, params)
		return err
	}
	for what, err := range map[string]error{
		"a path of the node":   try(s.mine, outside, nil),
		"the current folder":   try(s.mine, ".", nil),
		"an absolute name":     try(s.mine, outside, spec(t, file("a/template.toml", good))),
		"a name outside":       try(s.mine, "../"+filepath.Base(outside), spec(t, file("a/template.toml", good))),
		"a link":               try(s.mine, "a/template.toml", spec(t, link("a/template.toml", outside))),
		"a link to the folder": try(s.mine, "a/template.toml", spec(t, link("a", filepath.Dir(outside)))),
		"another name":         try(s.mine, "b/template.toml", spec(t, file("a/template.toml", good))),
		"a source outside": try(s.mine, "a/template.toml", spec(t, file("a/template.toml", good+
			"[[files]]\npath = \"/x\"\nsource = \""+outside+"\"\n"))),
		"no tar stream":           try(s.mine, "a/template.toml", []byte("none")),
		"the operator's template": try(s.mine, "ours/template.toml", spec(t, file("ours/template.toml", good))),
	} {
		if err == nil {
			t.Errorf("%s was built", what)
		}
		if k := turnstone.KindOf(err); k == turnstone.KindInternal {
			t.Errorf("%s: %s: %v", what, k, err)
		}
	}
	mine := spec(t, file("mine/template.toml", good))
	if err := try(s.mine, "mine/template.toml", mine); err != nil {
		t.Fatal(err)
	}
	if err := try(s.mine, "mine/template.toml", mine); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := try(s.other, "mine/template.toml", mine); turnstone.KindOf(err) != turnstone.KindInvalid ||
		!strings.Contains(err.Error(), "another owner") {
		t.Errorf("another's name: %v", err)
	}
	if err := try(s.operator, "mine/template.toml", mine); err != nil {
		t.Errorf("the operator: %v", err)
	}
	if _, err := s.remote(service, s.other).RemoveTemplate(t.Context(),
		executor.TemplateRemoval{Name: "mine"}); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Error(err)
	}
	left, err := os.ReadDir(service.o.Dir)
	if err != nil || len(left) != 0 {
		t.Errorf("%v stay: %v", left, err)
	}
}

// TestHostileStreams sends too much, or nothing, in streams, and leaves nothing behind.
func TestHostileStreams(t *testing.T) {
	s := newScene(t)
	service := s.serve(player{s.x})
	frozen := methods(t)["Session.frozen"]
	c := s.connect(service, s.mine)
	if _, err := call(t, c, "Session.frozen", frozen, map[string]any{"name": "r.md",
		"receipt": make([]byte, document.MaxFile+1)}); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Error(err)
	}
	receipt, err := s.x.Receipt(t.Context(), "research@1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := call(t, c, "Session.frozen", frozen, map[string]any{"name": "r.md",
		"receipt": receipt, "files": []byte("no tar")}); err == nil {
		t.Error("files that are no tar stream were taken")
	}
	if _, err := call(t, c, "Session.frozen", frozen, map[string]any{"name": "r.md",
		"receipt": receipt, "files": spec(t), "settings": map[string]any{
			"add": []any{map[string]any{"name": "../../x/y", "dest": "x"}}}}); turnstone.KindOf(err) !=
		turnstone.KindInvalid {
		t.Error(err)
	}
	// a client that takes nothing of a report, and leaves
	id := c.NewStream()
	if _, err := c.Receiver(id); err != nil {
		t.Fatal(err)
	}
	if err := c.SessionLog(t.Context(), &wire.SessionLogParams{Ref: "research", Report: id}); err != nil {
		t.Error(err)
	}
	_ = c.Close()
	if left, err := os.ReadDir(service.o.Dir); err != nil || len(left) != 0 {
		t.Errorf("%v stay: %v", left, err)
	}
}

// TestBorrowedObjects imports files that name objects of another client's session and do not have
// them: who knows a digest does not get its content.
func TestBorrowedObjects(t *testing.T) {
	s := newScene(t)
	var file bytes.Buffer
	if _, err := s.x.Export(t.Context(), executor.ExportRequest{Session: "private", Full: true},
		&file); err != nil {
		t.Fatal(err)
	}
	whole := repotest.Unpack(t, file.Bytes())
	x := s.remote(s.service, s.mine)
	imported := func(b []byte) error {
		_, err := x.Import(t.Context(), executor.ImportRequest{As: "mine"}, bytes.NewReader(b))
		return err
	}
	// the session itself is there, and another's
	if err := imported(file.Bytes()); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Fatal(err)
	}
	if _, err := s.x.RemoveSession(t.Context(), "private"); err != nil {
		t.Fatal(err)
	}
	dropped := 0
	for i, e := range whole {
		if !strings.HasPrefix(e.Name, "objects/") {
			continue
		}
		dropped++
		without := append(append([]repotest.Entry{}, whole[:i]...), whole[i+1:]...)
		if err := imported(repotest.Pack(t, without)); err == nil {
			t.Fatalf("without %s: it was imported", e.Name)
		}
	}
	if dropped < 5 {
		t.Fatalf("%d objects", dropped)
	}
	if err := imported(file.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := s.store.May("s_", s.mine, owners.Own); err == nil {
		t.Error("no session has this ID")
	}
	f, err := x.OpenFile(t.Context(), "mine", "/workspace/secret")
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
}
