package layer_test

import (
	"fmt"
	"testing"

	"turnstone.dev/turnstone/internal/store/layer"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// For any upper directory: no panic, and an accepted tree is readable. Each six bytes of the input
// are an entry of the upper directory.
func FuzzApply(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 1, 1, 1, 0, 0, 0})
	f.Add([]byte{2, 1, 'a', 1, 0, 0, 8, 4, 'b', 0, 0, 0, 16, 2, 'c', 6, 9, 1})
	names := []string{"trusted.overlay.opaque", "trusted.overlay.whiteout",
		"trusted.overlay.redirect", "user.x", "", "user.x", "security.capability",
		"trusted.overlay.origin", "user.\x00"}
	w := treetest.NewStore()
	parent := build(f, w, files(map[string]string{"/a/a/b": "1", "/a/b": "2", "/b/c": "3",
		"/c": "4", "/etc/hosts": "5"}))
	f.Fuzz(func(t *testing.T, in []byte) {
		root := files(nil)
		dirs := []*treetest.Node{root}
		for ; len(in) >= 6; in = in[6:] {
			n := &treetest.Node{A: tree.Attr{Type: tree.Type(in[1] % 8),
				Mode:  uint32(in[3])<<8 | uint32(in[5]),
				MTime: tree.Time{Sec: int64(in[4]) - 9, Nsec: int32(in[4]) << 23}},
				ID: uint64(in[4] % 4), Names: uint32(in[3] % 3)}
			switch n.A.Type {
			case tree.Dir:
				dirs = append(dirs, n)
			case tree.File:
				n.Data = in[:in[5]%5]
				n.A.Size = int64(len(n.Data))
			case tree.Symlink:
				n.A.Target = string(in[:in[5]%5])
			case tree.Char, tree.Block:
				n.A.Major = uint32(in[5]) << (in[4] % 16)
			}
			for i, name := range names {
				if in[3]>>(i%8)&1 == 1 && in[5]%3 == 0 {
					value := "y"
					if name == "trusted.overlay.redirect" {
						value = []string{"a", "b", "/a", "/a/a", "/b", "/c", "/", "/a/.."}[in[4]%8]
					}
					n.AddXattr(name, value)
				}
			}
			d := dirs[int(in[0])%len(dirs)]
			d.Set([]string{"a", "b", "c", "etc", string(in[2:3]), fmt.Sprint(in[2])}[in[0]%6], n)
		}
		ref, _, err := layer.Apply(t.Context(), w, parent, root,
			layer.Options{Skip: skip, Parallel: 1})
		if err != nil {
			return
		}
		if err := tree.Walk(t.Context(), w, ref, "/",
			func(string, *tree.Entry) error { return nil }); err != nil {
			t.Errorf("what was made cannot be read: %v", err)
		}
		if _, err := layer.Digest(t.Context(), w, parent, ref); err != nil {
			t.Error(err)
		}
	})
}
