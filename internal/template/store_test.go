package template

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/fsimage/tar2erofs"
	"turnstone.dev/turnstone/internal/statedir"
)

// counting returns a store whose images are a single file each, and the number of builds.
func counting(t *testing.T) (*Store, *atomic.Int32) {
	t.Helper()
	var n atomic.Int32
	s := NewStore(filepath.Join(t.TempDir(), "templates"))
	s.build = func(_ context.Context, spec *Spec, out *os.File, tempDir string, log io.Writer,
		_ func(string)) (*built, error) {
		n.Add(1)
		fmt.Fprintln(log, "the builder's words")
		w := tar2erofs.New(out, tar2erofs.Options{TempDir: tempDir})
		text := strings.Join(spec.Packages, "\n")
		if err := w.Add(&tar.Header{Typeflag: tar.TypeReg, Name: "packages",
			Size: int64(len(text))}, strings.NewReader(text)); err != nil {
			return nil, err
		}
		return &built{packages: map[string]string{"bash": "5.2"}}, w.Close()
	}
	return s, &n
}

func ensure(t *testing.T, s *Store, name string) *turnstone.Template {
	t.Helper()
	tmpl, err := s.Ensure(context.Background(), name, func(what string) { t.Log(what) })
	if err != nil {
		t.Fatal(err)
	}
	return tmpl
}

func TestEnsureBuildsOnce(t *testing.T) {
	s, n := counting(t)
	first := ensure(t, s, "base")
	again := ensure(t, s, "base")
	if n.Load() != 1 || again.RootDigest != first.RootDigest || again.Root != first.Root {
		t.Errorf("%d builds; %+v then %+v", n.Load(), first, again)
	}
	b, err := os.ReadFile(first.Root)
	if err != nil || turnstone.DigestBytes(b) != first.RootDigest || int64(len(b)) != first.Size {
		t.Errorf("the image is not what the template says (%v)", err)
	}
	if first.Workdir != "/workspace" || first.EnvList()[1] != "LANG=C.UTF-8" ||
		first.Packages["bash"] != "5.2" || first.Built.IsZero() {
		t.Errorf("%+v", first)
	}
	if other := ensure(t, NewStore(s.dir), "base"); n.Load() != 1 || other.Digest != first.Digest {
		t.Error("another process's store builds again")
	}
	if err := s.Verify(context.Background(), "base"); err != nil {
		t.Error(err)
	}
}

