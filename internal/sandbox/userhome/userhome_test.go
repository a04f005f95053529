package userhome

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
)

// homes returns the homes of an empty state directory.
func homes(t *testing.T) *Homes {
	t.Helper()
	if _, err := exec.LookPath("mke2fs"); err != nil {
		if _, err := os.Stat("/sbin/mke2fs"); err != nil {
			t.Skip("no mke2fs")
		}
	}
	return In(&statedir.Dir{Root: t.TempDir()})
}

func quiet(string) {}

// TestAcquire creates a home, which remains with its contents after its user ends.
func TestAcquire(t *testing.T) {
	h := homes(t)
	use := Request{Name: "work", Turn: "t_000000000000000001", Timeout: time.Minute}
	path, release, err := h.Acquire(t.Context(), use, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if all, err := h.List(t.Context()); err != nil || len(all) != 1 || all[0].Name != "work" ||
		!all[0].InUse || all[0].Turn != use.Turn || all[0].Bytes >= int64(diskSize)/100 {
		t.Errorf("while it is in use: %+v, %v", all, err)
	}
	err = h.Remove(t.Context(), "work")
	if turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(err.Error(), string(use.Turn)) {
		t.Errorf("Remove while it is in use: %v", err)
	}
	made, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	release()
	again, release, err := h.Acquire(t.Context(), use, quiet)
	if err != nil {
		t.Fatal(err)
	}
	release()
	if st, err := os.Stat(again); err != nil || !os.SameFile(st, made) {
		t.Errorf("the second user got another disk: %v", err)
	}
	if all, err := h.List(t.Context()); err != nil || len(all) != 1 || all[0].InUse {
		t.Errorf("afterwards: %+v, %v", all, err)
	}
	if err := h.Remove(t.Context(), "work"); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(h.dir.Path("homes")); err != nil || len(left) != 0 {
		t.Errorf("Remove left %v, %v", left, err)
	}
}

// TestAcquireWaits waits for the home's turn, at most as long as its own turn may take.
func TestAcquireWaits(t *testing.T) {
	h := homes(t)
	_, release, err := h.Acquire(t.Context(),
		Request{Name: "work", Turn: "t_1", Timeout: time.Minute}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	var told string
	_, _, err = h.Acquire(t.Context(),
		Request{Name: "work", Turn: "t_2", Timeout: time.Millisecond},
		func(what string) { told = what })
	if turnstone.KindOf(err) != turnstone.KindTimeout || !strings.Contains(told, "turn t_1") {
		t.Errorf("got %v, told %q", err, told)
	}
	waiting := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, release, err := h.Acquire(context.WithoutCancel(t.Context()),
			Request{Name: "work", Turn: "t_3", Timeout: time.Hour}, func(string) { close(waiting) })
		if err == nil {
			release()
		}
		done <- err
	}()
	<-waiting
	release()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := turnOf(h.path("work")); got != "t_3" {
		t.Errorf("the home was used last by %q", got)
	}
}

// TestHas rejects invalid names, and suggests the nearest home.
func TestHas(t *testing.T) {
	h := homes(t)
	if _, err := h.dir.MkdirAll("homes"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.path("project"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := h.Has(t.Context(),
		"../homes/project"); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("a path: %v", err)
	}
	err := h.Has(t.Context(), "projekt")
	if turnstone.KindOf(err) != turnstone.KindNotFound ||
		!strings.Contains(turnstone.HintOf(err), "did you mean project?") {
		t.Errorf("a mistake: %v, %s", err, turnstone.HintOf(err))
	}
}

// TestTurnOf rejects notes that lock did not write, because users see them.
func TestTurnOf(t *testing.T) {
	path := t.TempDir() + "/work.ext4"
	for _, note := range []string{"\x1b[2Jt_1", "t_1\nt_2", strings.Repeat("t", 100), "", "T_1"} {
		if err := os.WriteFile(path+".user", []byte(note), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := turnOf(path); got != "" {
			t.Errorf("the note %q names %q", note, got)
		}
	}
}
