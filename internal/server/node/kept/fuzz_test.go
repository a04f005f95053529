package kept

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
)

// FuzzRecord reads files of sandboxes and of snapshots: what is accepted is about the sandbox or
// snapshot of its name, and is the same after it was written again.
func FuzzRecord(f *testing.F) {
	const sn = "sn_000000000000000001"
	dir := f.TempDir()
	s := &Sandbox{ID: id, Metadata: map[string]string{"a": "b"},
		Holder: Holder{Client: channel.NewKeyPair().Public}, Ports: []Port{{Port: 80}}}
	if err := s.Save(dir); err != nil {
		f.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, string(id)+suffix))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"version":1,"id":"` + sn + `","image":"base"}`))
	f.Add([]byte(`{"version":1,"id":"` + string(id) + `"}{}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		path := filepath.Join(dir, sn, snapshotFile)
		if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		for _, p := range []string{filepath.Join(dir, string(id)+suffix), path} {
			if err := os.WriteFile(p, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := Load(dir, id)
		if err == nil {
			if got.ID != id {
				t.Fatalf("%+v", got)
			}
			if err := got.Save(dir); err != nil {
				t.Fatal(err)
			}
			if again, err := Load(dir, id); err != nil || !same(got, again) {
				t.Fatalf("%+v became %+v, %v", got, again, err)
			}
		} else if turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Fatal(err)
		}
		snap, err := LoadSnapshot(dir, sn)
		if err == nil && snap.ID != sn || err != nil && turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Fatalf("%+v, %v", snap, err)
		}
	})
}

// same compares what two files say; nothing and an empty list are the same.
func same(a, b *Sandbox) bool {
	x, y := *a, *b
	for _, s := range []*Sandbox{&x, &y} {
		if len(s.Metadata) == 0 {
			s.Metadata = nil
		}
		if len(s.Ports) == 0 {
			s.Ports = nil
		}
		if len(s.Admitted) == 0 {
			s.Admitted = nil
		}
		for i := range s.Ports {
			s.Ports[i].Expires = s.Ports[i].Expires.UTC()
		}
		for i := range s.Admitted {
			s.Admitted[i].Expires = s.Admitted[i].Expires.UTC()
		}
	}
	return reflect.DeepEqual(x, y)
}
