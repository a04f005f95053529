package backup_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/backup"
	"turnstone.dev/turnstone/internal/statedir"
)

// TestDumpFirst: without a dump of their database, a backup of shared sessions is refused before it
// makes a folder: of the directory's own, of a tenant's, and of settings that name a database.
func TestDumpFirst(t *testing.T) {
	for name, claimed := range map[string]string{"own [1]": ".", "tenant": "tenants/ada", "settings": ""} {
		t.Run(name, func(t *testing.T) {
			dir := &statedir.Dir{Root: filepath.Join(t.TempDir(), name)}
			check(t, os.MkdirAll(dir.Path("tenants", "ada"), 0o700))
			o := backup.Options{Dir: dir, To: filepath.Join(t.TempDir(), "b"), Shared: claimed == ""}
			if claimed != "" {
				note := dir.Path(claimed, "store-s3", "0a", "claimed")
				check(t, os.MkdirAll(filepath.Dir(note), 0o700))
				check(t, os.WriteFile(note, []byte("database-x\n"), 0o600))
			}
			_, err := backup.Make(t.Context(), o)
			if turnstone.KindOf(err) != turnstone.KindInvalid || !strings.Contains(turnstone.HintOf(err), "pg_dump") {
				t.Errorf("%v, hint %s", err, turnstone.HintOf(err))
			}
			if _, err := os.Stat(o.To); err == nil {
				t.Error("the folder was made")
			}
			o.Dumped = true
			if _, err := backup.Make(t.Context(), o); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDumpRecords: the same where a controller's records are in a database, until they are in a file again.
// A restored directory says so, too.
func TestDumpRecords(t *testing.T) {
	dir := &statedir.Dir{Root: t.TempDir()}
	check(t, dir.NoteRecords(false)) // of a new directory
	check(t, dir.NoteRecords(true))
	check(t, dir.NoteRecords(true)) // a restart
	o := backup.Options{Dir: dir, To: filepath.Join(t.TempDir(), "b")}
	refused := func(d *statedir.Dir, shared bool, want string) {
		t.Helper()
		_, err := backup.Make(t.Context(), backup.Options{Dir: d, To: o.To + "2", Shared: shared})
		if turnstone.KindOf(err) != turnstone.KindInvalid || !strings.Contains(err.Error(), want) ||
			!strings.Contains(turnstone.HintOf(err), "pg_dump") {
			t.Errorf("%v, hint %s", err, turnstone.HintOf(err))
		}
		if _, err := os.Stat(o.To + "2"); err == nil {
			t.Error("the folder was made")
		}
	}
	refused(dir, false, "controller's records are")
	refused(dir, true, "sessions and its controller's records")
	o.Dumped = true
	r, err := backup.Make(t.Context(), o)
	check(t, err)
	if len(r.Left) > 0 {
		t.Errorf("not copied: %v", r.Left)
	}
	refused(&statedir.Dir{Root: o.To}, false, "controller's records are")
	check(t, dir.NoteRecords(false))
	o.Dumped = false
	_, err = backup.Make(t.Context(), o)
	check(t, err)
	if is, err := (&statedir.Dir{Root: o.To}).RecordsElsewhere(); is || err != nil {
		t.Errorf("the note stays in the backup: %v %v", is, err)
	}
}

// TestOwnBucket: a bucket of one state directory needs no dump.
func TestOwnBucket(t *testing.T) {
	dir := &statedir.Dir{Root: t.TempDir()}
	note := dir.Path("store-s3", "0a", "claimed")
	check(t, os.MkdirAll(filepath.Dir(note), 0o700))
	check(t, os.WriteFile(note, []byte("abcdef\n"), 0o600))
	_, err := backup.Make(t.Context(), backup.Options{Dir: dir, To: filepath.Join(t.TempDir(), "b")})
	check(t, err)
}
