package template

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/template/oci/ocitest"
)

// bashLayer is a layer with a replacement for a bash.
func bashLayer(t testing.TB, more ...ocitest.Entry) []byte {
	return ocitest.Tar(t,
		append(more, ocitest.Program("bin/bash", "#!"), ocitest.Program("bin/sh", "#!"))...)
}

// noCredentials hides the user's Docker config from a test.
func noCredentials(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	t.Setenv("REGISTRY_AUTH_FILE", filepath.Join(t.TempDir(), "none"))
}

// TestImages checks that an image is pulled once, named by its digest, and used without its
// registry.
func TestImages(t *testing.T) {
	noCredentials(t)
	ctx := t.Context()
	h := ocitest.Handler()
	srv := httptest.NewServer(h)
	reg := &ocitest.Registry{Host: strings.TrimPrefix(srv.URL, "http://"), URL: srv.URL}
	config := ocitest.Config{Env: []string{"A=1", "A=2", "bad-name=x", "PATH=/bin"},
		Workdir: "/app/", User: "7:8", Entrypoint: []string{"/entry", "a b"}, Cmd: []string{"serve"}}
	digest := reg.Push(t, "x:1", ocitest.Image(t, config, bashLayer(t, ocitest.File("one", "1"))))

	s := NewStore(t.TempDir())
	name := reg.Host + "/x:1"
	if _, err := s.Spec(name); turnstone.KindOf(err) != turnstone.KindNotFound ||
		!strings.Contains(turnstone.HintOf(err), "turn template pull "+name) {
		t.Errorf("before it was pulled: %v; %s", err, turnstone.HintOf(err))
	}
	spec, err := s.Resolve(ctx, name, nil)
	if err != nil {
		t.Fatal(err)
	}
	pinned := name + "@" + string(digest)
	if spec.Name != pinned || spec.User != "7:8" || spec.Workdir != "/app" || len(spec.Env) != 2 ||
		spec.Env["A"] != "2" {
		t.Errorf("%+v", spec)
	}
	tmpl, err := s.Ensure(ctx, spec.Name, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c := tmpl.Command; !slices.Equal(c.Entrypoint, config.Entrypoint) || !slices.Equal(c.Cmd, config.Cmd) ||
		c.Workdir != "/app" {
		t.Errorf("its command is %+v", c)
	}
	if tmpl.User != "7:8" || tmpl.Workdir != "/app" ||
		!slices.Equal(tmpl.EnvList(), []string{"A=2", "PATH=/bin"}) {
		t.Errorf("%+v", tmpl)
	}
	ref, err := s.Tree(ctx, tmpl, tree.NewHasher())
	if err != nil || ref.Hash == "" {
		t.Errorf("its tree: %v, %v", ref, err)
	}

	srv.Close() // from here on without the registry
	s = NewStore(s.dir)
	for _, by := range []string{name, pinned} {
		again, err := s.Ensure(ctx, by, nil)
		if err != nil || again.Digest != tmpl.Digest || again.RootDigest != tmpl.RootDigest ||
			again.Name != pinned {
			t.Errorf("%s: %+v, %v", by, again, err)
		}
	}
	names, err := s.Names()
	if err != nil || !slices.Contains(names, name) || slices.Contains(names, pinned) {
		t.Errorf("names %v, %v", names, err)
	}
	if d, err := s.Show(ctx, name); err != nil || !d.Ready || d.BuiltIn {
		t.Errorf("%+v, %v", d, err)
	}
	if err := s.Verify(ctx, name); err != nil {
		t.Error(err)
	}
	if _, err := s.Pull(ctx, name, nil); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("pulled without a registry: %v", err)
	}
	if err := s.Remove(ctx, name); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Spec(pinned); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Errorf("after it was removed: %v", err)
	}
	if exists(tmpl.Root) {
		t.Error("the image is still there")
	}
}

