package snapshots

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReadAtMost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	check(t, os.WriteFile(path, []byte("12345"), 0o600))
	for limit, ok := range map[int64]bool{4: false, 5: true, 1 << 20: true} {
		if b, err := ReadAtMost(path, limit); (err == nil) != ok || ok && string(b) != "12345" {
			t.Errorf("limit %d: %q, %v", limit, b, err)
		}
	}
	// a file whose reported size is 0
	if b, err := ReadAtMost("/proc/self/stat", 1<<20); err != nil || len(b) == 0 {
		t.Errorf("%q, %v", b, err)
	}
	if b, err := ReadAtMost("/dev/zero", 100); err == nil {
		t.Errorf("%d bytes of a file without an end", len(b))
	}
	if _, err := ReadAtMost(t.TempDir(), 100); err == nil {
		t.Error("a folder was read")
	}
}