func TestManyAtOnceBuildOnce(t *testing.T) {
	s, n := counting(t)
	quick := s.build
	var waited atomic.Int32
	s.build = func(ctx context.Context, spec *Spec, out *os.File, tempDir string, log io.Writer,
		p func(string)) (*built, error) {
		for waited.Load() < 5 { // until all others wait
			time.Sleep(time.Millisecond)
		}
		return quick(ctx, spec, out, tempDir, log, p)
	}
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			other := *s // each like a separate process: the lock belongs to a file
			_, err := other.Ensure(context.Background(), "base", func(what string) {
				if strings.Contains(what, "waiting for another process") {
					waited.Add(1)
				}
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n.Load() != 1 || waited.Load() != 5 {
		t.Errorf("%d builds, %d waited", n.Load(), waited.Load())
	}
}

func TestWaitingEndsWithItsContext(t *testing.T) {
	s, _ := counting(t)
	spec, err := s.Spec("base")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.makeDirs(); err != nil {
		t.Fatal(err)
	}
	lock, err := statedir.TryAcquire(s.lockPath(spec.Digest()))
	if err != nil || lock == nil {
		t.Fatal(err)
	}
	defer lock.Release()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond) //wait: it is meant to expire
	defer cancel()
	if _, err := s.Ensure(ctx, "base", nil); turnstone.KindOf(err) != turnstone.KindCanceled {
		t.Error(err)
	}
}

func TestDamagedImagesAreBuiltAgain(t *testing.T) {
	s, n := counting(t)
	tmpl := ensure(t, s, "base")
	good, err := os.ReadFile(tmpl.Root)
	if err != nil {
		t.Fatal(err)
	}
	manifest := filepath.Join(filepath.Dir(tmpl.Root), "manifest.json")
	rewrite := func(path string, content []byte) {
		t.Helper()
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for i, damage := range []func(){
		func() { rewrite(tmpl.Root, good[:len(good)/2]) },
		func() { bad := bytes.Clone(good); bad[len(bad)/2] ^= 1; rewrite(tmpl.Root, bad) },
		func() { _ = os.Remove(tmpl.Root) },
		func() { rewrite(manifest, []byte("{")) },
		func() { rewrite(manifest, []byte(`{"format":1,"digest":"sha256:00"}`)) },
		func() { _ = os.Remove(manifest) },
	} {
		damage()
		if mended := ensure(t, s, "base"); int(n.Load()) != i+2 ||
			mended.RootDigest != tmpl.RootDigest {
			t.Errorf("damage %d: %d builds, digest %s", i, n.Load(), mended.RootDigest)
		}
		if b, _ := os.ReadFile(tmpl.Root); !bytes.Equal(b, good) {
			t.Errorf("damage %d is not mended", i)
		}
	}

	// A bit that flips on the disk changes no time: only a read finds it.
	ctx := context.Background()
	if err := s.Verify(ctx, "base"); err != nil {
		t.Fatal(err)
	}
	rewrite(tmpl.Root, append(bytes.Clone(good[:len(good)-1]), good[len(good)-1]^1))
	if err := s.Verify(ctx, "base"); turnstone.KindOf(err) != turnstone.KindIntegrity {
		t.Errorf("Verify of a damaged image: %v", err)
	}

	// Touched or copied, but intact: no build.
	rewrite(tmpl.Root, good)
	builds := n.Load()
	if ensure(t, s, "base"); n.Load() != builds {
		t.Error("a touched image is built again")
	}
}

func TestFailedBuildsLeaveNothing(t *testing.T) {
	s, n := counting(t)
	good := s.build
	for _, tt := range []struct {
		err  error
		kind turnstone.Kind
		hint string
	}{
		{fmt.Errorf("write: %w", syscall.ENOSPC), turnstone.KindExhausted, "free some disk space"},
		{&turnstone.Error{Kind: turnstone.KindInvalid, Subject: "Debian bookworm",
			Err: errors.New("no such package"), Hint: "check the name"}, turnstone.KindInvalid,
			"check the name"},
		{errors.New("something else"), turnstone.KindUnavailable, ".log"},
		{context.Canceled, turnstone.KindCanceled, ""},
	} {
		s.build = func(_ context.Context, _ *Spec, out *os.File, _ string, log io.Writer,
			_ func(string)) (*built, error) {
			_, _ = out.WriteString("half an image")
			fmt.Fprintln(log, "what went wrong")
			return nil, tt.err
		}
		_, err := s.Ensure(context.Background(), "base", nil)
		if turnstone.KindOf(err) != tt.kind || !errors.Is(err, tt.err) ||
			!strings.Contains(turnstone.HintOf(err), tt.hint) ||
			!strings.Contains(err.Error(), "template base") {
			t.Errorf("%v: %v, kind %s, hint %q", tt.err, err, turnstone.KindOf(err),
				turnstone.HintOf(err))
		}
		var left []string
		_ = filepath.WalkDir(s.dir, func(p string, d os.DirEntry, _ error) error {
			if d != nil && !d.IsDir() && !strings.Contains(p, "/locks/") &&
				!strings.Contains(p, "/logs/") {
				left = append(left, p)
			}
			return nil
		})
		if len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
	d, err := s.Show(context.Background(), "base")
	if err != nil || d.Ready || d.Log == "" {
		t.Fatalf("%+v, %v", d, err)
	}
	if log, _ := os.ReadFile(d.Log); !bytes.Contains(log, []byte("what went wrong")) ||
		!bytes.Contains(log, []byte("failed after")) {
		t.Errorf("log %q", log)
	}
	s.build = good
	if ensure(t, s, "base"); n.Load() != 1 {
		t.Error("does not recover")
	}
}

func TestLeftoversAreSwept(t *testing.T) {
	s, _ := counting(t)
	python, err := s.Spec("python")
	if err != nil {
		t.Fatal(err)
	}
	base, err := s.Spec("base")
	if err != nil {
		t.Fatal(err)
	}
	other := turnstone.DigestBytes([]byte("a third"))
	if err := s.makeDirs(); err != nil {
		t.Fatal(err)
	}
	for _, d := range []turnstone.Digest{python.Digest(), base.Digest(), other} {
		if err := os.MkdirAll(filepath.Join(s.tmpDir(d), "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	lock, err := statedir.TryAcquire(s.lockPath(python.Digest())) // python is being built
	if err != nil || lock == nil {
		t.Fatal(err)
	}
	defer lock.Release()
	ensure(t, s, "base")
	if !exists(s.tmpDir(python.Digest())) {
		t.Error("a build that goes on was swept away")
	}
	if exists(s.tmpDir(base.Digest())) || exists(s.tmpDir(other)) {
		t.Error("what a crash left is still there")
	}
}

func TestUnknownImage(t *testing.T) {
	s, _ := counting(t)
	for name, hint := range map[string]string{
		"pyhton": "did you mean python? use one of base, claude-code, code-interpreter, " +
			"nodejs, python",
		"nothing-like-it":          "use one of base, claude-code, code-interpreter, nodejs, python",
		"../../etc":                "use one of base, claude-code, code-interpreter, nodejs, python",
		"":                         "use one of base, claude-code, code-interpreter, nodejs, python",
		strings.Repeat("x", 1<<16): "use one of base, claude-code, code-interpreter, nodejs, python",
	} {
		_, err := s.Ensure(context.Background(), name, nil)
		if turnstone.KindOf(err) != turnstone.KindNotFound ||
			!strings.Contains(turnstone.HintOf(err), hint) {
			t.Errorf("%.20q: %.80v, hint %q", name, err, turnstone.HintOf(err))
		}
	}
	if exists(s.dir) {
		t.Error("looking up a name makes folders")
	}
}

func TestRegisteredSpecs(t *testing.T) {
	s, n := counting(t)
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "tools")
	write := func(text string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, specFile), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("base = 'debian:bookworm'\npackages = ['git']\n[[files]]\npath = '/etc/x'\n" +
		"content = 'x'\n")
	first, err := s.Build(ctx, dir, BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := ensure(t, NewStore(s.dir), "tools"); got.Digest != first.Digest ||
		got.Name != "tools" {
		t.Errorf("%+v, want %+v", got, first)
	}
	if _, err := s.Build(ctx, dir+"/"+specFile, BuildOptions{}); err != nil || n.Load() != 1 {
		t.Errorf("%d builds of one spec (%v)", n.Load(), err)
	}
	list, err := s.List(ctx)
	if err != nil || len(list) != 6 {
		t.Fatalf("%+v, %v", list, err)
	}
	if e := list[5]; e.Name != "tools" || e.BuiltIn || !e.Ready || e.Size != first.Size ||
		list[0].Ready || !list[0].BuiltIn {
		t.Errorf("%+v", list)
	}

	// Replaced by another spec: the old image stays until it is removed.
	write("base = 'debian:bookworm'\npackages = ['git', 'make']\n")
	second, err := s.Build(ctx, dir, BuildOptions{})
	if err != nil || second.Digest == first.Digest {
		t.Fatalf("%+v, %v", second, err)
	}
	if d, err := s.Show(ctx, "tools"); err != nil || d.Template.Digest != second.Digest ||
		len(d.Spec.Packages) != 2 {
		t.Errorf("%+v, %v", d, err)
	}

	// Two names for one image: removing one keeps it for the other.
	twin := filepath.Join(filepath.Dir(dir), "twin")
	if err := os.Rename(dir, twin); err != nil {
		t.Fatal(err)
	}
	if tw, err := s.Build(ctx, twin, BuildOptions{}); err != nil || tw.Root != second.Root ||
		n.Load() != 2 {
		t.Errorf("%+v, %v", tw, err)
	}
	if err := s.Remove(ctx, "tools"); err != nil || !exists(second.Root) {
		t.Errorf("the twin lost its image (%v)", err)
	}
	if err := s.Remove(ctx, "twin"); err != nil || exists(second.Root) {
		t.Errorf("the image is still there (%v)", err)
	}
	for _, name := range []string{"tools", "twin", "base"} {
		if err := s.Remove(ctx, name); turnstone.KindOf(err) != turnstone.KindNotFound {
			t.Errorf("%s removed twice: %v", name, err)
		}
	}

	// A spec cannot have the name of a built-in template.
	base := filepath.Join(filepath.Dir(dir), "base")
	if err := os.Rename(twin, base); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Build(ctx, base,
		BuildOptions{}); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Error(err)
	}
	if tmpl, err := s.Build(ctx, "base", BuildOptions{}); err != nil || tmpl.Name != "base" {
		t.Errorf("%+v, %v", tmpl, err)
	}
	if err := s.Remove(ctx, "base"); err != nil {
		t.Error(err)
	}
}

func TestDamagedRegistration(t *testing.T) {
	s, _ := counting(t)
	if err := s.makeDirs(); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"{", `{"name":"other"}`} {
		if err := os.WriteFile(filepath.Join(s.dir, "specs", "mine.json"), []byte(content),
			0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Spec("mine"); turnstone.KindOf(err) != turnstone.KindIntegrity ||
			turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v", content, err)
		}
	}
}
