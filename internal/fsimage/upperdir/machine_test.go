package upperdir_test

import (
	"context"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/gvisor"
	"turnstone.dev/turnstone/internal/driver/qemu"
	"turnstone.dev/turnstone/internal/fsimage/ext4"
	"turnstone.dev/turnstone/internal/fsimage/upperdir"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/layer"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/substratetest"
	"turnstone.dev/turnstone/wire"
)

// changes makes changes with special rules in an overlay. The base template has perl.
const changes = `set -e
cd /
rm etc/debconf.conf; rm -r usr/share/common-licenses; rm -r usr/share/base-files; mkdir usr/share/base-files; echo new > usr/share/base-files/new
rm etc/issue; mkdir etc/issue; echo a file was here > etc/issue/x
rm -r etc/skel; echo a directory was here > etc/skel
rm -r usr/share/perl5/Debconf; ln -s nowhere usr/share/perl5/Debconf
chmod 600 etc/shells; chown 1000:70000 etc/environment; chmod 2770 usr/share/man; chown 3000000 media
echo more >> etc/profile; : > etc/motd; touch -d 2001-02-03T04:05:06.789 etc/fstab
ln etc/passwd etc/passwd.link; ln -s /etc/passwd link; mkdir -p a/b/c; echo 1 > a/1; ln a/1 a/b/2; ln a/1 a/b/c/3; echo gone > a/gone; rm a/gone
mv usr/share/debianutils moved; mv a/b d; mv usr/share/libc-bin/nsswitch.conf usr/share/libc-bin/again; rm -r usr/share/libc-bin; mkdir usr/share/libc-bin
mkfifo fifo; mknod chr c 1 3; mknod blk b 7 9; mkdir sticky; chmod 1777 sticky; echo x > 'a name with	blanks'; mkdir -p etc/alternatives
perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Local => "/etc/host.conf.new", Listen => 1) or die; rename "/etc/host.conf.new", "/etc/host.conf" or die'
perl -e 'sub set { my ($p, $n, $v) = @_; syscall(189, $p, $n, $v, length($v), 0) == 0 or die "$p $n: $!" } mkdir "/x"; open F, ">/x/f"; close F;
set("/x/f", "user.a", "1"); set("/x/f", "user.b=c", "x" x 900); set("/x", "user.dir", "2"); set("/etc/shells", "user.lower", "3")'
truncate -s 300M sparse; printf data | dd of=sparse bs=1 seek=200000000 conv=notrunc status=none
head -c 5000000 /dev/zero | tr '\0' z > large; head -c 300000 /dev/zero > zeros
printf 'n%.0s' $(seq 255) > "$(printf 'n%.0s' $(seq 255))"
p=deep; for i in $(seq 60); do p=$p/d$i; done; mkdir -p $p; echo bottom > $p/f
`

// TestInSandboxes: a turn's changes result in the same tree, for any substrate and any way of
// reading.
func TestInSandboxes(t *testing.T) {
	h := turntest.Home(t)
	machine := turntest.Machine(t, h, "base")
	w := objects{treetest.NewStore(), tree.NewHasher()}
	store := template.NewStore(h.Path("templates"))
	tmpl, err := store.Ensure(t.Context(), "base", func(string) {})
	must(t, err)
	parent, err := store.Tree(t.Context(), tmpl, w)
	must(t, err)
	took := map[string]turnstone.TreeRef{}
	for _, s := range substrates(t, h, machine) {
		vm, client := substratetest.Clone(t, s, machine, nil)
		if out, exit := substratetest.Shell(t, client, changes); exit.ExitCode != 0 {
			t.Fatalf("%s: exit %d: %s", s.Name(), exit.ExitCode, out)
		}
		frozen, err := client.StateFreeze(t.Context())
		must(t, err)
		var u *upperdir.Dir
		must(t, client.Export(t.Context(), func(r io.Reader) (err error) {
			u, err = upperdir.Read(t.Context(), r, t.TempDir(),
				upperdir.Options{Bytes: int64(machine.Shape.Disk)})
			return err
		}))
		took[s.Name()] = apply(t, w, parent, u.Root())
		if d, ok := vm.(substrate.Disker); ok {
			took[s.Name()+"'s disk"] = onDisk(t, w, parent, d, frozen, machine.Shape)
		}
		must(t, u.Close())
		must(t, client.StateThaw(t.Context()))
		if out, _ := substratetest.Shell(t, client,
			"echo after > /after; cat /after"); out != "after\n" {
			t.Errorf("%s: after the export: %q", s.Name(), out)
		}
		must(t, vm.Close())
	}
	names := slices.Sorted(maps.Keys(took))
	if len(names) != 3 || took[names[0]].Hash == parent.Hash {
		t.Fatalf("took %v", took)
	}
	for _, name := range names[1:] {
		if took[name].Hash != took[names[0]].Hash {
			t.Errorf("%s and %s differ:\n%s", names[0], name,
				difference(t, w, took[names[0]], took[name]))
		}
	}
}

func substrates(t *testing.T, h *statedir.Dir, m substrate.Machine) []substrate.Substrate {
	t.Helper()
	q, err := qemu.New(t.Context(), h, qemu.Options{Probe: &m})
	must(t, err)
	runsc, err := filepath.Abs("../../../bin/runsc")
	must(t, err)
	g, err := gvisor.New(t.Context(), h, gvisor.Options{Binary: runsc})
	must(t, err)
	return []substrate.Substrate{q, g}
}

func apply(t *testing.T, w tree.Writer, parent turnstone.TreeRef,
	root tree.Node) turnstone.TreeRef {
	t.Helper()
	skip := []string{"/etc/hostname", "/etc/hosts", "/etc/machine-id", "/etc/resolv.conf"}
	ref, _, err := layer.Apply(t.Context(), w, parent, root,
		layer.Options{Skip: func(path string) bool { return slices.Contains(skip, path) }})
	must(t, err)
	return ref
}

func onDisk(t *testing.T, w tree.Writer, parent turnstone.TreeRef, d substrate.Disker,
	frozen *wire.StateFreezeResult, shape turnstone.Shape) turnstone.TreeRef {
	t.Helper()
	f, err := d.Disk()
	must(t, err)
	defer func() { _ = f.Close() }()
	fs, err := ext4.Open(f, int64(shape.Disk))
	must(t, err)
	root, err := fs.Lookup(frozen.Upper)
	must(t, err)
	return apply(t, w, parent, root)
}

// difference lists entries that are in only one tree, ignoring times.
func difference(t *testing.T, r tree.Getter, a, b turnstone.TreeRef) string {
	t.Helper()
	var out strings.Builder
	for c, err := range tree.Diff(t.Context(), r, a, b) {
		must(t, err)
		if c.Old != nil && c.New != nil {
			x := *c.Old
			if x.MTime = c.New.MTime; x.Attr.Equal(&c.New.Attr) && x.Content == c.New.Content {
				continue
			}
		}
		for i, e := range []*tree.Entry{c.Old, c.New} {
			if e != nil {
				line, err := treetest.Line(t.Context(), struct{ tree.Getter }{r}, c.Path, e)
				must(t, err)
				out.WriteString("-+"[i:i+1] + line + "\n")
			}
		}
	}
	return out.String()
}

// objects keeps objects, and only the digests of contents because some are large.
type objects struct {
	*treetest.Store
	contents *tree.Hasher
}

// PutContent implements tree.ContentPutter.
func (o objects) PutContent(ctx context.Context, r io.Reader, size int64) (turnstone.Content,
	error) {
	return o.contents.PutContent(ctx, r, size)
}
