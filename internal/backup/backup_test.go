package backup_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/backup"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

func ok[T any](t testing.TB) func(v T, err error) T { return repotest.OK[T](t) }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err, turnstone.HintOf(err))
	}
}

// restored copies a backup as docs/operations.md says, and checks it.
func restored(t *testing.T, from ...string) (dir *statedir.Dir, rep *turnstone.FsckReport) {
	t.Helper()
	dir = &statedir.Dir{Root: filepath.Join(t.TempDir(), "home")}
	check(t, os.Mkdir(dir.Root, 0o700))
	for _, f := range from {
		if out, err := exec.Command("cp", "-a", f+"/.", dir.Root).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	header := ok[[]byte](t)(os.ReadFile(dir.Path("context.db")))
	if header[18] != 2 { // https://www.sqlite.org/fileformat.html: the log that writers need
		t.Error("the database is not in the mode WAL")
	}
	p := repotest.OpenAt(dir, "")
	rep = ok[*turnstone.FsckReport](t)(p.Fsck(t.Context()))
	if !rep.OK() {
		t.Errorf("%+v", rep)
	}
	check(t, p.Close())
	return dir, rep
}

// TestWhileInUse: each backup of a state directory whose turns end meanwhile has all of one moment,
// and an update copies what is new alone.
func TestWhileInUse(t *testing.T) {
	p := repotest.New(t)
	s := p.Session("s")
	turn := func(n int) {
		p.Turn(s, "main", treetest.Texts(map[string]string{"/n": fmt.Sprint(n),
			"/large": repotest.Random(200_000, byte(n))})...)
	}
	for n := range 3 {
		turn(n)
	}
	check(t, os.WriteFile(p.Repo.Dir.Path("tls.key"), nil, 0o600))
	for name, text := range map[string]string{"keys/node": "private", "domains/d": "wrapped",
		"server/tickets/t/journal": "1", "server/sandboxes/x": "runs", "server/received/y": "half",
		"cache/z": "again", "tenants/ada/config.toml": "", "tenants/ada/keys/node": "private"} {
		check(t, os.MkdirAll(filepath.Dir(p.Repo.Dir.Path(name)), 0o700))
		check(t, os.WriteFile(p.Repo.Dir.Path(name), []byte(text), 0o600))
	}
	check(t, os.MkdirAll(p.Repo.Dir.Path("templates", "a"), 0o700))
	check(t, os.WriteFile(p.Repo.Dir.Path("templates", "a", "root.erofs"), []byte("image"), 0o600))
	check(t, os.MkdirAll(p.Repo.Dir.Path("tenants", "ada", "templates", "a"), 0o700))
	check(t, os.Link(p.Repo.Dir.Path("templates", "a", "root.erofs"),
		p.Repo.Dir.Path("tenants", "ada", "templates", "a", "root.erofs")))

	o := backup.Options{Dir: p.Repo.Dir, To: filepath.Join(t.TempDir(), "b"),
		Keys: filepath.Join(t.TempDir(), "k")}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 3; n < 12; n++ {
			turn(n)
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		rep := ok[*turnstone.BackupReport](t)(backup.Make(t.Context(), o))
		if rep.Directories != 2 || strings.Join(rep.Left, " ") != "tls.key" {
			t.Errorf("%+v", rep)
		}
		if _, fsck := restored(t, o.To); fsck.Turns < 3 {
			t.Errorf("%+v", fsck)
		}
	}
	dir, fsck := restored(t, o.To, o.Keys)
	if fsck.Turns != 12 {
		t.Errorf("%+v", fsck)
	}
	for name, is := range map[string]bool{"keys/node": true, "tenants/ada/keys/node": true,
		"domains/d": true, "server/tickets/t/journal": true, "server/sandboxes/x": false,
		"server/received/y": false, "cache/z": false, "tls.key": false} {
		if _, err := os.Stat(dir.Path(name)); (err == nil) != is {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name := range map[string]bool{"keys": true, "tenants/ada/keys": true} {
		if _, err := os.Stat(filepath.Join(o.To, name)); err == nil {
			t.Errorf("%s is with the data", name)
		}
	}
	one := ok[os.FileInfo](t)(os.Stat(filepath.Join(o.To, "templates", "a", "root.erofs")))
	two := ok[os.FileInfo](t)(os.Stat(filepath.Join(o.To, "tenants", "ada", "templates", "a",
		"root.erofs")))
	if !os.SameFile(one, two) {
		t.Error("an image that tenants share is there twice")
	}

	check(t, os.RemoveAll(p.Repo.Dir.Path("tenants")))
	check(t, os.Remove(p.Repo.Dir.Path("domains", "d")))
	rep := ok[*turnstone.BackupReport](t)(backup.Make(t.Context(), o))
	if rep.Copied != 1 || rep.Removed < 2 { // the database
		t.Errorf("%+v", rep)
	}
	if _, err := os.Stat(filepath.Join(o.To, "domains", "d")); err == nil {
		t.Error("a key that was shredded is in the backup")
	}
}

// TestInterrupted: an update that fails leaves the earlier backup, and the next one is whole.
func TestInterrupted(t *testing.T) {
	p := repotest.New(t)
	s := p.Session("s")
	p.Turn(s, "main", treetest.Texts(map[string]string{"/a": "one"})...)
	o := backup.Options{Dir: p.Repo.Dir, To: filepath.Join(t.TempDir(), "b")}
	ok[*turnstone.BackupReport](t)(backup.Make(t.Context(), o))
	p.Turn(s, "main", treetest.Texts(map[string]string{"/a": "two"})...)
	packs := ok[[]string](t)(filepath.Glob(p.Repo.Dir.Path("store", "blobs", "packs", "*")))
	var blocked []string
	for _, pack := range packs {
		at := filepath.Join(o.To, "store", "blobs", "packs", filepath.Base(pack))
		if _, err := os.Stat(at); errors.Is(err, os.ErrNotExist) {
			check(t, os.MkdirAll(filepath.Join(at, "full"), 0o700))
			blocked = append(blocked, at)
		}
	}
	if _, err := backup.Make(t.Context(), o); err == nil || len(blocked) == 0 {
		t.Fatal("it did not fail")
	}
	for _, at := range blocked {
		check(t, os.RemoveAll(at))
	}
	if _, fsck := restored(t, o.To); fsck.Turns != 1 {
		t.Errorf("%+v", fsck)
	}
	ok[*turnstone.BackupReport](t)(backup.Make(t.Context(), o))
	if _, fsck := restored(t, o.To); fsck.Turns != 2 {
		t.Errorf("%+v", fsck)
	}
}

// TestGCWaits: while a backup holds the store, as Make does, no object is deleted.
func TestGCWaits(t *testing.T) {
	p := repotest.New(t)
	s := p.Session("s")
	p.Turn(s, "main", treetest.Texts(map[string]string{"/a": "one"})...)
	ok[turnstone.Session](t)(p.Repo.RemoveSession(t.Context(), string(s.ID)))
	release := ok[func()](t)(backup.HoldGC(t.Context(), p.Repo.Dir.Path("store")))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) //wait: it is meant to expire
	defer cancel()
	if rep, err := p.Repo.GC(ctx, turnstone.GCRequest{}); err == nil {
		t.Errorf("gc did not wait: %+v", rep)
	}
	release()
	if rep := ok[*turnstone.GCReport](t)(p.Repo.GC(t.Context(), turnstone.GCRequest{})); rep.Store.Objects == 0 {
		t.Errorf("%+v", rep)
	}
}

// TestRefused: a folder with other files is not overwritten, and keys are not kept with the data.
func TestRefused(t *testing.T) {
	p := repotest.New(t)
	full := t.TempDir()
	check(t, os.Chmod(full, 0o700))
	check(t, os.WriteFile(filepath.Join(full, "mine"), nil, 0o600))
	to := filepath.Join(t.TempDir(), "b")
	for _, o := range []backup.Options{{To: full}, {To: p.Repo.Dir.Path("b")},
		{To: filepath.Dir(p.Repo.Dir.Root)}, {To: to, Keys: filepath.Join(to, "k")}, {To: to, Keys: to}} {
		o.Dir = p.Repo.Dir
		if _, err := backup.Make(t.Context(), o); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := os.Stat(filepath.Join(full, "mine")); err != nil {
		t.Error(err)
	}
}
