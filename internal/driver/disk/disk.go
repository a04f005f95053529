// Package disk creates the disks of drivers' machines: empty ext4 file systems, and copies of files
// that keep their holes.
package disk

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/sparse"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/subprocess"
	"turnstone.dev/turnstone/substrate"
)

// Blank returns the path of an empty ext4 file system of the given size, created once by mke2fs and
// stored in h's cache for all substrates. It has no journal, because it does not outlive the
// sandbox, and no reserved blocks, because the guest's processes are all root. Its inode tables are
// not written (uninit_bg): the file uses some 100 KiB, whatever its size. op is the caller's
// operation, for its errors.
func Blank(ctx context.Context, op turnstone.Op, h *statedir.Dir,
	size turnstone.Bytes) (string, error) {
	dir, err := h.MkdirAll("cache")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, fmt.Sprintf("scratch-v2-%d.ext4", int64(size)))
	if st, err := os.Stat(path); err == nil && st.Size() == int64(size) {
		return path, nil
	}
	return create(ctx, op, path, size)
}

// Fixed is Blank for deterministic machines: everyone who calls the same mke2fs gets the same
// bytes, with the same seed for the order of directories.
func Fixed(ctx context.Context, op turnstone.Op, h *statedir.Dir,
	size turnstone.Bytes) (string, error) {
	dir, err := h.MkdirAll("cache")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, fmt.Sprintf("fixed-v1-%d.ext4", int64(size)))
	if st, err := os.Stat(path); err == nil && st.Size() == int64(size) {
		return path, nil
	}
	const id = "7475726e-7374-6f6e-6500-000000000001" // "turnstone" and a number
	return create(ctx, op, path, size, "-U", id, "-E", "hash_seed="+id+
		",lazy_itable_init=1,nodiscard,root_owner=0:0")
}

// create writes an empty file system of the given size to path, with args for mke2fs.
func create(ctx context.Context, op turnstone.Op, path string, size turnstone.Bytes,
	args ...string) (string, error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".scratch-*")
	if err != nil {
		return "", err
	}
	defer func() { _, _ = tmp.Close(), os.Remove(tmp.Name()) }()
	if err := tmp.Truncate(int64(size)); err != nil {
		return "", err
	}
	args = append(args, "-b", "4096", "-i", "8192", "-O",
		"^has_journal,^resize_inode,^metadata_csum,uninit_bg,sparse_super2")
	if err := format(ctx, op, tmp.Name(), args...); err != nil {
		return "", err
	}
	return path, os.Rename(tmp.Name(), path)
}

// format creates an ext4 file system in the file at path, with args for mke2fs. Without mke2fs, the
// error is of kind Unavailable and has a hint.
func format(ctx context.Context, op turnstone.Op, path string, args ...string) error {
	program, err := host.FindSystem("mke2fs")
	if err != nil {
		return turnstone.NewError(op, turnstone.KindUnavailable, "mke2fs", err).
			WithHint("install mke2fs: sudo apt-get install e2fsprogs")
	}
	args = append([]string{"-q", "-F", "-t", "ext4", "-m", "0", "-E",
		"lazy_itable_init=1,nodiscard,root_owner=0:0"}, args...)
	cmd := exec.Command(program, append(args, path)...)
	// The last is the time in the superblock (lib/ext2fs/initialize.c of e2fsprogs).
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C",
		"E2FSPROGS_FAKE_TIME=1767225600"}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := subprocess.Run(ctx, cmd, subprocess.Options{}); err != nil {
		return fmt.Errorf("mke2fs: %w: %s", err, strings.TrimSpace(out.String()))
	}
	return nil
}

// OpenSlot opens the image at path for a machine's slot. The image must have exactly
// substrate.SlotSize bytes, because the guest reads the size of its disk at its boot. op is the
// caller's operation, for its errors, which are of kind Integrity.
func OpenSlot(op turnstone.Op, path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, flag, 0)
	if err == nil {
		if err = checkSlot(f); err != nil {
			_ = f.Close()
		}
	}
	if err != nil {
		return nil, turnstone.NewError(op, turnstone.KindIntegrity, path, err).
			WithHint("remove the image")
	}
	return f, nil
}

func checkSlot(f *os.File) error {
	st, err := f.Stat()
	if err == nil && (!st.Mode().IsRegular() || st.Size() != substrate.SlotSize) {
		err = fmt.Errorf("it is not a file of %d bytes", substrate.SlotSize)
	}
	return err
}

// OpenLayers opens the images at paths for a machine's layer slots, as OpenSlot does. More images
// than slots are an error of kind Invalid.
func OpenLayers(op turnstone.Op, paths []string) (layers []*os.File, err error) {
	if len(paths) > substrate.MaxLayers {
		return nil, turnstone.Errorf(op, turnstone.KindInvalid, "layers",
			"there are %d, and a machine takes %d", len(paths), substrate.MaxLayers)
	}
	for _, path := range paths {
		f, err := OpenSlot(op, path, os.O_RDONLY)
		if err != nil {
			for _, f := range layers {
				_ = f.Close()
			}
			return nil, err
		}
		layers = append(layers, f)
	}
	return layers, nil
}

// Clone copies src to dst, which is empty: it shares blocks if the file system can
// (ioctl_ficlone(2)), else it copies everything except the holes.
func Clone(ctx context.Context, dst, src *os.File) error {
	if unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())) == nil {
		return nil
	}
	return CopySparse(ctx, dst, src)
}

// CopySparse copies src to dst, which is empty, and preserves holes.
func CopySparse(ctx context.Context, dst, src *os.File) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	st, err := src.Stat()
	if err != nil {
		return err
	}
	if err := dst.Truncate(st.Size()); err != nil {
		return err
	}
	return Overlay(ctx, dst, src, st.Size())
}

// Overlay copies everything except the holes in the first limit bytes of src over dst.
func Overlay(ctx context.Context, dst, src *os.File, limit int64) error {
	const part = 16 << 20
	for off := int64(0); ; {
		data, hole, err := sparse.Next(src, off)
		if err != nil || data == hole || data >= limit {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		hole = min(hole, data+part, limit)
		if _, err := io.Copy(io.NewOffsetWriter(dst, data),
			io.NewSectionReader(src, data, hole-data)); err != nil {
			return err
		}
		off = hole
	}
}

// KeepsHoles reports whether files in dir record page by page (4096 bytes) which parts were
// written, zeros included. Some file systems have larger blocks, turn written zeros into holes, or
// have no holes at all (lseek(2), SEEK_DATA).
func KeepsHoles(dir string) bool {
	f, err := os.CreateTemp(dir, ".holes-*")
	if err != nil {
		return false
	}
	defer func() { _, _ = f.Close(), os.Remove(f.Name()) }()
	const page, at = 4096, 1<<20 + 5*4096
	err = f.Truncate(2 << 20)
	for _, off := range []int64{at, at + 2*page} {
		if err == nil {
			_, err = f.WriteAt(make([]byte, page), off)
		}
	}
	if err != nil || f.Sync() != nil {
		return false
	}
	var found []int64
	for off := int64(0); ; {
		data, hole, err := sparse.Next(f, off)
		if err != nil {
			return false
		}
		if data == hole {
			break
		}
		found, off = append(found, data, hole), hole
	}
	return slices.Equal(found, []int64{at, at + page, at + 2*page, at + 3*page})
}
