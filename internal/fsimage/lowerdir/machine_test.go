package lowerdir

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/qemu"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/substrate/substratetest"
	"turnstone.dev/turnstone/wire"
)

// listScript lists everything below /t, in fields that end with a NUL byte; the base template has
// find and perl, and no getfattr.
const listScript = `set -e
find /t -printf 'F\0/%P\0%y\0%m\0%U\0%G\0%T@\0%s\0%l\0%D:%i\0'
find /t -type f -exec sha256sum -z {} + | perl -0ne 's/^(\S+)  (.*)\0$/S\0$2\0$1\0/s; print'
find /t \( -type b -o -type c \) -exec stat --printf 'D\0%n\0%t\0%T\0' {} +
find /t \! -type l -print0 | perl -0ne 'chomp; my $p = $_; my $l = "\0" x 65536; my $n = syscall(194, $p, $l, 65536); next if $n <= 0;
for my $name (split /\0/, substr($l, 0, $n)) { next if $name =~ /^(system|trusted)\./; my $v = "\0" x 65536; my $nul = "$name"; my $m = syscall(191, $p, $nul, $v, 65536); print "X\0$p\0$name\0", unpack("H*", substr($v, 0, $m)), "\0" }'
`

// TestInTheGuest stacks images under a real kernel's overlay and compares a process's view with the
// tree that the images were written from.
func TestInTheGuest(t *testing.T) {
	h := turntest.Home(t)
	machine := turntest.Machine(t, h, "base")
	s, err := qemu.New(t.Context(), h, qemu.Options{Probe: &machine})
	if err != nil {
		t.Fatal(err)
	}
	m := treetest.NewStore()
	last := everything()
	last.children["capable"].attr.UID = 7
	first := last.clone(map[*model]*model{})
	delete(first.children, "old")
	first.children["link"] = dirModel(0o755, map[string]*model{"gone": fileModel("gone")})
	first.children["empty"].children["gone"] = fileModel("gone")
	first.children["sub"].children["b"] = fileModel("not linked yet")
	first.children["future"].attr.Mode = 0o500
	second := last.clone(map[*model]*model{})
	second.children["gone"] = fileModel("gone")
	second.children["empty"] = fileModel("a file for a turn")
	delete(second.children, "deep")
	c := New(filepath.Join(t.TempDir(), "images"), m, Options{})
	var items []Item
	for i, state := range []*model{first, second, last} {
		etc := dirModel(0o700, nil)
		etc.attr.MTime = tree.Time{Sec: 1_600_000_000, Nsec: 500_000_000}
		root := dirModel(0o751, map[string]*model{"t": state, "etc": etc})
		root.attr.UID, root.attr.Xattrs = 3,
			[]tree.Xattr{{Name: "user.root", Value: []byte("kept")}}
		items = append([]Item{{Key: turnstone.DigestBytes([]byte{byte(i)}), Number: i + 1,
			Tree: root.put(t, m), Line: fmt.Sprintf("turn %d", i+1),
			Context: contextOf(i + 1)}}, items...)
		paths, release, err := c.Stack(t.Context(), turnstone.TreeRef{}, historyOf(items))
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		machine.Layers = paths
	}
	if len(machine.Layers) != 3 {
		t.Fatalf("layers: %q", machine.Layers)
	}
	network := wire.SandboxNetwork{Address: network.GuestAddress, Gateway: network.Gateway,
		DNS: []string{network.DNS}}
	_, client := substratetest.Clone(t, s, machine, &network)
	out, exit := substratetest.Shell(t, client, listScript)
	if exit.ExitCode != 0 {
		t.Fatalf("exit %d: %.2000q", exit.ExitCode, out)
	}
	compare(t, parseListing(t, out), last)
	out, _ = substratetest.Shell(t, client,
		"cat /context/index.md /context/turns/*/receipt.md; ls -d /usr/bin/env; stat -c '%a %u "+
			"%.1Y' / /etc; perl -e 'my $v = \" \" x 9; my $n = \"user.root\"; my $p = \"/\"; print "+
			"substr($v, 0, syscall(191, $p, $n, $v, 9)), \"\\n\"'")
	if want := "- turn 3\n- turn 2\n- turn 1\nreceipt 1\nreceipt 2\nreceipt 3\n/usr/bin/env\n751 " +
		"3 1700000000.0\n700 0 1600000000.5\nkept\n"; !strings.HasSuffix(out, want) {
		t.Errorf("/context: %q", out)
	}
}

