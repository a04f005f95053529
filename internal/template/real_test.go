package template

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/erofs/go-erofs"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template/builtin"
	"turnstone.dev/turnstone/internal/testhome"
	"turnstone.dev/turnstone/internal/testsize"
)

// realTemplate returns a built-in template from the shared home, and its image.
func realTemplate(t *testing.T, name string) (*turnstone.Template, fs.FS) {
	t.Helper()
	s := NewStore(filepath.Join(testhome.Dir(t), "templates"))
	tmpl, err := s.Ensure(context.Background(), name, func(what string) { t.Log(what) })
	if err != nil {
		t.Fatalf("%v\n%s", err, turnstone.HintOf(err))
	}
	f, err := os.Open(tmpl.Root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	img, err := erofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %s, %d packages, built in %s", name, turnstone.Bytes(tmpl.Size).Human(),
		len(tmpl.Packages), time.Duration(tmpl.BuildTime))
	return tmpl, img
}

func TestBuiltInImages(t *testing.T) {
	for name, programs := range map[string][]string{
		"base": {"usr/bin/bash", "usr/bin/dash", "usr/bin/apt-get", "usr/bin/curl", "usr/bin/jq",
			"usr/bin/ps", "usr/bin/ip", "usr/bin/xz", "usr/bin/unzip"},
		"python": {"usr/bin/bash", "usr/bin/curl", "usr/bin/python3", "usr/bin/python",
			"usr/bin/pip", "usr/lib/python3.11/venv/__init__.py", "usr/local/bin/uv",
			"usr/local/bin/uvx"},
	} {
		t.Run(name, func(t *testing.T) {
			tmpl, img := realTemplate(t, name)
			if tmpl.Size > 300<<20 {
				t.Errorf("the image has %s", turnstone.Bytes(tmpl.Size).Human())
			}
			for _, p := range programs {
				if fi, err := fs.Stat(img, p); err != nil || fi.Size() == 0 {
					t.Errorf("%s: %v", p, err)
				}
			}
			for _, p := range builtin.Provisions() { // the claims of hints about images are true
				for _, program := range p.Programs {
					_, err := fs.Stat(img, "usr/bin/"+program)
					for _, dir := range []string{"bin/", "usr/local/bin/"} {
						if _, other := fs.Stat(img, dir+program); other == nil {
							err = nil
						}
					}
					if (err == nil) != builtin.HasProgram(name, program) {
						t.Errorf("%s: %v, but HasProgram says %v", program, err,
							builtin.HasProgram(name, program))
					}
				}
			}
			for _, dir := range []string{"dev", "proc", "sys", "run", "tmp", "workspace"} {
				if entries, err := fs.ReadDir(img, dir); err != nil || len(entries) != 0 {
					t.Errorf("/%s holds %d entries (%v)", dir, len(entries), err)
				}
			}
			for path, want := range map[string]string{"etc/hostname": "turn\n",
				"etc/machine-id": "", "etc/resolv.conf": ""} {
				if b, err := fs.ReadFile(img, path); err != nil || string(b) != want {
					t.Errorf("%s: %q, %v", path, b, err)
				}
			}
			for _, path := range []string{"var/cache/ldconfig/aux-cache", "var/log/dpkg.log",
				"usr/share/man/man1"} {
				if _, err := fs.Stat(img, path); err == nil {
					t.Errorf("%s is in the image", path)
				}
			}
			if b, err := fs.ReadFile(img, "etc/apt/sources.list"); err != nil ||
				bytes.Count(b, []byte("\ndeb ")) < 2 {
				t.Errorf("sources.list: %s (%v)", b, err)
			}
			if tmpl.Packages["bash"] == "" || tmpl.Packages["base-files"] == "" {
				t.Errorf("packages: %v", tmpl.Packages)
			}
			sameInode(t, img, "usr/bin/perl", "usr/bin/perl5.36.0")
		})
	}
}

func sameInode(t *testing.T, img fs.FS, a, b string) {
	t.Helper()
	var inodes []int64
	for _, p := range []string{a, b} {
		fi, err := fs.Stat(img, p)
		if err != nil {
			t.Fatal(err)
		}
		inodes = append(inodes, fi.Sys().(*erofs.Stat).Ino)
	}
	if inodes[0] != inodes[1] {
		t.Errorf("%s and %s are no longer hard links", a, b)
	}
}

