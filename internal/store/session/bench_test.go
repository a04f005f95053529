package session

import (
	"context"
	"path/filepath"
	"testing"
	"turnstone.dev/turnstone"
)

func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	db, err := Open(context.Background(), filepath.Join(dir, "context.db"))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	for b.Loop() {
		db, err := Open(context.Background(), filepath.Join(dir, "context.db"))
		if err != nil {
			b.Fatal(err)
		}
		_ = db.Close()
	}
}

func BenchmarkTurn(b *testing.B) {
	db := open(b, b.TempDir())
	s := must[turnstone.Session](b)(db.Create(b.Context(), "s"))
	for b.Loop() {
		grow(b, db, s, Main)
	}
}
