package syntax

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A realScript is a shell script found on this machine.
type realScript struct {
	path string
	src  []byte
	sh   bool // its first line names sh
}

// realScripts returns the system's shell scripts, up to limit.
func realScripts(limit int) []realScript {
	var out []realScript
	for _, dir := range []string{"/usr/bin", "/usr/sbin", "/etc/init.d", "/var/lib/dpkg/info",
		"/usr/share", "/usr/lib"} {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || len(out) >= limit || !d.Type().IsRegular() {
				return nil
			}
			info, err := d.Info()
			if err != nil || info.Size() < 16 || info.Size() > 1<<20 {
				return nil
			}
			if s, ok := readScript(path); ok {
				out = append(out, s)
			}
			return nil
		})
	}
	return out
}

func readScript(path string) (realScript, bool) {
	f, err := os.Open(path)
	if err != nil {
		return realScript{}, false
	}
	defer f.Close()
	head := make([]byte, 64)
	n, _ := f.Read(head)
	line, _, _ := bytes.Cut(head[:n], []byte("\n"))
	if !bytes.HasPrefix(line, []byte("#!")) {
		return realScript{}, false
	}
	fields := strings.Fields(strings.TrimPrefix(string(line), "#!"))
	if len(fields) > 0 && filepath.Base(fields[0]) == "env" {
		fields = fields[1:]
	}
	if len(fields) == 0 {
		return realScript{}, false
	}
	shell := filepath.Base(fields[0])
	if shell != "sh" && shell != "bash" && shell != "dash" {
		return realScript{}, false
	}
	src, err := os.ReadFile(path)
	return realScript{path: path, src: src, sh: shell != "bash"}, err == nil
}

// BenchmarkParse parses real scripts and reports MB/s.
func BenchmarkParse(b *testing.B) {
	scripts := realScripts(500)
	if len(scripts) < 50 {
		b.Skip("too few shell scripts on this machine")
	}
	var size int64
	for _, s := range scripts {
		size += int64(len(s.src))
	}
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		for _, s := range scripts {
			Parse(s.src)
		}
	}
}

// BenchmarkParseEmbedded is the worst case in ordinary use: nearly all of the script is Python.
func BenchmarkParseEmbedded(b *testing.B) {
	src := []byte("python3 - <<'EOF'\n" +
		strings.Repeat("def f(a, b):\n    return [x * a for x in range(b) if x % 3]\n\n", 500) +
		"EOF\n")
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		Parse(src)
	}
}

// BenchmarkParseShort is a step of a few lines.
func BenchmarkParseShort(b *testing.B) {
	src := []byte("set -euo pipefail\ncd /workspace\ncurl -sf https://example.org/a.json | jq " +
		"'.items[] | .name' > names\nwc -l names\n")
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		Parse(src)
	}
}
