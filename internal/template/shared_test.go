package template

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/template/oci"
	"turnstone.dev/turnstone/internal/template/oci/ocitest"
)

// pushed puts a template with that layer into a registry, and returns the manifest's digest.
func pushed(t *testing.T, as string, tmpl oci.Artifact, plain []byte) turnstone.Digest {
	t.Helper()
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b)
	if err == nil {
		_, err = z.Write(plain)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if tmpl.Digest == "" {
		tmpl.Digest = turnstone.DigestBytes(nil)
	}
	tmpl.FSHash = tmpl.Digest
	ref, err := oci.ParseReference(as)
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewStore(t.TempDir()).Registry(nil).Push(t.Context(), ref, tmpl,
		[]oci.LayerFile{{Layer: oci.Layer{Digest: turnstone.DigestBytes(b.Bytes()),
			DiffID: turnstone.DigestBytes(plain), Size: int64(b.Len())},
			Content: bytes.NewReader(b.Bytes())}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestPullTemplate checks that a pulled template is registered under its name with its origin, and
// replaces another template only if asked.
func TestPullTemplate(t *testing.T) {
	noCredentials(t)
	reg := ocitest.Serve(t, nil)
	at := reg.Host + "/org/mine:1"
	d := pushed(t, at, oci.Artifact{Name: "mine", Description: "one", User: "7",
		Env: map[string]string{"A": "1"}, Machine: turnstone.Machine{CPUs: 2}}, bashLayer(t))
	s, builds := counting(t)
	tmpl, err := s.PullTemplate(t.Context(), at, PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if tmpl.Name != "mine" || tmpl.User != "7" || tmpl.Env["A"] != "1" || tmpl.Machine.CPUs != 2 ||
		tmpl.Workdir != DefaultWorkdir || len(tmpl.Layers) != 0 {
		t.Errorf("%+v", tmpl)
	}
	if _, err := s.Tree(t.Context(), tmpl, tree.NewHasher()); err != nil {
		t.Error(err)
	}
	show, err := s.Show(t.Context(), "mine")
	if err != nil || show.Pulled == nil || show.Pulled.Registry != reg.Host ||
		show.Pulled.Digest != d || show.Pulled.Artifact.Name != "mine" ||
		show.Description != "one" || show.BuiltIn || !show.Ready {
		t.Errorf("%+v, %v", show, err)
	}
	again, err := s.PullTemplate(t.Context(), reg.Host+"/org/mine@"+string(d),
		PullOptions{Name: "other"})
	if err != nil || again.Name != "other" || again.Digest != tmpl.Digest ||
		again.RootDigest != tmpl.RootDigest {
		t.Errorf("by its digest, under another name: %+v, %v", again, err)
	}

	pushed(t, at, oci.Artifact{Name: "mine"}, bashLayer(t, ocitest.File("two", "2")))
	_, err = s.PullTemplate(t.Context(), at, PullOptions{})
	if turnstone.KindOf(err) != turnstone.KindInvalid ||
		!strings.Contains(turnstone.HintOf(err), "--force") {
		t.Errorf("a different template of that name: %v (%s)", err, turnstone.HintOf(err))
	}
	if now, err := s.Ensure(t.Context(), "mine", nil); err != nil || now.Digest != tmpl.Digest {
		t.Errorf("after that: %+v, %v", now, err)
	}
	moved, err := s.PullTemplate(t.Context(), at, PullOptions{Replace: true})
	if err != nil || moved.Digest == tmpl.Digest {
		t.Errorf("%+v, %v", moved, err)
	}
	if err := s.Remove(t.Context(), "mine"); err != nil {
		t.Error(err)
	}
	if builds.Load() != 0 {
		t.Errorf("%d builds from specs", builds.Load())
	}
}

// TestPulledSpec checks that an artifact that claims the digest of a built-in template does not
// become this template, and that neither its name nor its spec is used unchecked.
func TestPulledSpec(t *testing.T) {
	noCredentials(t)
	reg := ocitest.Serve(t, nil)
	s, builds := counting(t)
	base, err := s.Spec("base")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"base", "../x", "python:3.12", "UPPER", "a/b"} {
		at := reg.Host + "/x:1"
		pushed(t, at, oci.Artifact{Name: name, Digest: base.Digest()}, bashLayer(t))
		_, err := s.PullTemplate(t.Context(), at, PullOptions{Replace: true})
		if turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("as %s: %v", name, err)
		}
		tmpl, err := s.PullTemplate(t.Context(), at, PullOptions{Name: "evil", Replace: true})
		if err != nil || tmpl.Digest == base.Digest() {
			t.Errorf("%s as evil: %+v, %v", name, tmpl, err)
		}
	}
	entries, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.BuiltIn && e.Ready {
			t.Errorf("%+v is built", e)
		}
	}
	if ensure(t, s, "base"); builds.Load() != 1 {
		t.Error("base was not built from its spec")
	}
	reg.Push(t, "image:1", ocitest.Image(t, ocitest.Config{}, bashLayer(t)))
	if _, err := s.PullTemplate(t.Context(), reg.Host+"/image:1",
		PullOptions{Name: "x"}); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("an image with a name: %v", err)
	}
}

// TestTag checks that a tag keeps a spec, goes before an image of its name, and is moved only if
// asked.
func TestTag(t *testing.T) {
	s, _ := counting(t)
	build(t, s, writeSpec(t, "mine", "base = 'debian:bookworm'\npackages = ['jq']\n"),
		BuildOptions{})
	old, err := s.Tag(t.Context(), "mine", "v1", false)
	if err != nil || old.Name != "mine:v1" || !old.Ready {
		t.Fatalf("%+v, %v", old, err)
	}
	now := build(t, s, writeSpec(t, "mine", "base = 'debian:bookworm'\npackages = ['git']\n"),
		BuildOptions{})
	tmpl, err := s.Ensure(t.Context(), "mine:v1", nil)
	if err != nil || tmpl.Digest != old.Digest || now.Digest == old.Digest ||
		tmpl.Name != "mine:v1" || !s.Known("mine:v1") {
		t.Errorf("%+v, %v", tmpl, err)
	}
	names, err := s.Names()
	if err != nil || !slices.Contains(names, "mine:v1") || !slices.Contains(names, "mine") {
		t.Errorf("%v, %v", names, err)
	}
	if needed, err := s.Needed(); err != nil || !needed[old.Digest] {
		t.Errorf("a prune would remove the tag's build: %v", err)
	}
	if _, err := s.Tag(t.Context(), "mine", "v1",
		false); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("moved: %v", err)
	}
	if e, err := s.Tag(t.Context(), "mine", "v1", true); err != nil || e.Digest != now.Digest {
		t.Errorf("%+v, %v", e, err)
	}
	if e, err := s.Tag(t.Context(), "mine:v1", "v2", false); err != nil || e.Name != "mine:v2" {
		t.Errorf("%+v, %v", e, err)
	}
	for _, bad := range [][2]string{{"mine", "../x"}, {"mine", "a:b"}, {"mine", ""}, {"none", "v1"},
		{"a/b", "v1"}, {"mine", "a@b"}} {
		if e, err := s.Tag(t.Context(), bad[0], bad[1], true); err == nil {
			t.Errorf("%v: %+v", bad, e)
		}
	}
	for _, name := range []string{"mine:v1", "mine:v2"} {
		if err := s.Remove(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	if s.Known("mine:v1") {
		t.Error("the tag is still there")
	}
	if _, err := s.Ensure(t.Context(), "mine", nil); err != nil {
		t.Error(err)
	}
}
