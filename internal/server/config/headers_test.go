package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestReadHeaders: headers are read, and errors do not repeat what is in the file.
func TestReadHeaders(t *testing.T) {
	path := filepath.Join(t.TempDir(), "headers")
	for text, want := range map[string]map[string]string{
		"":           {},
		"# none\n\n": {},
		"Authorization: Bearer a:b\nx-k:  v \r\n": {"Authorization": "Bearer a:b", "X-K": "v"},
		"secret":                                 nil,
		"sec ret: 1":                             nil,
		"K: a\x00secret":                         nil,
		"K: " + strings.Repeat("secret", 20_000): nil,
	} {
		check(t, os.WriteFile(path, []byte(text), 0o600))
		got, err := Telemetry{Headers: path}.ReadHeaders()
		if want == nil {
			if err == nil || strings.Contains(err.Error(), "secret") {
				t.Errorf("%.40q: %v", text, err)
			}
		} else if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	if all, err := (Telemetry{}).ReadHeaders(); all != nil || err != nil {
		t.Errorf("without a file: %v, %v", all, err)
	}
}
