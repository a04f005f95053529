package gvisor

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/erofs/go-erofs"

	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/substratetest"
)

// exit42 returns a program for x86-64 Linux of less than 200 bytes, which is so small that its data
// follows its inode.
func exit42() []byte {
	code := []byte{0xb8, 60, 0, 0, 0, 0xbf, 42, 0, 0, 0, 0x0f, 0x05} // exit(42)
	const base, head = 0x400000, 64 + 56
	var b bytes.Buffer
	b.Write([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	for _, v := range []any{uint16(2), uint16(62), uint32(1), uint64(base + head), uint64(64),
		uint64(0), uint32(0), uint16(64), uint16(56), uint16(1), uint16(0), uint16(0), uint16(0),
		uint32(1), uint32(5), uint64(0), uint64(base), uint64(base), uint64(head + len(code)),
		uint64(head + len(code)), uint64(4096)} {
		_ = binary.Write(&b, binary.LittleEndian, v) // a Buffer accepts everything
	}
	b.Write(code)
	return b.Bytes()
}

// image writes a layer's image.
func image(t *testing.T, fill func(w *erofs.Writer)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	f, err := os.Create(path)
	check(t, err)
	defer func() { _ = f.Close() }()
	w := erofs.Create(f, erofs.WithBuildTime(0, 0), erofs.WithTempDir(filepath.Dir(path)))
	for _, dir := range []string{"/fs", "/context"} {
		check(t, w.Mkdir(dir, 0o755))
	}
	fill(w)
	check(t, w.Close())
	check(t, f.Truncate(substrate.SlotSize))
	return path
}

func write(t *testing.T, w *erofs.Writer, path string, content []byte, mode os.FileMode) {
	t.Helper()
	f, err := w.Create(path)
	check(t, err)
	_, err = f.Write(content)
	check(t, err)
	check(t, f.Close())
	check(t, w.Chmod(path, mode))
}

// TestImages contains features that gVisor's own runsc rejects or misinterprets.
//
//testrun:user
func TestImages(t *testing.T) {
	// cap_net_raw=ep
	const capability = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	big := bytes.Repeat([]byte("0123456789abcdef"), 5000/16)
	h := turntest.Home(t)
	s, m := newSubstrate(t, h), testMachine(t, h)
	lower := image(t, func(w *erofs.Writer) {
		check(t, w.Mkdir("/fs/x", 0o755))
		check(t, w.Mkdir("/fs/x/opaque", 0o755))
		write(t, w, "/fs/x/opaque/hidden", []byte("no\n"), 0o644)
		write(t, w, "/fs/x/gone", []byte("no\n"), 0o644)
	})
	upper := image(t, func(w *erofs.Writer) {
		check(t, w.Mkdir("/fs/x", 0o755))
		check(t, w.Setxattr("/fs/x", "user.folder", "of attributes"))
		check(t, w.Mkdir("/fs/x/opaque", 0o755))
		check(t, w.Setxattr("/fs/x/opaque", "trusted.overlay.opaque", "y"))
		write(t, w, "/fs/x/opaque/seen", []byte("yes\n"), 0o644)
		check(t, w.Mknod("/fs/x/gone", 0o020000, 0))
		write(t, w, "/fs/x/tiny", exit42(), 0o755)
		check(t, w.Setxattr("/fs/x/tiny", "user.a", "one"))
		check(t, w.Setxattr("/fs/x/tiny", "security.capability", capability))
		write(t, w, "/fs/x/big", big, 0o644)
		check(t, w.Setxattr("/fs/x/big", "user.long", strings.Repeat("v", 1000)))
		check(t, w.Mknod("/fs/x/null", 0o020666, 1<<8|3))
		check(t, w.Mknod("/fs/x/disk", 0o060600, 259<<8|1))
	})
	m.Layers = []string{lower, upper}
	_, client := substratetest.Clone(t, s, m, nil)
	// perl calls getxattr(2) and listxattr(2) itself: the template has no program for them.
	const perl = `perl -e '
		sub get { my ($p, $n) = @_; my $b = "\0" x 2000; my $l = syscall(191, $p, $n, $b, 2000); return $l < 0 ? "errno " . ($! + 0) : substr($b, 0, $l) }
		sub list { my ($p) = @_; my $b = "\0" x 2000; my $l = syscall(194, $p, $b, 2000); return join(",", sort split(/\0/, substr($b, 0, $l))) }
		%s'`
	run := func(what, script, want string) {
		t.Helper()
		if got, exit := substratetest.Shell(t, client, script); got != want {
			t.Errorf("%s: %q (exit %d), want %q", what, got, exit.ExitCode, want)
		}
	}
	attributes := func(what, code, want string) {
		t.Helper()
		run(what, strings.Replace(perl, "%s", code, 1), want)
	}
	attributes("of a folder", `print get("/x", "user.folder")`, "of attributes")
	attributes("of a file", `print get("/x/tiny", "user.a"), " ", list("/x/tiny")`,
		"one security.capability,user.a")
	attributes("a long one", `print length(get("/x/big", "user.long"))`, "1000")
	attributes("none of that name", `print get("/x/tiny", "user.b")`, "errno 61")
	attributes("a capability", `print unpack("H*", get("/x/tiny", "security.capability"))`,
		"0100000200200000000000000000000000000000")
	attributes("the overlay's own", `print list("/x/opaque")`, "")
	run("what is opaque, and what is gone", "ls /x/opaque /x/gone 2>&1; true",
		"ls: cannot access '/x/gone': No such file or directory\n/x/opaque:\nseen\n")
	// gVisor's overlay returns a device's number only to callers that request more than type and
	// mode.
	run("devices", "stat -c '%F %t %T %s' /x/null /x/disk",
		"character special file 1 3 0\nblock special file 103 1 0\n")
	run("a small program",
		"/x/tiny; echo $?; cp /x/tiny /tmp/copy; cmp /x/tiny /tmp/copy && /tmp/copy; echo $?",
		"42\n42\n")
	run("a file of two blocks",
		"wc -c < /x/big; tail -c 5 /x/big; md5sum < /x/big | cut -c1-3 >/dev/null", "4992\nbcdef")
	run("attributes are copied up", `touch /x/tiny; /x/tiny; echo $?`, "42\n")
	attributes("after the copy", `print get("/x/tiny", "user.a"), " ", list("/x/tiny")`,
		"one security.capability,user.a")
	run("eight at once",
		`for i in 1 2 3 4 5 6 7 8; do /x/tiny & p="$p $!"; done; for j in $p; do wait $j; `+
			`echo -n "$? "; done`, strings.Repeat("42 ", 8))
}
