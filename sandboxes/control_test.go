package sandboxes_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/sandboxtest"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/substrate"
)

// liveFake is a machine that a holder can pause and clone.
type liveFake struct {
	*sandboxtest.Machine
	mu     sync.Mutex
	paused bool
}

// openLive opens a liveFake. A clone's snapshot must exist; its content is its name.
func openLive(m *sandboxtest.Machine, spec sandboxes.Spec,
	d sandboxes.Details) (sandboxes.Machine, sandboxes.Details, error) {
	if spec.From != "" {
		b, err := os.ReadFile(filepath.Join(spec.From, "memory"))
		if err != nil {
			return nil, d, err
		}
		if strings.HasSuffix(spec.Name, "-3") && strings.Contains(string(b), "few") {
			return nil, d, turnstone.NewError("test", turnstone.KindExhausted, "memory", nil).
				WithHint("buy some")
		}
	}
	return &liveFake{Machine: m}, d, nil
}

func (f *liveFake) set(paused bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.paused == paused {
		return errors.New("it is so already")
	}
	f.paused = paused
	return nil
}

func (f *liveFake) Pause(context.Context) (string, error) { return "upper2", f.set(true) }
func (f *liveFake) Resume(context.Context) error          { return f.set(false) }

func (f *liveFake) Snapshot(ctx context.Context, dir string) error {
	if strings.HasSuffix(dir, "slow") {
		<-ctx.Done()
		return ctx.Err()
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "memory"), []byte(os.Getenv("FAKE_MEMORY")), 0o600)
}

func (f *liveFake) Keep(ctx context.Context, dir string) (substrate.Packed, error) {
	return substrate.Packed{Files: []string{"memory"}, Layers: []string{"l1", "l2"}},
		f.Snapshot(ctx, dir)
}

func (f *liveFake) Disk() (*os.File, error) {
	d, err := os.CreateTemp("", "disk")
	if err != nil {
		return nil, err
	}
	_ = os.Remove(d.Name())
	_, err = d.WriteString("the disk")
	return d, err
}

