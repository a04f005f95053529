package template

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template/registry"
)

// fakeLayers builds layers without a sandbox: a layer's tree is the digest of its steps and its
// base's. It records each build in a file.
type fakeLayers struct {
	log  string
	fail func(req LayerRequest) error
	mu   sync.Mutex
	lost map[turnstone.Digest]bool
	reqs []LayerRequest
	salt string // of differences between builds
}

func (f *fakeLayers) Has(_ context.Context, l turnstone.TemplateLayer) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.lost[l.Tree.Root], nil
}

func (f *fakeLayers) Build(_ context.Context, req LayerRequest,
	commit func(turnstone.TemplateLayer) error) error {
	f.mu.Lock()
	f.reqs = append(f.reqs, req)
	f.mu.Unlock()
	out, err := os.OpenFile(f.log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, req.Name)
	_ = out.Close()
	time.Sleep(100 * time.Millisecond) //wait: it makes concurrent builds likelier; the tests hold without
	if f.fail != nil {
		if err := f.fail(req); err != nil {
			return err
		}
	}
	what := f.salt + string(req.Base.RootDigest)
	for _, l := range req.Base.Layers {
		what += string(l.Tree.Root)
	}
	for _, s := range req.Steps {
		what += s.Script
		if s.Done != nil {
			if err := s.Done([]byte("bash 5.2 ii \ncurl 8.0 ii \ngone 1.0 rc \n")); err != nil {
				return err
			}
		}
	}
	d := turnstone.DigestBytes([]byte(what))
	f.mu.Lock()
	delete(f.lost, d)
	f.mu.Unlock()
	return commit(turnstone.TemplateLayer{Tree: turnstone.TreeRef{Root: d, Hash: d}, Bytes: 100,
		Files: 3})
}

func layered(t *testing.T) (*Store, *fakeLayers) {
	t.Helper()
	s, _ := counting(t)
	f := &fakeLayers{log: filepath.Join(t.TempDir(), "builds"), lost: map[turnstone.Digest]bool{}}
	return s.WithLayers(f), f
}

