package turn_test

import (
	"os"
	"path/filepath"
	"testing"
)

// outside returns the path of a file of the host, which a guest would not see, and a function that
// sets its text. It makes two runs of a turn differ.
func outside(t *testing.T) (path string, set func(text string)) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "outside")
	return path, func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
