package machine

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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

func TestReadBounded(t *testing.T) {
	const limit = 10_000
	path := filepath.Join(t.TempDir(), "hosts")
	for _, size := range []int{0, 1, 4095, 4096, 4097, limit, limit + 1, 5 * limit} {
		text := strings.Repeat("0123456789abcde\n", size/16+1)[:size]
		mustDo(t, os.WriteFile(path, []byte(text), 0o600))
		b, err := readBounded(path, limit)
		if size > limit {
			if err == nil {
				t.Errorf("%d bytes are read", size)
			}
			continue
		}
		if err != nil || string(b) != text {
			t.Errorf("%d bytes of %d, %v", len(b), size, err)
		}
	}
	mustDo(t, os.Symlink(path, path+".link"))
	if _, err := readBounded(path+".link", limit); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link: %v", err)
	}
}
