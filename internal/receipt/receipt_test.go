package receipt

import (
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
)

func parse(t testing.TB, src string) *document.Document {
	t.Helper()
	d, err := document.Parse("test.md", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func ok[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
		}
		return v
	}
}
