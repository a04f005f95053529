package ext4_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/fsimage/ext4"
)

var le = binary.LittleEndian

// small returns the bytes of a small image with various files.
func small(t testing.TB, options ...string) []byte {
	src := t.TempDir()
	must(t, os.MkdirAll(join(src, "dir", "sub"), 0o755))
	must(t, os.Mkdir(join(src, "other"), 0o755))
	must(t, os.WriteFile(join(src, "file"), bytes.Repeat([]byte("content "), 2000), 0o644))
	must(t, os.WriteFile(join(src, "dir", "second"), bytes.Repeat([]byte("another "), 2000), 0o644))
	must(t, os.Link(join(src, "file"), join(src, "dir", "hard")))
	must(t, os.Symlink("target", join(src, "short")))
	must(t, os.Symlink(strings.Repeat("long", 30), join(src, "long")))
	holesAt(t, join(src, "sparse"))
	if os.Geteuid() == 0 {
		privilegedSmall(t, src)
	}
	path := mkfs(t, 1<<20, append([]string{"-d", src, "-b", "1024", "-N", "64", "-O",
		"^has_journal,^resize_inode,^metadata_csum,uninit_bg"}, options...)...)
	b, err := os.ReadFile(path)
	must(t, err)
	return b
}

func holesAt(t testing.TB, path string) {
	f, err := os.Create(path)
	must(t, err)
	for i := range int64(20) { // more than the four that fit into an inode
		_, err := f.WriteAt([]byte("x"), i*8192)
		must(t, err)
	}
	must(t, f.Close())
}

func privilegedSmall(t testing.TB, dir string) {
	for name, value := range map[string]string{"user.a": "1", "trusted.overlay.opaque": "y",
		"user.large": strings.Repeat("v", 300)} {
		must(t, unix.Lsetxattr(join(dir, "dir"), name, []byte(value), 0))
	}
}

// inodeAt returns the bytes of an inode of an image of small.
func inodeAt(b []byte, ino int) []byte {
	table := int(le.Uint32(b[2*1024+8:])) // the first group's descriptor is in block 2
	size := int(le.Uint16(b[1024+0x58:]))
	return b[table*1024+(ino-1)*size:][:size]
}

// find returns the number of the file at path.
func find(t *testing.T, b []byte, path string) int {
	fs, err := ext4.Open(bytes.NewReader(b), int64(len(b)))
	must(t, err)
	n, err := fs.Lookup(path)
	must(t, err)
	ino, _ := n.Inode()
	return int(ino)
}

// dirBlock returns the only block of a directory.
func dirBlock(t *testing.T, b []byte, path string) []byte {
	extent := inodeAt(b, find(t, b, path))[0x28+12:]
	return b[int(le.Uint32(extent[8:]))*1024:][:1024]
}

// entryOf returns the entry with that name in a directory's block.
func entryOf(t *testing.T, block []byte, name string) []byte {
	for b := block; len(b) > 0; b = b[le.Uint16(b[4:]):] {
		if string(b[8:8+int(b[6])]) == name {
			return b
		}
	}
	t.Fatalf("no entry %q", name)
	return nil
}

