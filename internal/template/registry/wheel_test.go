package registry_test

import (
	"archive/zip"
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template/registry"
)

const toolWheel = "my_tool-1.2-py3-none-manylinux2014_x86_64.whl"

// wheelOf returns a wheel called my_tool 1.2 with one program.
func wheelOf(t *testing.T, program, content string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	f, err := w.Create("my_tool-1.2.data/scripts/" + program)
	if err == nil {
		_, err = f.Write([]byte(content))
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func newServer(t *testing.T, o registry.Options) *registry.Server {
	t.Helper()
	s, err := registry.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestProgramsOfWheels(t *testing.T) {
	u := newUpstream(t)
	b := wheelOf(t, "tool", "\x7fELF 1")
	u.pip("my-tool", map[string][]byte{toolWheel: b, "my_tool-1.2.tar.gz": []byte("source")})
	o := u.options(t)
	o.Locked = true // a lock names no wheels: the spec does
	list := []registry.Wheel{{File: toolWheel, SHA256: sha(b)}}
	s := newServer(t, o)
	got, err := s.Programs(t.Context(), list)
	if err != nil || len(got) != 1 || got[0].Name != "tool" ||
		string(got[0].Content) != "\x7fELF 1" {
		t.Fatalf("%q, %v", got, err)
	}
	if v := registry.Versions(list); len(v) != 1 || v["my-tool"] != "1.2" {
		t.Errorf("versions %v", v)
	}
	if pips := s.Pips(); len(pips) != 0 {
		t.Errorf("pip received %v", pips)
	}

	// A wheel in the cache needs no index; a damaged one is fetched again.
	hits := u.hits.Load()
	if _, err := newServer(t, o).Programs(t.Context(), list); err != nil || u.hits.Load() != hits {
		t.Errorf("again: %v, %d requests", err, u.hits.Load()-hits)
	}
	at := filepath.Join(o.Cache, "sha256-"+sha(b))
	if err := os.WriteFile(at, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := newServer(t, o).Programs(t.Context(), list); err != nil || len(got) != 1 ||
		u.hits.Load() == hits {
		t.Errorf("damaged in the cache: %q, %v", got, err)
	}
}

func TestWheelsThatAreRejected(t *testing.T) {
	b := wheelOf(t, "tool", "\x7fELF 1")
	other := wheelOf(t, "tool", "\x7fELF 2")
	for name, tt := range map[string]struct {
		page  string // instead of an honest one
		serve []byte // instead of the honest file
		file  string
		sum   string
		kind  turnstone.Kind
		want  string
	}{
		"another digest in the index": {sum: sha(other), kind: turnstone.KindIntegrity,
			want: "has the SHA-256 " + sha(b)},
		"another file behind the digest": {serve: other, kind: turnstone.KindIntegrity,
			want: "is not what the registry says"},
		"another file, without a digest in the index": {serve: other,
			page: `<a href="/files/` + toolWheel + `">x</a>`, kind: turnstone.KindIntegrity,
			want: "is not what the registry says"},
		"no such file": {file: "my_tool-1.3-py3-none-manylinux2014_x86_64.whl",
			kind: turnstone.KindNotFound, want: "is not in the index at 127.0.0.1"},
		"no such project": {file: "no-1.3-py3-none-manylinux2014_x86_64.whl",
			kind: turnstone.KindNotFound, want: "404"},
		"another name": {file: "my_tool-1.2.tar.gz", kind: turnstone.KindInvalid,
			want: "is not the name of a wheel"},
		"hostile": {serve: []byte("no archive"), sum: sha([]byte("no archive")),
			page: `<a href="/files/` + toolWheel + `">x</a>`, kind: turnstone.KindInvalid,
			want: "not a wheel with programs"},
		"an index that is none": {page: "{", kind: turnstone.KindNotFound, want: "is not in the index"},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpstream(t)
			u.pip("my-tool", map[string][]byte{toolWheel: b})
			if tt.page != "" {
				u.pages["/simple/my-tool/"] = tt.page
			}
			if tt.serve != nil {
				u.files["/files/"+toolWheel] = tt.serve
			}
			w := registry.Wheel{File: toolWheel, SHA256: sha(b)}
			if tt.file != "" {
				w.File = tt.file
			}
			if tt.sum != "" {
				w.SHA256 = tt.sum
			}
			got, err := newServer(t, u.options(t)).Programs(t.Context(), []registry.Wheel{w})
			if turnstone.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.want) ||
				got != nil {
				t.Errorf("%d programs, %v", len(got), err)
			}
		})
	}
}

// TestWheelsOfAnIndexWithAPassword checks that the index's password opens the wheel too, and that
// no error contains it.
func TestWheelsOfAnIndexWithAPassword(t *testing.T) {
	u := newUpstream(t)
	b := wheelOf(t, "tool", "\x7fELF 1")
	u.pip("my-tool", map[string][]byte{toolWheel: b})
	u.fault = func(w http.ResponseWriter, r *http.Request) bool {
		if _, pass, _ := r.BasicAuth(); pass == "secret-word" {
			return false
		}
		http.Error(w, "who", http.StatusUnauthorized)
		return true
	}
	o := u.options(t)
	o.Pip = strings.Replace(o.Pip, "http://", "http://me:secret-word@", 1)
	list := []registry.Wheel{{File: toolWheel, SHA256: sha(b)}}
	if got, err := newServer(t, o).Programs(t.Context(), list); err != nil || len(got) != 1 {
		t.Errorf("%q, %v", got, err)
	}
	list[0].SHA256 = sha(nil)
	if _, err := newServer(t, o).Programs(t.Context(), list); err == nil ||
		strings.Contains(err.Error()+turnstone.HintOf(err), "secret-word") {
		t.Errorf("%v", err)
	}
}

func TestTwoWheelsWithOneProgram(t *testing.T) {
	u := newUpstream(t)
	const later = "my_tool-1.2-2-py3-none-manylinux2014_x86_64.whl"
	b, c := wheelOf(t, "tool", "\x7fELF 1"), wheelOf(t, "tool", "\x7fELF 2")
	u.pip("my-tool", map[string][]byte{toolWheel: b, later: c})
	_, err := newServer(t, u.options(t)).Programs(t.Context(),
		[]registry.Wheel{{toolWheel, sha(b)}, {later, sha(c)}})
	if turnstone.KindOf(err) != turnstone.KindInvalid ||
		!strings.Contains(err.Error(), "is also in "+toolWheel) {
		t.Errorf("%v", err)
	}
}

func TestCheckWheels(t *testing.T) {
	good := registry.Wheel{File: toolWheel, SHA256: sha(nil)}
	first := registry.Wheel{File: "a-1-py3-none-manylinux2014_x86_64.whl", SHA256: sha(nil)}
	got, err := registry.CheckWheels([]registry.Wheel{good, first, good})
	if err != nil || len(got) != 2 || got[0] != first || got[1] != good {
		t.Errorf("%v, %v", got, err)
	}
	for name, list := range map[string][]registry.Wheel{
		"no file":      {{SHA256: sha(nil)}},
		"no digest":    {{File: toolWheel}},
		"short digest": {{toolWheel, sha(nil)[:62]}},
		"upper case":   {{toolWheel, strings.ToUpper(sha(nil))}},
		"prefix":       {{toolWheel, "sha256:" + sha(nil)}},
		"any platform": {{"six-1-py3-none-any.whl", sha(nil)}},
		"too many":     make([]registry.Wheel, 33),
	} {
		if _, err := registry.CheckWheels(list); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
