package treetest

import (
	"fmt"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone/internal/store/tree"
)

// There are few names, so that random trees have many common paths. Some names are awkward: near
// the slash in byte order, not UTF-8, long.
func names() []string {
	return []string{"a", "b", "c", "a-b", "a.b", "a0", "A", " ", "\xff\xfe", "ä", "new\nline",
		strings.Repeat("n", 255), ".hidden", "..."}
}

// Files generates lists of files of all types, with hard links, in an order that NewNode accepts.
func Files() *rapid.Generator[[]File] {
	return rapid.Custom(func(t *rapid.T) []File {
		var files []File
		used := map[string]bool{"/": true}
		dirs := []string{""}
		var plain []string
		for range rapid.IntRange(0, 24).Draw(t, "files") {
			p := rapid.SampledFrom(dirs).Draw(t, "dir") + "/" +
				rapid.SampledFrom(names()).Draw(t, "name")
			if used[p] {
				continue
			}
			used[p] = true
			f := File{Path: p}
			if len(plain) > 0 && rapid.IntRange(0, 7).Draw(t, "link") == 0 {
				f.Link = rapid.SampledFrom(plain).Draw(t, "to")
				files = append(files, f)
				plain = append(plain, p)
				continue
			}
			randomFile(t, &f)
			if f.Type == tree.Dir {
				dirs = append(dirs, p)
			} else {
				plain = append(plain, p)
			}
			files = append(files, f)
		}
		return files
	})
}

func randomFile(t *rapid.T, f *File) {
	f.Type = rapid.SampledFrom([]tree.Type{tree.File, tree.File, tree.File,
		tree.Dir, tree.Dir, tree.Dir,
		tree.Symlink, tree.Char, tree.Block, tree.FIFO}).Draw(t, "type")
	f.Mode = rapid.SampledFrom([]uint32{0o644, 0o755, 0o600, 0o4755, 0o1777,
		0o2770, NoMode}).Draw(t, "mode")
	f.UID = rapid.SampledFrom([]uint32{0, 0, 1000, 1<<32 - 2}).Draw(t, "uid")
	f.GID = rapid.SampledFrom([]uint32{0, 0, 1000, 1<<32 - 2}).Draw(t, "gid")
	f.MTime = rapid.SampledFrom([]int64{0, 1, -1, 1700000000, 1 << 33}).Draw(t, "mtime")
	f.Nsec = rapid.SampledFrom([]int32{0, 1, 999_999_999}).Draw(t, "nsec")
	switch f.Type {
	case tree.File:
		f.Data = rapid.SampledFrom([]string{"", "x", "hello\n", "\x00\x01",
			strings.Repeat("long ", 1000)}).Draw(t, "data")
	case tree.Symlink:
		f.Mode = 0o777
		f.Target = rapid.SampledFrom([]string{"a", "/a/b", "../x", "\xff",
			strings.Repeat("t", 4095)}).Draw(t, "target")
	case tree.Char, tree.Block:
		f.Major = rapid.Uint32Range(0, tree.MaxMajor).Draw(t, "major")
		f.Minor = rapid.Uint32Range(0, tree.MaxMinor).Draw(t, "minor")
	}
	if rapid.IntRange(0, 3).Draw(t, "xattrs") == 0 {
		f.Xattrs = map[string]string{}
		for _, name := range []string{"user.note", "user.z", "security.capability",
			"system.posix_acl_access", "trusted.x"} {
			if rapid.Bool().Draw(t, name) {
				f.Xattrs[name] = rapid.SampledFrom([]string{"", "v", "\x00\xff"}).Draw(t, "value")
			}
		}
	}
}

// Edited generates a modified list of files: some are removed, some changed, some new. It has no
// hard links to removed files.
func Edited(files []File) *rapid.Generator[[]File] {
	return rapid.Custom(func(t *rapid.T) []File {
		out := slices.Clone(files)
		for i := range rapid.IntRange(0, 4).Draw(t, "edits") {
			if len(out) == 0 {
				break
			}
			at := rapid.IntRange(0, len(out)-1).Draw(t, "which")
			f := &out[at]
			switch rapid.IntRange(0, 3).Draw(t, "edit") {
			case 0:
				out = without(out, f.Path)
			case 1:
				if f.Link == "" && f.Type == tree.File {
					f.Data = fmt.Sprintf("edited %d\n", i)
				}
			case 2:
				if f.Link == "" {
					f.Mode = rapid.SampledFrom([]uint32{0o640, 0o700}).Draw(t, "mode")
				}
			case 3:
				p := fmt.Sprintf("/new%d", i)
				out = append(without(out, p), File{Path: p, Data: "new\n"})
			}
		}
		return out
	})
}

// without removes a path and everything below it, and links to removed files.
func without(files []File, p string) []File {
	gone := map[string]bool{}
	var out []File
	for _, f := range files {
		if f.Path == p || strings.HasPrefix(f.Path, p+"/") || gone[f.Link] {
			gone[f.Path] = true
			continue
		}
		out = append(out, f)
	}
	return out
}
