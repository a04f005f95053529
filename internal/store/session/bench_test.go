package session

import (
	"context"
	"path/filepath"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/pg/pgtest"
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
	for name, place := range map[string]func(b *testing.B) string{
		"sqlite":   func(b *testing.B) string { return b.TempDir() },
		"postgres": func(b *testing.B) string { return pgtest.New(b).URL + "#turn" },
	} {
		b.Run(name, func(b *testing.B) {
			db := open(b, place(b))
			s := must[turnstone.Session](b)(db.Create(b.Context(), "s"))
			for b.Loop() {
				grow(b, db, s, Main)
			}
		})
	}
}