// TestRealBuildsAtOnceAndAgain checks that two concurrent builds are one, and that a later build,
// in another folder, results in the same bytes from the same packages.
//
//testrun:user
func TestRealBuildsAtOnceAndAgain(t *testing.T) {
	if !testsize.Full() && os.Geteuid() == 0 {
		t.Skip("an ordinary user builds the base again, and a full run")
	}
	tmpl, _ := realTemplate(t, "base")
	dir := filepath.Join(t.TempDir(), "templates")
	var builds atomic.Int32
	var digests [2]turnstone.Digest
	var packages map[string]string
	var wg sync.WaitGroup
	for i := range digests {
		wg.Go(func() {
			again, err := NewStore(dir).Ensure(context.Background(), "base", func(what string) {
				if strings.Contains(what, "building from") {
					builds.Add(1)
				}
			})
			if err != nil {
				t.Errorf("%v\n%s", err, turnstone.HintOf(err))
				return
			}
			digests[i] = again.RootDigest
			if i == 0 {
				packages = again.Packages
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	if builds.Load() != 1 || digests[0] != digests[1] {
		t.Errorf("%d builds, digests %v", builds.Load(), digests)
	}
	for name, version := range packages {
		if tmpl.Packages[name] != version {
			t.Skipf("the archive has moved on: %s is %s now, was %s", name, version,
				tmpl.Packages[name])
		}
	}
	if digests[0] != tmpl.RootDigest {
		t.Errorf("the same packages gave %s, before %s", digests[0], tmpl.RootDigest)
	}
}

// realFailure builds an invalid spec, and checks that nothing remains.
func realFailure(t *testing.T, ctx context.Context, spec string, from ...Sources) error {
	t.Helper()
	if testing.Short() {
		t.Skip("runs mmdebstrap")
	}
	temp := t.TempDir()
	if err := os.Chmod(temp, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(temp), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", temp)
	dir := filepath.Join(t.TempDir(), "broken")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, specFile), []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	s := NewStore(filepath.Join(t.TempDir(), "templates"))
	for _, sources := range from {
		s = s.From(sources)
	}
	_, err := s.Build(ctx, dir, BuildOptions{Progress: func(what string) { t.Log(what) }})
	if err == nil {
		t.Fatal("was built")
	}
	if left, _ := os.ReadDir(temp); len(left) > 0 {
		t.Errorf("left in TMPDIR: %v", left)
	}
	if left, _ := os.ReadDir(filepath.Join(s.dir, "tmp")); len(left) > 0 {
		t.Errorf("left in the store: %v", left)
	}
	if left, _ := os.ReadDir(filepath.Join(s.dir, "specs")); len(left) > 0 {
		t.Errorf("a spec that cannot be built is registered: %v", left)
	}
	return err
}

// TestRealUnknownPackage takes a build of the base up to its last step.
func TestRealUnknownPackage(t *testing.T) {
	if !testsize.Full() {
		t.Skip("a full run builds the base once more")
	}
	err := realFailure(t, context.Background(),
		"base = 'debian:bookworm'\npackages = ['no-such-package-anywhere']\n")
	if turnstone.KindOf(err) != turnstone.KindInvalid ||
		!strings.Contains(err.Error(), "no-such-package-anywhere") || turnstone.HintOf(err) == "" {
		t.Errorf("%v, kind %s, hint %q", err, turnstone.KindOf(err), turnstone.HintOf(err))
	}
}

func TestRealNoNetwork(t *testing.T) {
	t.Setenv("no_proxy", "127.0.0.1")
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	err := realFailure(t, ctx, "base = 'debian:bookworm'\n",
		Sources{Debian: "http://127.0.0.1:1/debian", DebianSecurity: "http://127.0.0.1:1/security"})
	if turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(turnstone.HintOf(err), "network") {
		t.Errorf("%v, kind %s, hint %q", err, turnstone.KindOf(err), turnstone.HintOf(err))
	}
}

//testrun:user
func TestRealInterruption(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	timer := time.AfterFunc(6*time.Second, cancel) //wait: any moment before the end is right
	defer timer.Stop()
	start := time.Now()
	err := realFailure(t, ctx, "base = 'debian:bookworm'\npackages = ['jq']\n")
	if turnstone.KindOf(err) != turnstone.KindCanceled || time.Since(start) > 5*time.Minute {
		t.Errorf("%v after %s", err, time.Since(start))
	}
}
