package records

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
)

// TestPrepared checks that a pool keeps the statements of queries, not too many of them, and that
// each answers as it would alone, also to callers at one time.
func TestPrepared(t *testing.T) {
	db, err := Open(t.Context(), filepath.Join(t.TempDir(), "server.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	number := func(rows *sql.Rows) (n int, err error) { return n, rows.Scan(&n) }
	ask := func(text, add int) error {
		all, err := query(t.Context(), db.reads, number, fmt.Sprintf("SELECT %d + ?", text), add)
		if err == nil && (len(all) != 1 || all[0] != text+add) {
			err = fmt.Errorf("%d + %d is %v", text, add, all)
		}
		return err
	}
	var wg sync.WaitGroup
	for caller := range 8 {
		wg.Go(func() {
			for text := range 2 * maxPrepared {
				if err := ask(text, caller); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := len(db.reads.(*reader).kept); n != maxPrepared {
		t.Errorf("%d statements are kept", n)
	}
	if _, err := query(t.Context(), db.reads, number, "SELECT nothing"); err == nil {
		t.Error("a query that is wrong")
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if err := ask(0, 0); err == nil {
		t.Error("a closed database answers")
	}
}