func (f *fakeLayers) builds(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile(f.log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Fields(string(b))
}

// writeSpec writes a spec into a separate folder.
func writeSpec(t *testing.T, name, text string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, specFile), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func build(t *testing.T, s *Store, dir string, opts BuildOptions) *turnstone.Template {
	t.Helper()
	tmpl, err := s.Build(t.Context(), dir, opts)
	if err != nil {
		t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
	}
	return tmpl
}

// TestNoBuilderOfLayers checks that a store without a builder of layers reports a layered template
// before it builds anything below it, and that it still returns one that is built.
func TestNoBuilderOfLayers(t *testing.T) {
	without, builds := counting(t)
	dir := writeSpec(t, "one", "base = 'python'\ncommands = ['true']\n")
	_, err := without.Build(t.Context(), dir, BuildOptions{})
	if turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(err.Error(), "template one: it is built in a sandbox") ||
		turnstone.HintOf(err) != "build the template: turn template build one" {
		t.Errorf("%v (%s)", err, turnstone.HintOf(err))
	}
	if n := builds.Load(); n != 0 {
		t.Errorf("%d images were built", n)
	}
	with := without.WithLayers(&fakeLayers{log: filepath.Join(t.TempDir(), "builds")})
	one := build(t, with, dir, BuildOptions{})
	if got := ensure(t, without, "one"); got.Digest != one.Digest || builds.Load() != 1 {
		t.Errorf("%+v after %d builds, want %+v", got, builds.Load(), one)
	}
}

func TestLayersLieOnOneAnother(t *testing.T) {
	s, f := layered(t)
	one := build(t, s, writeSpec(t, "one",
		"base = 'python'\npip = ['six']\nenv = { A = '1', LANG = 'C' }\nworkdir = '/one'\n"+
			"user = 'app'\n[machine]\nmemory = '1GiB'\n"), BuildOptions{})
	two := build(t, s, writeSpec(t, "two",
		"base = 'one'\ncommands = ['true']\nenv = { A = '2' }\n[machine]\ncpus = 2\n"),
		BuildOptions{})
	python := ensure(t, s, "python")
	if len(one.Layers) != 1 || len(two.Layers) != 2 || one.Root != python.Root ||
		two.Layers[0] != one.Layers[0] || two.RootDigest != python.RootDigest {
		t.Fatalf("%+v\n%+v", one, two)
	}
	if two.Env["A"] != "2" || two.Env["LANG"] != "C" || two.Env["PYTHONUNBUFFERED"] != "1" ||
		two.Workdir != "/one" || two.User != "app" || two.Machine.CPUs != 2 ||
		two.Machine.Memory != 1<<30 {
		t.Errorf("what is inherited: %+v", two)
	}
	if spec, err := s.Spec("two"); err != nil || spec.Workdir != "/one" || spec.User != "app" {
		t.Errorf("%+v, %v", spec, err)
	}
	if two.Size != python.Size+200 || two.Packages["curl"] != "8.0" || two.Packages["gone"] != "" {
		t.Errorf("%+v", two)
	}
	if again := build(t, s,
		writeSpec(t, "one", "pip = ['six', 'six']\nbase = 'python'\n"+
			"env = { LANG = 'C', A = '1' }\nuser = 'app'\nworkdir = '/one'\n[machine]\n"+
			"memory = '1024MiB'\n"), BuildOptions{}); again.Digest != one.Digest {
		t.Error("the same spec, written in another way, has another digest")
	}
	if got := f.builds(t); len(got) != 2 {
		t.Errorf("built %v", got)
	}
	if on, err := s.Dependents(t.Context(), "python"); err != nil ||
		strings.Join(on, " ") != "one two" {
		t.Errorf("on python lie %v, %v", on, err)
	}
	// The base changes: the template above it is another template.
	build(t, s, writeSpec(t, "one", "base = 'python'\npip = ['six', 'attrs']\n"), BuildOptions{})
	if now := ensure(t, s, "two"); now.Digest == two.Digest {
		t.Error("a template does not follow its base")
	}
}

func TestPipOnDebianHasAnImageOfItsOwn(t *testing.T) {
	s, f := layered(t)
	a := build(t, s, writeSpec(t, "a",
		"base = 'debian:bookworm'\npackages = ['python3-pip']\npip = ['six']\n"), BuildOptions{})
	b := build(t, s, writeSpec(t, "b",
		"base = 'debian:bookworm'\npackages = ['python3-pip']\npip = ['attrs']\n"), BuildOptions{})
	if a.Root != b.Root || a.Digest == b.Digest || len(f.builds(t)) != 2 {
		t.Errorf("%+v\n%+v", a, b)
	}
	for _, r := range f.reqs {
		for _, step := range r.Steps {
			if strings.Contains(step.Script, "apt-get") {
				t.Error("packages of Debian are installed twice")
			}
		}
	}
}

func TestBasesThatCannotBe(t *testing.T) {
	s, _ := layered(t)
	build(t, s, writeSpec(t, "x", "base = 'python'\ncommands = ['true']"), BuildOptions{})
	build(t, s, writeSpec(t, "y", "base = 'x'\ncommands = ['true']"), BuildOptions{})
	for text, want := range map[string]string{
		"base = 'y'":      "the bases form a cycle: x on y on x",
		"base = 'pyhton'": `base "pyhton" is not known`,
		"base = 'x'":      "is the template itself",
	} {
		_, err := s.Build(t.Context(), writeSpec(t, "x", text+"\ncommands = ['true']"),
			BuildOptions{})
		if err == nil || !strings.Contains(err.Error(), want) || turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v (%s)", text, err, turnstone.HintOf(err))
		}
	}
	if _, err := s.Build(t.Context(), writeSpec(t, "z", "base = 'pyhton'"),
		BuildOptions{}); !strings.Contains(turnstone.HintOf(err), "did you mean python") {
		t.Errorf("hint %q", turnstone.HintOf(err))
	}
	if err := s.Remove(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	list, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if e := list[len(list)-1]; e.Name != "y" ||
		!strings.Contains(e.Problem, `base "x" is not known`) {
		t.Errorf("%+v", e)
	}
	if err := s.Remove(t.Context(), "y"); err != nil {
		t.Error(err)
	}
}

func TestLock(t *testing.T) {
	s, f := layered(t)
	dir := writeSpec(t, "mine", "base = 'python'\ncommands = ['true']\n")
	locked := build(t, s, dir, BuildOptions{Lock: true})
	if n := len(f.builds(t)); n != 1 {
		t.Errorf("%d builds", n)
	}
	b, err := os.ReadFile(filepath.Join(dir, lockFile))
	if err != nil {
		t.Fatal(err)
	}
	if lock, err := parseLock(b); err != nil || lock.Apt["curl"] != "8.0" ||
		lock.FSHash != locked.Layers[0].Tree.Hash {
		t.Errorf("%+v, %v", lock, err)
	}
	if again := build(t, s, dir, BuildOptions{}); again.Digest != locked.Digest ||
		len(f.builds(t)) != 1 {
		t.Error("what was locked is built again")
	}
	// A later build has the same result, or fails.
	if err := os.RemoveAll(s.imageDir(locked.Digest)); err != nil {
		t.Fatal(err)
	}
	if again := build(t, s, dir, BuildOptions{}); again.Digest != locked.Digest ||
		len(f.builds(t)) != 2 {
		t.Error("a locked build is not repeated")
	}
	if err := os.RemoveAll(s.imageDir(locked.Digest)); err != nil {
		t.Fatal(err)
	}
	f.salt = "another day"
	_, err = s.Build(t.Context(), dir, BuildOptions{})
	if turnstone.KindOf(err) != turnstone.KindIntegrity ||
		!strings.Contains(err.Error(), "FS hash") || exists(s.imageDir(locked.Digest)) {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, specFile),
		[]byte("base = 'python'\ncommands = ['false']\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err = s.Build(t.Context(), dir,
		BuildOptions{}); turnstone.KindOf(err) != turnstone.KindIntegrity ||
		!strings.Contains(err.Error(), "for another spec") {
		t.Errorf("%v", err)
	}
	if now := build(t, s, dir, BuildOptions{Lock: true}); now.Digest == locked.Digest {
		t.Error("another spec has the same digest")
	}
	if _, err := s.Build(t.Context(), "python",
		BuildOptions{Lock: true}); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Error(err)
	}
}

