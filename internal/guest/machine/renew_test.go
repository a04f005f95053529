package machine

import (
	"testing"
)

func TestRenameIn(t *testing.T) {
	for _, tt := range []struct{ name, hosts, want string }{
		{"as configured", "127.0.0.1\tlocalhost\n127.0.1.1\told\n::1\tlocalhost\n",
			"127.0.0.1\tlocalhost\n127.0.1.1\tnew\n::1\tlocalhost\n"},
		{"with more", "127.0.1.1\told\n192.0.2.1\told.example mine\n",
			"127.0.1.1\tnew\n192.0.2.1\told.example mine\n"},
		{"no last newline", "127.0.1.1\told", "127.0.1.1\tnew"},
		{"changed by its user", "127.0.1.1\told alias\n", "127.0.1.1\told alias\n"},
		{"empty", "", ""},
	} {
		if got := renameIn(tt.hosts, "old", "new"); got != tt.want {
			t.Errorf("%s: %q", tt.name, got)
		}
	}
}