func control(t *testing.T, s *sandboxes.Store, id turnstone.SandboxID) *sandboxes.Control {
	t.Helper()
	c, err := s.Control(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestControl(t *testing.T) {
	s := newStore(t)
	i := create(t, s, spec("live"))
	c := control(t, s, i.ID)
	if st, err := c.Status(t.Context()); err != nil || st.Paused {
		t.Errorf("%+v, %v", st, err)
	}
	use(t, s, i.ID, "before")
	for range 2 { // the second call changes nothing
		if st, err := c.Pause(t.Context()); err != nil || !st.Paused || st.Upper != "upper2" {
			t.Errorf("%+v, %v", st, err)
		}
	}
	if got, err := s.Get(i.ID); err != nil || !got.Paused || got.State.Final() {
		t.Errorf("%+v, %v", got, err)
	}
	_, err := s.Dial(t.Context(), i.ID)
	if turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(err.Error(), "paused") || turnstone.HintOf(err) == "" {
		t.Errorf("dial: %v", err)
	}
	disk, err := c.Disk(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 8)
	if _, err := disk.ReadAt(b, 0); err != nil || string(b) != "the disk" {
		t.Errorf("%q, %v", b, err)
	}
	_ = disk.Close()
	dir := t.TempDir()
	err = c.Snapshot(t.Context(), filepath.Join(dir, "vm"), sandboxes.SnapshotOptions{})
	if err != nil {
		t.Error(err)
	}
	p, err := c.Keep(t.Context(), filepath.Join(dir, "kept"), sandboxes.SnapshotOptions{})
	if err != nil || !slices.Equal(p.Layers, []string{"l1", "l2"}) ||
		len(p.Files) != 1 {
		t.Errorf("%+v, %v", p, err)
	}
	err = c.Snapshot(t.Context(), filepath.Join(dir, "vm"), sandboxes.SnapshotOptions{})
	if err == nil {
		t.Error("the folder was there already")
	}
	if err := c.Snapshot(t.Context(), "relative", sandboxes.SnapshotOptions{}); turnstone.KindOf(
		err) != turnstone.KindInvalid {
		t.Errorf("%v", err)
	}
	other := control(t, s, i.ID)
	for range 2 {
		if err := other.Resume(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if got, err := s.Get(i.ID); err != nil || got.Paused {
		t.Errorf("%+v, %v", got, err)
	}
	use(t, s, i.ID, "after")
	if err := s.Stop(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Status(t.Context()); turnstone.KindOf(err) != turnstone.KindDead {
		t.Errorf("%v", err)
	}
	if _, err := s.Control(t.Context(), i.ID); turnstone.KindOf(err) != turnstone.KindDead {
		t.Errorf("%v", err)
	}
}

// TestControlGivesUp: closing the connection cancels its request, and the next request runs.
func TestControlGivesUp(t *testing.T) {
	s := newStore(t)
	i := create(t, s, spec("live"))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond) //wait: it is meant to expire
	defer cancel()
	err := control(t, s, i.ID).Snapshot(ctx, filepath.Join(t.TempDir(), "slow"),
		sandboxes.SnapshotOptions{})
	if turnstone.KindOf(err) != turnstone.KindTimeout {
		t.Errorf("%v", err)
	}
	if st, err := control(t, s, i.ID).Status(t.Context()); err != nil || st.Paused {
		t.Errorf("%+v, %v", st, err)
	}
	use(t, s, i.ID, "after")
}

// TestControlOfOthers: a machine without these abilities reports that.
func TestControlOfOthers(t *testing.T) {
	s := newStore(t)
	i := create(t, s, spec("fine"))
	if _, err := control(t, s, i.ID).Pause(t.Context()); turnstone.KindOf(
		err) != turnstone.KindUnavailable {
		t.Errorf("%v", err)
	}
	_, err := s.Fork(t.Context(), i.ID, sandboxes.Fork{Count: 1}, nil)
	if turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("%v", err)
	}
	use(t, s, i.ID, "still")
}

func TestFork(t *testing.T) {
	s := newStore(t)
	sp := spec("live")
	sp.Name = "parent"
	i := create(t, s, sp)
	var told []string
	all, err := s.Fork(t.Context(), i.ID, sandboxes.Fork{Count: 4, Prefix: "c", TTL: time.Minute},
		func(i sandboxes.Info) { told = append(told, i.Name) })
	if err != nil || len(all) != 4 {
		t.Fatalf("%d, %v", len(all), err)
	}
	slices.Sort(told)
	if want := []string{"c-1", "c-2", "c-3", "c-4"}; !slices.Equal(told, want) {
		t.Errorf("%q", told)
	}
	for _, c := range all {
		if c.Parent != i.ID || c.State != sandboxes.StateReady || c.Expires == nil ||
			c.Image != "live" {
			t.Errorf("%+v", c)
		}
		use(t, s, c.ID, "hello")
	}
	use(t, s, i.ID, "and I")
	noFolders(t, s)
	// A name is taken: that clone fails, and nothing of it remains.
	if err := s.Remove(t.Context(), all[0].ID); err != nil {
		t.Fatal(err)
	}
	before := len(names(t, s))
	_, err = s.Fork(t.Context(), i.ID, sandboxes.Fork{Count: 5, Prefix: "c"}, nil)
	if turnstone.KindOf(err) != turnstone.KindInvalid ||
		!strings.Contains(err.Error(), "of 5 clones failed") || turnstone.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	for _, n := range names(t, s) {
		if strings.Contains(n, "failed") {
			t.Errorf("%s is left", n)
		}
	}
	if after := len(names(t, s)); after < before {
		t.Errorf("%d sandboxes, there were %d", after, before)
	}
	noFolders(t, s)
	for _, bad := range []sandboxes.Fork{{}, {Count: -1}, {Count: sandboxes.MaxForks + 1},
		{Count: 1, Prefix: "a/b"}} {
		_, err := s.Fork(t.Context(), i.ID, bad, nil)
		if turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// noFolders checks that no snapshot and no incomplete sandbox remains.
func noFolders(t *testing.T, s *sandboxes.Store) {
	t.Helper()
	entries, err := os.ReadDir(s.Dir())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			t.Errorf("%s is left", e.Name())
		}
	}
}

// TestForkPartly: started clones stay; failed clones are cleaned up.
func TestForkPartly(t *testing.T) {
	t.Setenv("FAKE_MEMORY", "few")
	s := newStore(t)
	i := create(t, s, spec("live"))
	all, err := s.Fork(t.Context(), i.ID, sandboxes.Fork{Count: 3, Prefix: "p"}, nil)
	if turnstone.KindOf(err) != turnstone.KindExhausted || turnstone.HintOf(err) != "buy some" ||
		!strings.Contains(err.Error(), "1 of 3 clones") {
		t.Errorf("%v", err)
	}
	if len(all) != 2 || len(names(t, s)) != 3 {
		t.Errorf("%d clones, %q", len(all), names(t, s))
	}
	noFolders(t, s)
}

// TestForkInterrupted: nothing remains.
func TestForkInterrupted(t *testing.T) {
	s := newStore(t)
	i := create(t, s, spec("live"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := s.Fork(ctx, i.ID, sandboxes.Fork{Count: 50}, func(sandboxes.Info) { cancel() })
	if turnstone.KindOf(err) != turnstone.KindCanceled {
		t.Errorf("%v", err)
	}
	if got := names(t, s); len(got) != 1 {
		t.Errorf("%q", got)
	}
	noFolders(t, s)
}

// TestSecrets: the values are in no file, in no environment, and in no copy that was not requested.
func TestSecrets(t *testing.T) {
	const value = "sesame-open-4711"
	t.Setenv("TOKEN", value)
	s := newStore(t)
	sp := spec("live")
	sp.Secrets = []string{"TOKEN=" + value}
	i := create(t, s, sp)
	if !slices.Equal(i.Secrets, []string{"TOKEN"}) {
		t.Errorf("%q", i.Secrets)
	}
	hidden := func(i sandboxes.Info) {
		t.Helper()
		files := []string{fmt.Sprintf("/proc/%d/environ", i.Holder.PID),
			fmt.Sprintf("/proc/%d/cmdline", i.Holder.PID)}
		more, err := filepath.Glob(filepath.Join(s.Dir(), string(i.ID), "*"))
		if err != nil || len(more) < 3 {
			t.Fatalf("%q, %v", more, err)
		}
		for _, path := range append(files, more...) {
			if strings.HasSuffix(path, ".sock") {
				continue
			}
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(f)
			_ = f.Close()
			if err != nil || strings.Contains(string(b), value) {
				t.Errorf("%s holds the secret, or %v", path, err)
			}
		}
	}
	hidden(i)
	_, err := s.Fork(t.Context(), i.ID, sandboxes.Fork{Count: 1}, nil)
	if turnstone.KindOf(err) != turnstone.KindInvalid ||
		!strings.Contains(err.Error(), "holds a secret") || turnstone.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	_, err = control(t, s, i.ID).Keep(t.Context(), filepath.Join(t.TempDir(), "kept"),
		sandboxes.SnapshotOptions{})
	if turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("%v", err)
	}
	all, err := s.Fork(t.Context(), i.ID, sandboxes.Fork{Count: 1, Secrets: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(all[0].Secrets, []string{"TOKEN"}) {
		t.Errorf("%q", all[0].Secrets)
	}
	hidden(all[0])
	sp.Secrets = []string{"=" + value}
	if _, err := s.Create(t.Context(), sp, nil); turnstone.KindOf(err) != turnstone.KindInvalid ||
		strings.Contains(err.Error(), value) {
		t.Errorf("%v", err)
	}
}
