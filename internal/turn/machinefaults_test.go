package turn

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/turn/snapshot"
	"turnstone.dev/turnstone/substrate"
)

// TestMachineFaults lets each write fail at the end of a turn whose machine is kept: if a write of
// the machine fails, the turn's files are kept without the machine.
func TestMachineFaults(t *testing.T) {
	dir, random := t.TempDir(), make([]byte, 3<<20)
	_, _ = rand.Read(random)
	without := 0
	for n := 1; ; n++ {
		x, at, hit := testRunner(&statedir.Dir{Root: dir}), -1, false
		x.host.Repo.Fault = func(string) error {
			if at--; at == 0 {
				hit = true
				return syscall.ENOSPC
			}
			return nil
		}
		parts := snapshot.Parts{Dir: t.TempDir(), Release: func() { at = -1 },
			Packed: substrate.Packed{Files: []string{"memory"}}}
		if err := errors.Join(os.Mkdir(filepath.Join(parts.Dir, "vm"), 0o700),
			os.WriteFile(filepath.Join(parts.Dir, "vm", "memory"), append(random, byte(n)),
				0o600)); err != nil {
			t.Fatal(err)
		}
		_ = ok[*repo.ContextStore](t)(x.host.Context(t.Context()))
		at = n
		r, err := endWith(t, x, map[string]string{"/file": strconv.Itoa(n)},
			ok[*snapshot.Snapshot](t)(snapshot.Of(x.host.Dir, parts)))
		if err != nil {
			t.Fatal(err)
		}
		at = -1
		cs := ok[*repo.ContextStore](t)(x.host.Context(t.Context()))
		rec, err := cs.Record(t.Context(), ok[turnstone.Turn](t)(cs.DB.Turn(t.Context(),
			r.info.ID)))
		switch {
		case strings.Contains(r.info.Error, "its machine is not kept"):
			without++
			if err != nil || r.info.FSHash == "" || r.info.Result != turnstone.ResultError ||
				r.info.Snapshot != "" || rec.VM != nil || rec.State == "" ||
				rec.Error != r.info.Error {
				t.Errorf("write %d: %+v, %+v, %v", n, r.info, rec, err)
			}
		case r.info.Result == turnstone.ResultPassed && !hit:
			if err != nil || rec.VM == nil || rec.State == "" {
				t.Errorf("write %d: %+v, %v", n, rec, err)
			}
		case r.info.Error == "" && r.info.Result == turnstone.ResultPassed: // a write that may fail
		case !strings.Contains(r.info.Error, "the turn's state is not kept"):
			t.Errorf("write %d: %+v", n, r.info)
		}
		if err := x.host.Repo.Close(); err != nil {
			t.Error(err)
		}
		if !hit || t.Failed() {
			break
		}
	}
	if without < 3 {
		t.Errorf("%d turns were kept without their machine", without)
	}
}