// An image that no kernel writes is rejected with a message and in little time.
func TestHostileImages(t *testing.T) {
	image := small(t)
	if _, err := list(t.Context(), image); err != nil {
		t.Fatalf("as it was made: %v", err)
	}
	for _, tc := range []struct {
		name string
		kind turnstone.Kind
		text string
		edit func(t *testing.T, b []byte)
	}{
		{"no magic", turnstone.KindIntegrity, "no ext4",
			func(_ *testing.T, b []byte) { b[1024+0x38] = 0 }},
		{"journal", turnstone.KindInvalid, "requires a replay",
			func(_ *testing.T, b []byte) { b[1024+0x60] |= 4 }},
		{"inline data", turnstone.KindInvalid, "features",
			func(_ *testing.T, b []byte) { b[1024+0x61] |= 0x80 }},
		{"bigalloc", turnstone.KindInvalid, "features",
			func(_ *testing.T, b []byte) { b[1024+0x65] |= 2 }},
		{"huge blocks", turnstone.KindIntegrity, "block size",
			func(_ *testing.T, b []byte) { le.PutUint32(b[1024+0x18:], 31) }},
		{"many blocks", turnstone.KindIntegrity, "do not fit",
			func(_ *testing.T, b []byte) { le.PutUint32(b[1024+4:], 1<<31) }},
		{"no groups", turnstone.KindIntegrity, "groups",
			func(_ *testing.T, b []byte) { le.PutUint32(b[1024+0x20:], 0) }},
		{"tiny inodes", turnstone.KindIntegrity, "inodes of",
			func(_ *testing.T, b []byte) { le.PutUint16(b[1024+0x58:], 4) }},
		{"many inodes", turnstone.KindIntegrity, "inodes in",
			func(_ *testing.T, b []byte) { le.PutUint32(b[1024:], 1<<31) }},
		{"table outside", turnstone.KindIntegrity, "inode table",
			func(_ *testing.T, b []byte) { le.PutUint32(b[2*1024+8:], 1<<30) }},
		{"cycle", turnstone.KindIntegrity, "two names", func(t *testing.T, b []byte) {
			e := entryOf(t, dirBlock(t, b, "/dir"), "sub")
			le.PutUint32(e, uint32(find(t, b, "/dir")))
		}},
		{"root inside", turnstone.KindIntegrity, "two names", func(t *testing.T, b []byte) {
			le.PutUint32(entryOf(t, dirBlock(t, b, "/dir"), "sub"), 2)
		}},
		{"linked directory", turnstone.KindIntegrity, "two names", func(t *testing.T, b []byte) {
			le.PutUint32(entryOf(t, dirBlock(t, b, "/"), "other"), uint32(find(t, b, "/dir/sub")))
		}},
		{"linked file", turnstone.KindIntegrity, "two names", func(t *testing.T, b []byte) {
			le.PutUint32(entryOf(t, dirBlock(t, b, "/"), "file"), uint32(find(t, b, "/sparse")))
		}},
		{"wrong type", turnstone.KindIntegrity, "has the wrong type", func(t *testing.T, b []byte) {
			entryOf(t, dirBlock(t, b, "/"), "file")[7] = 2
		}},
		{"slash", turnstone.KindIntegrity, "has an entry",
			func(t *testing.T, b []byte) { entryOf(t, dirBlock(t, b, "/"), "file")[9] = '/' }},
		{"nul", turnstone.KindIntegrity, "has an entry",
			func(t *testing.T, b []byte) { entryOf(t, dirBlock(t, b, "/"), "file")[9] = 0 }},
		{"dots", turnstone.KindIntegrity, "has an entry", func(t *testing.T, b []byte) {
			copy(entryOf(t, dirBlock(t, b, "/dir"), "sub")[6:], "\x02\x02..")
		}},
		{"same name", turnstone.KindIntegrity, "two entries",
			func(t *testing.T, b []byte) {
				copy(entryOf(t, dirBlock(t, b, "/"), "long")[8:], "file")
			}},
		{"entry of nothing", turnstone.KindIntegrity, "an entry of",
			func(t *testing.T, b []byte) {
				le.PutUint16(entryOf(t, dirBlock(t, b, "/"), "file")[4:], 0)
			}},
		{"entry too long", turnstone.KindIntegrity, "an entry of",
			func(t *testing.T, b []byte) {
				le.PutUint16(entryOf(t, dirBlock(t, b, "/"), "file")[4:], 2000)
			}},
		{"inode outside", turnstone.KindIntegrity, "is referenced",
			func(t *testing.T, b []byte) {
				le.PutUint32(entryOf(t, dirBlock(t, b, "/"), "file"), 1<<31)
			}},
		{"inode of the file system", turnstone.KindIntegrity, "is referenced",
			func(t *testing.T, b []byte) {
				le.PutUint32(entryOf(t, dirBlock(t, b, "/"), "file"), 7)
			}},
		{"free inode", turnstone.KindIntegrity, "and free",
			func(t *testing.T, b []byte) {
				le.PutUint16(inodeAt(b, find(t, b, "/file"))[0x1a:], 0)
			}},
		{"no type", turnstone.KindIntegrity, "mode",
			func(t *testing.T, b []byte) { inodeAt(b, find(t, b, "/file"))[1] = 0 }},
		{"huge file", turnstone.KindExhausted, "holes",
			func(t *testing.T, b []byte) { inodeAt(b, find(t, b, "/file"))[0x6f] = 0x10 }},
		{"negative size", turnstone.KindIntegrity, "size",
			func(t *testing.T, b []byte) { inodeAt(b, find(t, b, "/file"))[0x6f] = 0xff }},
		{"huge directory", turnstone.KindIntegrity, "holes",
			func(t *testing.T, b []byte) { inodeAt(b, find(t, b, "/dir"))[6] = 0x10 }},
		{"shared blocks", turnstone.KindIntegrity, "another file has too",
			func(t *testing.T, b []byte) {
				copy(inodeAt(b, find(t, b, "/dir/second"))[0x28:0x28+60],
					inodeAt(b, find(t, b, "/file"))[0x28:])
			}},
		{"blocks outside", turnstone.KindIntegrity, "has blocks",
			func(t *testing.T, b []byte) {
				le.PutUint32(inodeAt(b, find(t, b, "/file"))[0x28+20:], 1<<20)
			}},
		{"blocks of the file system", turnstone.KindIntegrity, "the file system itself",
			func(t *testing.T, b []byte) {
				le.PutUint32(inodeAt(b, find(t, b, "/file"))[0x28+20:], 2)
			}},
		{"deep tree", turnstone.KindIntegrity, "extent tree",
			func(t *testing.T, b []byte) { inodeAt(b, find(t, b, "/file"))[0x28+6] = 6 }},
		{"tree of itself", turnstone.KindIntegrity, "extent tree", func(t *testing.T, b []byte) {
			// The block of the tree becomes an index of the same depth that names itself.
			root := inodeAt(b, find(t, b, "/sparse"))[0x28:]
			block := le.Uint32(root[16:])
			copy(b[block*1024:], root[:60])
		}},
		{"many entries", turnstone.KindIntegrity, "extent tree",
			func(t *testing.T, b []byte) { inodeAt(b, find(t, b, "/file"))[0x28+2] = 5 }},
		{"extent of nothing", turnstone.KindIntegrity, "overlapping",
			func(t *testing.T, b []byte) {
				le.PutUint16(inodeAt(b, find(t, b, "/file"))[0x28+16:], 0)
			}},
		{"time", turnstone.KindIntegrity, "nanoseconds",
			func(t *testing.T, b []byte) {
				le.PutUint32(inodeAt(b, find(t, b, "/file"))[0x88:], 0xffffffff)
			}},
		{"more bytes", turnstone.KindIntegrity, "more bytes",
			func(t *testing.T, b []byte) {
				le.PutUint16(inodeAt(b, find(t, b, "/file"))[0x80:], 0xfffc)
			}},
		{"attribute block outside", turnstone.KindIntegrity, "attributes in block",
			func(t *testing.T, b []byte) {
				le.PutUint32(inodeAt(b, find(t, b, "/file"))[0x68:], 1<<30)
			}},
		{"attribute block of something", turnstone.KindIntegrity, "has other content",
			func(t *testing.T, b []byte) {
				le.PutUint32(inodeAt(b, find(t, b, "/file"))[0x68:], 3)
			}},
		{"target of nothing", turnstone.KindIntegrity, "target",
			func(t *testing.T, b []byte) { le.PutUint32(inodeAt(b, find(t, b, "/short"))[4:], 0) }},
		{"target with a NUL", turnstone.KindIntegrity, "NUL",
			func(t *testing.T, b []byte) {
				le.PutUint32(inodeAt(b, find(t, b, "/short"))[4:], 30)
			}},
		{"huge target", turnstone.KindIntegrity, "target",
			func(t *testing.T, b []byte) {
				le.PutUint32(inodeAt(b, find(t, b, "/long"))[4:], 1<<30)
			}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := bytes.Clone(image)
			tc.edit(t, b)
			began := time.Now()
			_, err := list(t.Context(), b)
			if err == nil || turnstone.KindOf(err) != tc.kind ||
				!strings.Contains(err.Error(), tc.text) || turnstone.HintOf(err) == "" {
				t.Errorf("error %q of kind %s (hint %q), want %s with %q", err,
					turnstone.KindOf(err), turnstone.HintOf(err), tc.kind, tc.text)
			}
			if took := time.Since(began); took > 2*time.Minute {
				t.Errorf("it took %s", took)
			}
		})
	}
}