// TestTagMoves checks that a template on an image keeps that image, and that a new lookup of a tag
// returns its new image.
func TestTagMoves(t *testing.T) {
	noCredentials(t)
	ctx := t.Context()
	reg := ocitest.Serve(t, nil)
	reg.Push(t, "x:1", ocitest.Image(t, ocitest.Config{}, bashLayer(t, ocitest.File("one", "1"))))
	s := NewStore(t.TempDir())
	name := reg.Host + "/x:1"
	before, err := s.Ensure(ctx, name, nil)
	if err != nil {
		t.Fatal(err)
	}
	reg.Push(t, "x:1", ocitest.Image(t, ocitest.Config{}, bashLayer(t, ocitest.File("two", "2"))))
	if same, err := s.Ensure(ctx, name, nil); err != nil || same.Digest != before.Digest {
		t.Errorf("a tag was looked up again at once: %v", err)
	}
	spec, err := s.Pull(ctx, name, nil)
	if err != nil || spec.Name == before.Name {
		t.Fatalf("%+v, %v", spec, err)
	}
	after, err := s.Ensure(ctx, name, nil)
	if err != nil || after.Digest == before.Digest || after.Name != spec.Name {
		t.Fatalf("%+v, %v", after, err)
	}
	if old, err := s.Ensure(ctx, before.Name, nil); err != nil ||
		old.RootDigest != before.RootDigest {
		t.Errorf("the old one: %+v, %v", old, err)
	}
	names, err := s.Names()
	if err != nil || !slices.Contains(names, name) || !slices.Contains(names, before.Name) {
		t.Errorf("names %v, %v", names, err)
	}
	needed, err := s.Needed()
	if err != nil || needed[before.Digest] || !needed[after.Digest] {
		t.Errorf("needed: %v, %v", needed, err)
	}
	if freed, err := s.PruneImages(time.Hour, false); err != nil || freed != 0 ||
		!s.isKnown(before.Name) {
		t.Errorf("pruned %d bytes, %v", freed, err)
	}
	if err := s.Drop(ctx, before.Digest); err != nil {
		t.Fatal(err)
	}
	if freed, err := s.PruneImages(0, false); err != nil || freed == 0 || s.isKnown(before.Name) ||
		!s.isKnown(after.Name) {
		t.Errorf("pruned %d bytes, %v", freed, err)
	}
	for asked, want := range map[string]bool{name: true, before.Name: true, after.Name: false,
		reg.Host + "/x:2": false, "base": false} {
		if SameImage(asked, before.Name) != want {
			t.Errorf("%s for %s: %v", asked, before.Name, !want)
		}
	}
}

func (s *Store) isKnown(name string) bool {
	_, err := s.Spec(name)
	return err == nil
}

// TestImageFails checks that an unusable image leaves nothing.
func TestImageFails(t *testing.T) {
	noCredentials(t)
	reg := ocitest.Serve(t, nil)
	reg.Push(t, "x:1", ocitest.Image(t, ocitest.Config{}, bashLayer(t),
		ocitest.Tar(t, ocitest.File("../x", ""))))
	s := NewStore(t.TempDir())
	_, err := s.Ensure(t.Context(), reg.Host+"/x:1", nil)
	if turnstone.KindOf(err) != turnstone.KindInvalid ||
		!strings.Contains(err.Error(), "leaves the image's root") {
		t.Fatal(err)
	}
	if !strings.HasPrefix(err.Error(), "image "+reg.Host+"/x:1@sha256:") ||
		strings.Count(err.Error(), "sha256:") != 1 ||
		!strings.Contains(turnstone.HintOf(err), ".log") {
		t.Errorf("the image is not named once: %v (%s)", err, turnstone.HintOf(err))
	}
	var left []string
	walkErr := filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && (strings.HasSuffix(path, ".erofs") ||
			strings.Contains(path, "/tmp/") && !strings.HasPrefix(path, s.dir)) {
			left = append(left, path)
		}
		return err
	})
	if walkErr != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, walkErr)
	}
	if in, err := os.ReadDir(filepath.Join(s.dir, "tmp")); err != nil || len(in) > 0 {
		t.Errorf("tmp: %v, %v", in, err)
	}
}

// TestNoRegistry checks that the error names the attempt, and a similar template.
func TestNoRegistry(t *testing.T) {
	noCredentials(t)
	srv := httptest.NewServer(http.NotFoundHandler())
	host := strings.TrimPrefix(srv.URL, "http://")
	srv.Close()
	s := NewStore(t.TempDir())
	_, err := s.Resolve(t.Context(), host+"/library/python:3.12", nil)
	if turnstone.KindOf(err) != turnstone.KindUnavailable || !strings.Contains(err.Error(), host) ||
		!strings.Contains(err.Error(), "python:3.12") ||
		!strings.Contains(turnstone.HintOf(err), "template python") {
		t.Errorf("%v; %s", err, turnstone.HintOf(err))
	}
	if _, err := s.Resolve(t.Context(), "Python:3.12",
		nil); turnstone.KindOf(err) != turnstone.KindInvalid ||
		!strings.Contains(turnstone.HintOf(err), "lower case") {
		t.Errorf("%v; %s", err, turnstone.HintOf(err))
	}
}

