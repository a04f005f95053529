package trace

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestOtherUser: a step of another user is traced too, and cannot detect it.
func TestOtherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	dir, err := os.MkdirTemp("", "trace")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s.sh")
	err = errors.Join(os.Chmod(dir, 0o755), os.WriteFile(path,
		[]byte("id -u; tr '\\0' '\\n' </proc/$$/environ; ls /proc/self/fd\n"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	nobody := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	plain := runAs(t, nil, dir, nobody, baseEnv(dir), path)
	res := runAs(t, newTracer(t), dir, nobody, baseEnv(dir), path)
	if res.stdout != plain.stdout || res.stderr != plain.stderr ||
		!strings.HasPrefix(res.stdout, "65534\n") {
		t.Errorf("plain %q %q, traced %q %q", plain.stdout, plain.stderr, res.stdout, res.stderr)
	}
	if res.report.Untraced != "" || len(res.report.Records) != 3 || res.report.State == nil {
		t.Errorf("%+v", res.report)
	}
}

// TestHostile: a step that finds its trace's memory can falsify it, but neither truncate it nor
// harm the reader.
func TestHostile(t *testing.T) {
	res := tracedAnyhow(t, `for f in /proc/$$/map_files/*; do
	case $(readlink "$f" 2>/dev/null) in "/memfd:turnstone-trace "*) m=$f;; esac
done
[ -n "$m" ] || exit 9
if : 2>/dev/null > "$m"; then echo "it was cut off"; fi
dd if=/dev/urandom of="$m" bs=1M count=7 conv=notrunc 2>/dev/null || exit 8
for i in 1 2 3; do echo "$i" | cat; (exit 2); done
echo end
`)
	if res.exit == 9 {
		t.Skip("this user cannot open the memory")
	}
	if res.exit != 0 || res.stdout != "1\n2\n3\nend\n" {
		t.Errorf("exit %d, %q, %q", res.exit, res.stdout, res.stderr)
	}
	if len(res.report.Records) > MaxRecords || res.report.Untraced == "" {
		t.Errorf("%d records, %q", len(res.report.Records), res.report.Untraced)
	}
}

// TestOtherProgram: a program other than bash is not changed and keeps nothing.
func TestOtherProgram(t *testing.T) {
	dir := t.TempDir()
	tr := newTracer(t)
	rec, err := tr.Record(baseEnv(dir))
	if err != nil {
		t.Fatal(err)
	}
	out, err := startWith(rec, "/bin/sh", "-c", "env; ls /proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out, "LD_PRELOAD") || strings.Contains(out, "\n4\n") {
		t.Errorf("left behind: %s", out)
	}
	rep := rec.Finish(0)
	if !strings.Contains(rep.Untraced, "not bash") || len(rep.Records) != 0 {
		t.Errorf("%+v", rep)
	}
}

// TestDescriptors: neither side keeps a descriptor.
func TestDescriptors(t *testing.T) {
	before := countFDs(t)
	for range 5 {
		tr, err := New()
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		path := filepath.Join(dir, "s.sh")
		if err := os.WriteFile(path, []byte("echo a; (exit 3)"), 0o644); err != nil {
			t.Fatal(err)
		}
		runScript(t, tr, dir, baseEnv(dir), path)
		rec, err := tr.Record(nil) // never started
		if err != nil {
			t.Fatal(err)
		}
		rec.Finish(0)
		tr.Close()
	}
	if after := countFDs(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func countFDs(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}
