package repo_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/repotest"
)

// TestGCOfMemory: gc removes what turns and sandboxes of sealed sessions have left in memory, if their
// process has ended.
func TestGCOfMemory(t *testing.T) {
	p := repotest.NewSealed(t, repotest.NewKeys(true))
	p.Session("s")
	dirs := map[string]bool{} // whether a process has it
	for _, of := range []string{"turns", repo.MemoryOfSandboxes, repo.MemoryOfMachines} {
		for name, used := range map[string]bool{"used": true, "left": false} {
			dir := ok[string](t)(p.Repo.Dir.Memory(of, name))
			if err := os.WriteFile(filepath.Join(dir, "1.out"), []byte(marker), 0o600); err != nil {
				t.Fatal(err)
			}
			if used {
				defer func(lock *os.File) { _ = lock.Close() }(ok[*os.File](t)(repo.LockFolder(dir,
					unix.LOCK_EX)))
			}
			dirs[dir] = used
		}
	}
	t.Cleanup(func() { _ = p.Repo.Dir.ForgetMemory() })
	ok[*turnstone.GCReport](t)(p.Repo.GC(t.Context(), turnstone.GCRequest{}))
	for dir, used := range dirs {
		if _, err := os.Stat(dir); (err == nil) != used {
			t.Errorf("%s, in use: %v: %v", dir, used, err)
		}
	}
}