// TestImageOfEarlier checks that the registry is asked again about an image that a version has recorded
// which did not read the image's command.
func TestImageOfEarlier(t *testing.T) {
	noCredentials(t)
	h := ocitest.Handler()
	srv := httptest.NewServer(h)
	reg := &ocitest.Registry{Host: strings.TrimPrefix(srv.URL, "http://"), URL: srv.URL}
	digest := reg.Push(t, "x:1", ocitest.Image(t, ocitest.Config{Cmd: []string{"serve"}}, bashLayer(t)))
	s := NewStore(t.TempDir())
	name := reg.Host + "/x:1@" + string(digest)
	earlier := func() {
		t.Helper()
		files, err := filepath.Glob(s.ociPath("images", "*.json"))
		if err != nil || len(files) != 1 {
			t.Fatal(files, err)
		}
		var rec ociImage
		if err := readKept(files[0], &rec); err != nil {
			t.Fatal(err)
		}
		rec.Image.Reads, rec.Image.Cmd = 0, nil
		if err := writeJSON(files[0], rec); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		spec, err := s.Resolve(t.Context(), name, nil)
		if err != nil || !slices.Equal(spec.Command.Cmd, []string{"serve"}) {
			t.Fatalf("%+v %v", spec, err)
		}
		earlier()
	}
	srv.Close()
	if spec, err := s.Resolve(t.Context(), name, nil); err != nil || !spec.Command.None() {
		t.Errorf("without the registry: %+v %v", spec, err)
	}
}

// TestSpecOnImage checks a spec that begins with an image.
func TestSpecOnImage(t *testing.T) {
	noCredentials(t)
	ctx := t.Context()
	reg := ocitest.Serve(t, nil)
	reg.Push(t, "x:1", ocitest.Image(t, ocitest.Config{Env: []string{"A=1", "B=2"}, Workdir: "/w",
		Entrypoint: []string{"/entry"}}, bashLayer(t)))
	dir := t.TempDir()
	text := "name = \"mine\"\nbase = \"oci:" + reg.Host + "/x:1\"\nenv = { A = \"mine\" }\n"
	if err := os.WriteFile(filepath.Join(dir, specFile), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := NewStore(t.TempDir())
	tmpl, err := s.Build(ctx, dir, BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if c := tmpl.Command; !slices.Equal(c.Entrypoint, []string{"/entry"}) || c.Workdir != "/w" {
		t.Errorf("its command is %+v", c)
	}
	if tmpl.Workdir != "/w" || !slices.Equal(tmpl.EnvList(), []string{"A=mine", "B=2"}) ||
		tmpl.Name != "mine" {
		t.Errorf("%+v", tmpl)
	}
	again, err := NewStore(s.dir).Ensure(ctx, "mine",
		func(what string) { t.Errorf("built again: %s", what) })
	if err != nil || again.Digest != tmpl.Digest {
		t.Errorf("%+v, %v", again, err)
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.Resolve(canceled, reg.Host+"/y:1", nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestStrangersImage checks that a document does not get an image just because the user has pulled
// it with credentials.
func TestStrangersImage(t *testing.T) {
	noCredentials(t)
	srv := httptest.NewServer(ocitest.Handler())
	defer srv.Close()
	reg := &ocitest.Registry{Host: strings.TrimPrefix(srv.URL, "http://"), URL: srv.URL}
	reg.Push(t, "x:1", ocitest.Image(t, ocitest.Config{}, bashLayer(t)))
	s, name := NewStore(t.TempDir()), reg.Host+"/x:1"
	if s.Known(name) {
		t.Error("it is known before it was pulled")
	}
	spec, err := s.Resolve(t.Context(), name, nil)
	if err != nil || !s.Known(name) || !s.Known(spec.Name) {
		t.Fatalf("after it was pulled: %v", err)
	}
	for _, by := range []string{name, spec.Name} {
		if _, err := s.Anonymous().Resolve(t.Context(), by,
			nil); turnstone.KindOf(err) != turnstone.KindInvalid ||
			!strings.Contains(err.Error(), "not allowed for a document") {
			t.Errorf("a stranger gets %s: %v", by, err)
		}
	}
	// An image that a registry served to a stranger is public, until the tag moves.
	ref, _ := s.imageReference(name)
	img, err := s.ociClient(func(string) {}).Resolve(t.Context(), ref)
	if err == nil {
		err = s.Anonymous().keepImage(ref, img)
	}
	if err == nil {
		err = s.keepImage(ref, img)
	}
	if err != nil || s.Known(name) {
		t.Errorf("%v, known %v", err, s.Known(name))
	}
	if _, err := s.Anonymous().Resolve(t.Context(), name, nil); err != nil {
		t.Error(err)
	}
	img.Digest = turnstone.DigestBytes([]byte("moved"))
	if err := s.keepImage(ref, img); err != nil || !s.Known(name) {
		t.Errorf("%v, known %v", err, s.Known(name))
	}
}
