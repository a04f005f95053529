package ext4_test

import (
	"fmt"
	"io"
	"os"
	"testing"

	"turnstone.dev/turnstone/internal/fsimage/ext4"
)

// BenchmarkSmallFiles lists an image of 20,000 small files and reads all of them, with a single
// goroutine.
func BenchmarkSmallFiles(b *testing.B) {
	src := b.TempDir()
	for i := range 20_000 {
		dir := fmt.Sprintf("%s/%d", src, i/50)
		must(b, os.MkdirAll(dir, 0o755))
		must(b, os.WriteFile(fmt.Sprintf("%s/%d.go", dir, i), make([]byte, i%9000), 0o644))
	}
	path := mkfs(b, 1<<30, append([]string{"-d", src}, scratchOptions...)...)
	f, err := os.Open(path)
	must(b, err)
	defer func() { _ = f.Close() }()
	buf := make([]byte, 64<<10)
	for b.Loop() {
		fs, err := ext4.Open(f, 1<<30)
		must(b, err)
		root, err := fs.Root()
		must(b, err)
		files, size := 0, int64(0)
		var walk func(n *ext4.Inode)
		walk = func(n *ext4.Inode) {
			children, err := n.Children(b.Context())
			must(b, err)
			for _, c := range children {
				in := c.Node.(*ext4.Inode)
				a, err := in.Attr()
				must(b, err)
				if a.Type == 1 {
					walk(in)
					continue
				}
				r, err := in.OpenFile()
				must(b, err)
				got, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, buf)
				must(b, err)
				files, size = files+1, size+got
			}
		}
		walk(root)
		if files != 20_000 {
			b.Fatal(files)
		}
		b.SetBytes(size)
	}
}
