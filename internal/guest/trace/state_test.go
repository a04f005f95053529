package trace

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
)

// TestRecordIn: a root whose /proc is not the kernel's is rejected.
func TestRecordIn(t *testing.T) {
	tr := newTracer(t)
	open := func(dir string) int {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	empty, fake, link := t.TempDir(), t.TempDir(), t.TempDir()
	err := errors.Join(os.MkdirAll(filepath.Join(fake, "proc/self/fd"), 0o755),
		os.Symlink("/proc", filepath.Join(link, "proc")))
	if err != nil {
		t.Fatal(err)
	}
	before := countFDs(t)
	for _, dir := range []string{empty, fake, link} {
		fd := open(dir)
		_, err := tr.RecordIn(fd, nil)
		if turnstone.KindOf(err) != turnstone.KindUnavailable ||
			!strings.Contains(err.Error(), "/proc") {
			t.Errorf("%v", err)
		}
	}
	rec, err := tr.RecordIn(open("/"), nil)
	if err != nil {
		t.Fatal(err)
	}
	rec.Finish(0)
	if after := countFDs(t); after != before+4 {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// TestStateBound: a step's state memory costs no more than its size.
func TestStateBound(t *testing.T) {
	s := make(shared, lenShared)
	binary.LittleEndian.PutUint32(s[offState:], 1)
	binary.LittleEndian.PutUint32(s[offStateLen:], maxState)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	st, why := s.decodeState()
	runtime.ReadMemStats(&after)
	if st == nil || len(st.Env) != 0 || why != "" {
		t.Errorf("%+v %q", st, why)
	}
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 2*maxState {
		t.Errorf("%d MiB for %d", grown>>20, maxState>>20)
	}
	copy(s[offEnv:], "/tmp\x00"+strings.Repeat("A=\x00", maxStateVars+1))
	if st, why = s.decodeState(); st != nil || why == "" {
		t.Error("too many variables were taken")
	}
	copy(s[offEnv:], "/tmp\x00A=1\x00=no\x00no\x00B==\x00")
	binary.LittleEndian.PutUint32(s[offStateLen:],
		uint32(len("/tmp\x00A=1\x00=no\x00no\x00B==\x00")))
	if st, _ = s.decodeState(); st == nil || st.Cwd != "/tmp" ||
		strings.Join(st.Env, " ") != "A=1 B==" {
		t.Errorf("%+v", st)
	}
}
