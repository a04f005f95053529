package records

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestPasswords: the password of the URL's user comes from the file.
func TestPasswords(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pass words")
	err := os.WriteFile(file, []byte("db:5432:*:other:no\ndb:5432:turn:me:secret\n"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]string{
		"postgres://me@db/turn": "secret", "postgres://me@db:5432/turn?sslmode=disable": "secret",
		"postgres://me@elsewhere/turn": ""} {
		c, err := pgx.ParseConfig(withPasswords(at, file))
		if err != nil || c.Password != want || c.User != "me" || c.Database != "turn" {
			t.Errorf("%s: %+v: %v", at, c, err)
		}
	}
	const at = "postgres://me@db/turn?sslmode=disable"
	if withPasswords(at, "") != at {
		t.Error("a URL without a file is changed")
	}
}
