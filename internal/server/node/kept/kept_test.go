package kept

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
)

const id = turnstone.SandboxID("sb_000000000000000001")

func TestSandbox(t *testing.T) {
	dir := t.TempDir()
	if s, err := Load(dir, id); s != nil || err != nil {
		t.Fatalf("%+v %v", s, err)
	}
	s := &Sandbox{ID: id, Metadata: map[string]string{"a": "b"},
		Holder: Holder{Client: channel.NewKeyPair().Public},
		Ports:  []Port{{Port: 80, Address: "127.0.0.1:1"}}}
	if err := s.Save(dir); err != nil {
		t.Fatal(err)
	}
	got, err := Load(dir, id)
	if err != nil || got.Client != s.Client || got.Metadata["a"] != "b" || got.Ports[0] != s.Ports[0] {
		t.Fatalf("%+v %v", got, err)
	}
	if all, err := List(dir); err != nil || len(all) != 1 || all[0] != id {
		t.Fatal(all, err)
	}
	if err := (&Sandbox{ID: "../x"}).Save(dir); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Fatal(err)
	}
	s.Context = "research"
	if err := errors.Join(s.Place(dir), Persist(dir, id)); err != nil {
		t.Fatal(err)
	}
	if got, err := Load(dir, id); err != nil || got.Context != "research" || got.Client != s.Client {
		t.Fatalf("%+v %v", got, err)
	}
	if err := (&Sandbox{ID: "../x"}).Place(dir); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Fatal(err)
	}
	for range 2 {
		if err := Forget(dir, id); err != nil {
			t.Fatal(err)
		}
	}
	if err := Persist(dir, id); err != nil {
		t.Errorf("after it was removed: %v", err)
	}
	if s, err := Load(dir, id); s != nil || err != nil {
		t.Fatalf("%+v %v", s, err)
	}
}

// TestDamaged: a file that is damaged is an error, and never nothing: nothing would be the operator's.
func TestDamaged(t *testing.T) {
	for _, text := range []string{"", "{}", "nonsense", `{"version":2}`, `{"version":1,"id":"sb_1"}`,
		`{"version":1,"id":"sb_000000000000000001","more":1}`,
		`{"version":1,"id":"sb_000000000000000001"}{"version":1}`} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, string(id)+suffix), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := Load(dir, id); turnstone.KindOf(err) != turnstone.KindIntegrity || s != nil {
			t.Errorf("%q: %+v %v", text, s, err)
		}
	}
}

// TestSnapshot: a snapshot is complete or not there.
func TestSnapshot(t *testing.T) {
	dir, sn := t.TempDir(), "sn_000000000000000001"
	write := func(_ context.Context, machine string) error {
		return errors.Join(os.Mkdir(machine, 0o700),
			os.WriteFile(filepath.Join(machine, "memory"), make([]byte, 10_000), 0o600))
	}
	broken := errors.New("out of steam")
	s := &Snapshot{ID: sn, Image: "base", Created: time.Now()}
	if err := s.Keep(t.Context(), dir, func(ctx context.Context, m string) error {
		return errors.Join(write(ctx, m), broken)
	}); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Fatal(left, err)
	}
	// a former process left this
	if err := os.MkdirAll(filepath.Join(dir, unfinished+sn, machineDir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Keep(t.Context(), dir, write); err != nil || s.Size < 10_000 {
		t.Fatal(s.Size, err)
	}
	got, err := LoadSnapshot(dir, sn)
	if err != nil || got.Image != "base" || got.Size != s.Size {
		t.Fatalf("%+v %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(got.Machine(dir), "memory")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{unfinished + "x", gone + "y"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := Sweep(dir); err != nil {
		t.Fatal(err)
	}
	if all, err := Snapshots(dir); err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	if err := got.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Fatal(left, err)
	}
	if s, err := LoadSnapshot(dir, "../../etc"); s != nil || err != nil {
		t.Fatal(s, err)
	}
	if err := (&Snapshot{ID: "../x"}).Keep(t.Context(), dir, write); turnstone.KindOf(err) !=
		turnstone.KindInvalid {
		t.Fatal(err)
	}
}