func TestLockOfAnImage(t *testing.T) {
	s, n := counting(t)
	dir := writeSpec(t, "mine", "base = 'debian:bookworm'\npackages = ['jq']\n")
	first := build(t, s, dir, BuildOptions{Lock: true})
	if err := os.RemoveAll(s.imageDir(first.Digest)); err != nil {
		t.Fatal(err)
	}
	if again := build(t, s, dir, BuildOptions{}); again.Digest != first.Digest || n.Load() != 2 {
		t.Errorf("%d builds", n.Load())
	}
}

func TestLocksThatAreNone(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	good := "version = 1\nspec = '" + digest + "'\nfs_hash = '" + digest + "'\n"
	if _, err := parseLock([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "version = 2", "x", good + "more = 1",
		good + "[apt]\n'-x' = '1'", good + "[apt]\ncurl = '1 -oX'", good + "[[pip]]\nname='x'",
		good + "[[npm]]\nname='x'\nversion='1'\nintegrity='md5-x'",
		strings.Replace(good, "aaa", "", 1), good + strings.Repeat("a.", 9000) + "b = 1"} {
		if _, err := parseLock([]byte(bad)); turnstone.KindOf(err) != turnstone.KindInvalid ||
			turnstone.HintOf(err) == "" {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzParseLock(f *testing.F) {
	lock := &Lock{Version: 1, Spec: turnstone.DigestBytes(nil), FSHash: turnstone.DigestBytes(nil),
		Apt: map[string]string{"curl": "8.0"},
		Pip: []registry.PipFile{{Name: "six", Version: "1.16.0", File: "six-1.16.0.tar.gz",
			SHA256: strings.Repeat("a", 64)}}}
	b, err := lock.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := parseLock(b)
		if err != nil {
			return
		}
		text, err := l.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseLock(text)
		if err != nil || again.digest() != l.digest() {
			t.Errorf("%v: %s", err, text)
		}
	})
}

// TestLayerThatFails checks that a failed build leaves nothing, and that its base stays.
func TestLayerThatFails(t *testing.T) {
	s, f := layered(t)
	dir := writeSpec(t, "mine", "base = 'python'\npip = ['six']\n")
	f.fail = func(req LayerRequest) error {
		return req.Steps[0].Failed(1, []byte("ERROR: No matching distribution found for six==99\n"))
	}
	_, err := s.Build(t.Context(), dir, BuildOptions{})
	if turnstone.KindOf(err) != turnstone.KindInvalid ||
		!strings.Contains(err.Error(), "No matching distribution found for six==99") ||
		!strings.Contains(turnstone.HintOf(err), "pypi.org") {
		t.Errorf("%v (%s)", err, turnstone.HintOf(err))
	}
	f.fail = func(req LayerRequest) error { return req.Steps[0].Failed(7, []byte("one\ntwo\n")) }
	_, err = s.Build(t.Context(), dir, BuildOptions{})
	if err == nil || !strings.Contains(err.Error(), "exit status 7") ||
		!strings.Contains(err.Error(), "one\ntwo") ||
		!strings.Contains(turnstone.HintOf(err), ".log") {
		t.Errorf("%v (%s)", err, turnstone.HintOf(err))
	}
	if left, _ := os.ReadDir(filepath.Join(s.dir, "tmp")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := s.Spec("mine"); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Error("a spec that was not built is registered")
	}
	for _, c := range []struct{ spec, printed, hint string }{
		{"pip = ['six']\nnetwork = 'off'", "ERROR: No matching distribution found for six\n",
			`network = "off"`},
		{"pip = ['six']\nnetwork = 'off'", "the base has no pip: begin with base = \"python\"\n",
			"docs/templates.md"},
		{"commands = ['x']\nnetwork = 'off'", "exit 3\n", `network = "off"`},
		{"commands = ['x']", "curl: (6) Could not resolve host: example.com\n",
			`network = ["example.com"]`},
		{"commands = ['x']", "wrong\n", ".log"},
	} {
		f.fail = func(req LayerRequest) error { return req.Steps[0].Failed(1, []byte(c.printed)) }
		_, err = s.Build(t.Context(), writeSpec(t, "mine", "base = 'python'\n"+c.spec+"\n"),
			BuildOptions{})
		if err == nil || !strings.Contains(turnstone.HintOf(err), c.hint) {
			t.Errorf("%q: %v (%s)", c.printed, err, turnstone.HintOf(err))
		}
	}
	f.fail = nil
	build(t, s, dir, BuildOptions{})
}

// TestLayerThatIsLost checks that a layer is built again after the context store was replaced or
// has lost it.
func TestLayerThatIsLost(t *testing.T) {
	s, f := layered(t)
	dir := writeSpec(t, "mine", "base = 'python'\ncommands = ['true']\n")
	tmpl := build(t, s, dir, BuildOptions{})
	f.lost[tmpl.Layers[0].Tree.Root] = true
	if again := ensure(t, s, "mine"); again.Layers[0].Tree != tmpl.Layers[0].Tree ||
		len(f.builds(t)) != 2 {
		t.Errorf("%v", f.builds(t))
	}
	if _, err := NewStore(s.dir).Ensure(t.Context(), "mine", nil); err != nil {
		t.Errorf("who builds nothing is told %v", err)
	}
	if err := os.RemoveAll(s.imageDir(tmpl.Digest)); err != nil {
		t.Fatal(err)
	}
	if _, err := NewStore(s.dir).Ensure(t.Context(), "mine",
		nil); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("without sandboxes: %v", err)
	}
}

// Two processes that build the same spec concurrently build it once.
func TestTwoProcessesBuildOnce(t *testing.T) {
	if dir := os.Getenv("TURN_TEST_BUILD"); dir != "" {
		s, _ := counting(t)
		s.dir = filepath.Join(dir, "templates")
		f := &fakeLayers{log: filepath.Join(dir, "builds")}
		build(t, s.WithLayers(f), filepath.Join(dir, "mine"), BuildOptions{})
		return
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "mine"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "mine", specFile),
		[]byte("base = 'python'\npip = ['six']\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			cmd := exec.Command(os.Args[0], "-test.run=^TestTwoProcessesBuildOnce$")
			cmd.Env = append(os.Environ(), "TURN_TEST_BUILD="+dir)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	b, err := os.ReadFile(filepath.Join(dir, "builds"))
	if err != nil || string(b) != "mine\n" {
		t.Errorf("built %q (%v)", b, err)
	}
}

func TestKept(t *testing.T) {
	s, _ := layered(t)
	dir := writeSpec(t, "mine", "base = 'python'\ncommands = ['true']\n")
	old := build(t, s, dir, BuildOptions{})
	if err := os.WriteFile(filepath.Join(dir, specFile),
		[]byte("base = 'python'\ncommands = ['false']\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	now := build(t, s, dir, BuildOptions{})
	kept, err := s.Kept()
	needed, nerr := s.Needed()
	if err != nil || nerr != nil || len(kept) != 3 || needed[old.Digest] || !needed[now.Digest] {
		t.Fatalf("%+v, %v, %v", kept, err, nerr)
	}
	python := ensure(t, s, "python")
	if all := Closure(kept, map[turnstone.Digest]bool{old.Digest: true}); len(all) != 2 ||
		!all[python.Digest] {
		t.Errorf("%v", all)
	}
	if err := s.Drop(t.Context(), old.Digest); err != nil || exists(s.imageDir(old.Digest)) {
		t.Error(err)
	}
	if layers, err := s.BuiltLayers(); err != nil || len(layers) != 1 || layers[0] != now.Layers[0] {
		t.Errorf("%+v", layers)
	}
}