// A file larger than 4 GiB is complete, and its zeros use no space.
func TestLargeFileInTheGuest(t *testing.T) {
	h := turntest.Home(t)
	machine := turntest.Machine(t, h, "base")
	s, err := qemu.New(t.Context(), h, qemu.Options{Probe: &machine})
	if err != nil {
		t.Fatal(err)
	}
	const zeros, end = 5 << 30, "the end"
	m := ending{treetest.NewStore(), zeros, end}
	file := &model{attr: tree.Attr{Type: tree.File, Mode: 0o644, Size: zeros + int64(len(end))},
		digest: "of the ending"}
	f := writeDifference(t, m, turnstone.TreeRef{}, dirModel(0o755,
		map[string]*model{"big": file}).put(t, m))
	if st, err := f.Stat(); err != nil || onDisk(st) > 1<<20 {
		t.Errorf("it takes up %d bytes, %v", onDisk(st), err)
	}
	machine.Layers = []string{f.Name()}
	_, client := substratetest.Clone(t, s, machine, nil)
	if out, _ := substratetest.Shell(t, client,
		"stat -c %s /big; tail -c 7 /big; head -c 4 /big | od -An -tx1"); out != fmt.Sprintf(
		"%d\nthe end 00 00 00 00\n", zeros+7) {
		t.Errorf("got %q", out)
	}
}

// ending has a single content: many zeros and a text.
type ending struct {
	*treetest.Store
	zeros int64
	text  string
}

func (e ending) PutContent(context.Context, io.Reader, int64) (turnstone.Content, error) {
	return turnstone.Content{Digest: turnstone.DigestBytes([]byte("ending")),
		Size: e.zeros + int64(len(e.text))}, nil
}

func (e ending) OpenContent(context.Context, turnstone.Content) (io.ReadCloser, error) {
	return io.NopCloser(io.MultiReader(io.LimitReader(zeroReader{}, e.zeros),
		strings.NewReader(e.text))), nil
}

type zeroReader struct{}

func (zeroReader) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

func contextOf(n int) func(context.Context) ([]File, error) {
	return func(context.Context) ([]File, error) {
		return []File{{Path: fmt.Sprintf("turns/%d/receipt.md", n),
			Data: fmt.Appendf(nil, "receipt %d\n", n)}}, nil
	}
}

func historyOf(items []Item) History {
	return func(yield func(Item, error) bool) {
		for _, item := range items {
			if !yield(item, nil) {
				return
			}
		}
	}
}

// parseListing converts the output of listScript to a model.
func parseListing(t *testing.T, out string) *model {
	t.Helper()
	fields := strings.Split(out, "\x00")
	number := func(s string, base int) int64 { return parseNumber(t, s, base) }
	byPath, byInode := map[string]*model{}, map[string]*model{}
	digests := map[*model]string{}
	types := map[string]tree.Type{"d": tree.Dir, "f": tree.File, "l": tree.Symlink, "c": tree.Char,
		"b": tree.Block, "p": tree.FIFO}
	for len(fields) > 1 {
		switch fields[0] {
		case "F":
			sec, frac, _ := strings.Cut(fields[6], ".")
			m := &model{attr: tree.Attr{Type: types[fields[2]], Mode: uint32(number(fields[3], 8)),
				UID: uint32(number(fields[4], 10)), GID: uint32(number(fields[5], 10)),
				MTime:  tree.Time{Sec: number(sec, 10), Nsec: int32(number(frac[:9], 10))},
				Target: fields[8]}}
			path := strings.TrimSuffix(fields[1], "/")
			if m.attr.Type == tree.Dir {
				m.children = map[string]*model{}
			} else if other := byInode[fields[9]]; other != nil {
				m = other
			}
			if m.attr.Type == tree.File {
				m.attr.Size = number(fields[7], 10)
			}
			byInode[fields[9]], byPath[path] = m, m
			if i := strings.LastIndexByte(path, '/'); i >= 0 {
				byPath[path[:i]].children[path[i+1:]] = m
			}
			fields = fields[10:]
		case "S":
			digests[byPath[strings.TrimPrefix(fields[1], "/t")]] = fields[2]
			fields = fields[3:]
		case "D":
			m := byPath[strings.TrimPrefix(fields[1], "/t")]
			m.attr.Major, m.attr.Minor = uint32(number(fields[2], 16)),
				uint32(number(fields[3], 16))
			fields = fields[4:]
		case "X":
			m := byPath[strings.TrimPrefix(fields[1], "/t")]
			value, err := hex.DecodeString(fields[3])
			if err != nil {
				t.Fatal(err)
			}
			has := func(x tree.Xattr) bool { return x.Name == fields[2] }
			if !slices.ContainsFunc(m.attr.Xattrs, has) { // it may have several names
				m.attr.Xattrs = append(m.attr.Xattrs, tree.Xattr{Name: fields[2], Value: value})
				slices.SortFunc(m.attr.Xattrs, func(a, b tree.Xattr) int {
					return strings.Compare(a.Name, b.Name)
				})
			}
			fields = fields[4:]
		default:
			t.Fatalf("unexpected: %.200q", fields[0])
		}
	}
	for m, digest := range digests {
		m.digest = digest
	}
	return byPath[""]
}

func parseNumber(t *testing.T, s string, base int) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s, base, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