func list(ctx context.Context, b []byte) ([]line, error) {
	fs, err := ext4.Open(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return nil, err
	}
	return imageLines(ctx, fs)
}

func TestCutOffImage(t *testing.T) {
	b := small(t)
	for _, size := range []int{0, 100, 1500, 2048, 2050, 4096, 60000} {
		if _, err := ext4.Open(bytes.NewReader(b[:size]), int64(size)); err == nil {
			t.Errorf("an image of %d bytes opens", size)
		}
		// The caller's size may be wrong.
		fs, err := ext4.Open(bytes.NewReader(b[:size]), int64(len(b)))
		if err != nil {
			continue
		}
		if _, err := imageLines(t.Context(), fs); err == nil {
			t.Errorf("an image that ends after %d bytes is read", size)
		}
	}
}

func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := list(ctx, small(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestLookup(t *testing.T) {
	b := small(t)
	fs, err := ext4.Open(bytes.NewReader(b), int64(len(b)))
	must(t, err)
	a, err := fs.Lookup("dir/hard")
	must(t, err)
	other, err := fs.Lookup("/file")
	must(t, err)
	x, names := a.Inode()
	if y, _ := other.Inode(); x != y || names != 2 {
		t.Errorf("inodes %d and %d with %d names", x, y, names)
	}
	for range 2 { // a second read is not a second claim
		f, err := a.OpenFile()
		must(t, err)
		got := make([]byte, 16)
		if n, err := f.ReadAt(got, f.Size()-10); n != 10 || err != io.EOF ||
			string(got[:n]) != "t content " {
			t.Errorf("read %q, %v", got[:n], err)
		}
	}
	for _, path := range []string{"nothing", "file/below", "dir/sub/x"} {
		if _, err := fs.Lookup(path); turnstone.KindOf(err) != turnstone.KindNotFound {
			t.Errorf("%s: %v", path, err)
		}
	}
	if n, err := fs.Lookup("short"); err != nil {
		t.Error(err)
	} else if _, err := n.Open(); err == nil {
		t.Error("a link opens as a file")
	}
}

func TestBounds(t *testing.T) {
	b := small(t)
	for _, opts := range []ext4.Options{{Holes: 1000}, {Entries: 3}} {
		fs, err := ext4.OpenOptions(bytes.NewReader(b), int64(len(b)), opts)
		must(t, err)
		if _, err := imageLines(t.Context(),
			fs); turnstone.KindOf(err) != turnstone.KindExhausted || turnstone.HintOf(err) == "" {
			t.Errorf("%+v: %v", opts, err)
		}
	}
}

// For any image: no panic, and termination. The input changes a real image at offsets that the
// first bytes choose, mostly in metadata of files.
func FuzzImage(f *testing.F) {
	images := [][]byte{small(f), small(f, "-O", "^extent,^64bit")}
	f.Add([]byte{0, 0, 0, 0, 1})
	f.Add([]byte{1, 1, 3, 0, 0xff, 0, 2, 40, 8, 9})
	f.Fuzz(func(t *testing.T, edits []byte) {
		if len(edits) == 0 {
			return
		}
		b := bytes.Clone(images[int(edits[0])%len(images)])
		for e := edits[1:]; len(e) >= 4; e = e[4:] {
			place := int(le.Uint16(e[1:]))
			switch e[0] % 4 {
			case 0: // the superblock and the descriptors
				b[1024+place%2048] = e[3]
			case 1: // an inode
				table := int(le.Uint32(images[int(edits[0])%len(images)][2*1024+8:])) * 1024
				b[table+place%(40*256)] = e[3]
			default: // anywhere in the used part
				b[(place<<2|int(e[0]>>6))%(256<<10)] = e[3]
			}
		}
		fs, err := ext4.OpenOptions(bytes.NewReader(b), int64(len(b)),
			ext4.Options{Holes: 64 << 20})
		if err != nil {
			return
		}
		_, _ = imageLines(t.Context(), fs)
		for _, path := range []string{"dir/hard", "sparse", "dir/sub", "long"} {
			if n, err := fs.Lookup(path); err == nil {
				_, _ = n.Attr()
			}
		}
	})
}
