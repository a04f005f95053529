package agent

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/guest/files"
	"turnstone.dev/turnstone/internal/guest/scan"
	"turnstone.dev/turnstone/wire"
)

// maxHeader bounds the extended attributes of one entry: archive/tar reads extended headers of at
// most 1 MiB.
const maxHeader = 768 << 10

// longestPath bounds a path, in bytes: each entry contains its full path, so that deep directories
// cost the square of their depth.
const longestPath = 64 << 10

// Export implements State.export.
func (s *shell) Export(ctx context.Context, c *wire.Conn,
	p *wire.StateExportParams) (*wire.StateExportResult, error) {
	const op = wire.MethodStateExport
	d := s.a.opt.Disks
	if d == nil {
		return nil, turnstone.Errorf(op, turnstone.KindInvalid, "sandbox",
			"it is not a machine of its own")
	}
	out, err := c.Sender(p.Stream)
	if err != nil {
		return nil, err
	}
	s.a.freezing.Lock() // so that no thaw runs meanwhile
	defer s.a.freezing.Unlock()
	if p.Hold {
		if err = s.a.holdWrites(ctx); err == nil {
			if err = d.complete(ctx); err != nil {
				err = errors.Join(err, s.a.letGo())
			}
		}
	} else if !s.a.frozen.Load() {
		err = turnstone.Errorf(op, turnstone.KindInvalid, "sandbox", "its disks are not frozen").
			WithHint("call State.freeze first")
	}
	if err != nil {
		out.Abort(err)
		return nil, err
	}
	defer out.Until(ctx)()
	n, err := d.export(ctx, out)
	if err == nil {
		err = out.Close()
	}
	if err != nil {
		out.Abort(err)
		if p.Hold {
			_ = s.a.letGo()
		}
		return nil, exportError(err)
	}
	return &wire.StateExportResult{Entries: n}, nil
}

// holdWrites stops all processes, and the agent's own writes to the disks, until letGo.
func (a *Agent) holdWrites(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, freezeTime)
	defer cancel()
	if a.frozen.Load() || !a.held.CompareAndSwap(false, true) {
		return turnstone.Errorf(wire.MethodStateExport, turnstone.KindUnavailable, "sandbox",
			"it is already frozen or stopped").WithHint("end that first")
	}
	err := a.files.Writes.Stop(ctx)
	if err == nil {
		err = a.hold(ctx)
	}
	if err != nil {
		err = errors.Join(err, a.letGo())
		return turnstone.NewError(wire.MethodStateExport, turnstone.KindUnavailable, "sandbox",
			err).WithHint("try again: a process could not be stopped")
	}
	return nil
}

func exportError(err error) error {
	var te *turnstone.Error
	if errors.As(err, &te) {
		return err
	}
	return turnstone.NewError(wire.MethodStateExport, turnstone.KindUnavailable,
		"the sandbox's files",
		files.RootCause(err))
}

// export writes the upper directory to w as a tar stream.
func (d *Disks) export(ctx context.Context, w io.Writer) (entries int64, err error) {
	dir, err := unix.Openat(d.fds[0], d.Upper,
		unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	return exportDir(ctx, dir, cmp.Or(d.Open, procFDs), w)
}

// exportDir is export for an open directory, which it closes. fds is as in Options.
func exportDir(ctx context.Context, dir int, fds string, w io.Writer) (entries int64, err error) {
	buffered := bufio.NewWriterSize(w, wire.SendChunk)
	e := &exporter{ctx: ctx, out: tar.NewWriter(buffered), names: make(map[diskFile]string)}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(dir, &fs); err == nil {
		e.room = int64(fs.Blocks) * fs.Bsize
	}
	found := scan.New(ctx, dir, fds)
	defer found.Close()
	for {
		batch, err := found.Next()
		if err != nil {
			return e.entries, err
		}
		if batch == nil {
			break
		}
		for i, f := range batch {
			if err := e.entry(f); err != nil {
				scan.CloseAll(batch[i:])
				return e.entries, err
			}
		}
	}
	if err := e.out.Close(); err != nil {
		return e.entries, err
	}
	return e.entries, buffered.Flush()
}

// diskFile identifies a file of the scratch disk.
type diskFile struct{ dev, ino uint64 }

// An exporter writes a tar stream.
type exporter struct {
	ctx     context.Context
	out     *tar.Writer
	names   map[diskFile]string // the first names of files that have several
	entries int64

	room     int64 // bytes of the file system
	apparent int64 // sizes of the large files
}

// maxHoles bounds the bytes of holes in all files together. It equals the host's bound for disks
// that the host reads itself: holes occupy no space, but reading them takes time.
const maxHoles = 64 << 30

// entry writes one file, and closes it.
func (e *exporter) entry(f *scan.File) error {
	defer f.Close()
	if err := e.ctx.Err(); err != nil {
		return context.Cause(e.ctx)
	}
	if len(f.Path) > longestPath {
		return turnstone.Errorf(wire.MethodStateExport, turnstone.KindExhausted,
			"/"+brief.Clip(f.Path, 100),
			"directories are nested so deep that a path has more than 64 KiB").
			WithHint("remove the directory before the turn ends")
	}
	h := &tar.Header{Name: f.Path, Format: tar.FormatPAX, Mode: int64(f.Stat.Mode & 0o7777),
		Uid: int(f.Stat.Uid), Gid: int(f.Stat.Gid),
		ModTime: time.Unix(f.Stat.Mtim.Unix()), PAXRecords: make(map[string]string, 1+len(f.Xattrs))}
	e.entries++
	kind := f.Stat.Mode & unix.S_IFMT
	// a socket is useless without its process, but hides the files below it
	if kind == unix.S_IFSOCK {
		kind, f.Stat.Rdev, f.Stat.Nlink, f.Xattrs = unix.S_IFCHR, 0, 1, nil
	}
	whiteout := kind == unix.S_IFCHR && f.Stat.Rdev == 0
	if f.Stat.Nlink > 1 && kind != unix.S_IFDIR && !whiteout {
		id := diskFile{uint64(f.Stat.Dev), f.Stat.Ino}
		if first, ok := e.names[id]; ok {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			h.PAXRecords = nil
			return e.out.WriteHeader(h)
		}
		e.names[id] = f.Path
		h.PAXRecords[recordLinks] = strconv.FormatUint(uint64(f.Stat.Nlink), 10)
	}
	if err := addXattrs(h, f); err != nil {
		return err
	}
	switch kind {
	case unix.S_IFREG:
		return e.file(h, f)
	case unix.S_IFDIR:
		h.Typeflag = tar.TypeDir
		h.Name += "/"
	case unix.S_IFLNK:
		h.Typeflag, h.Linkname = tar.TypeSymlink, f.Target
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	case unix.S_IFCHR, unix.S_IFBLK:
		h.Typeflag = tar.TypeChar
		if kind == unix.S_IFBLK {
			h.Typeflag = tar.TypeBlock
		}
		h.Devmajor, h.Devminor = int64(unix.Major(f.Stat.Rdev)), int64(unix.Minor(f.Stat.Rdev))
	default:
		return fmt.Errorf("%s: a file of the kind %#o", f.Path, kind)
	}
	return e.out.WriteHeader(h)
}

// Records of an entry in addition to those of tar.
const (
	recordXattr = "SCHILY.xattr."
	recordHex   = "TURNSTONE.xattr." // with the name in hex, if a record cannot contain it
	recordLinks = "TURNSTONE.links"  // the file's number of names: hard links to it may follow
	recordSize  = "TURNSTONE.size"   // of a file that has several parts, or holes
	// offset and length of each of its parts in this entry, separated by commas
	recordSparse = "TURNSTONE.sparse"
	// the same in an entry that continues the previous entry's file
	recordMore = "TURNSTONE.more"
)

func addXattrs(h *tar.Header, f *scan.File) error {
	total := 0
	for _, x := range f.Xattrs {
		if total += 2*len(x.Name) + len(x.Value) + 64; total > maxHeader {
			return turnstone.Errorf(wire.MethodStateExport, turnstone.KindExhausted, "/"+f.Path,
				"extended attributes of more than 768 KiB").
				WithHint("remove some of the file's extended attributes before the turn ends")
		}
		if strings.Contains(x.Name, "=") {
			h.PAXRecords[recordHex+hex.EncodeToString([]byte(x.Name))] = string(x.Value)
		} else {
			h.PAXRecords[recordXattr+x.Name] = string(x.Value)
		}
	}
	return nil
}

// A part is a part of a file that is not a hole.
type part struct{ offset, length int64 }

const (
	window     = 4 << 20 // bytes of a large file that are searched for holes together
	exportPage = 4 << 10 // bytes; a hole consists of whole pages of zeros
)

// file writes a regular file. A file that changes meanwhile, which normally cannot happen, is
// truncated or filled with zeros.
func (e *exporter) file(h *tar.Header, f *scan.File) error {
	h.Typeflag, h.Size = tar.TypeReg, f.Stat.Size
	if f.Data != nil {
		h.Size = int64(len(f.Data))
		if err := e.out.WriteHeader(h); err != nil {
			return err
		}
		_, err := e.out.Write(f.Data)
		return err
	}
	if e.apparent += f.Stat.Size; e.apparent > e.room+maxHoles {
		return turnstone.Errorf(wire.MethodStateExport, turnstone.KindExhausted, "/"+f.Path,
			"sparse files with holes of more than 64 GiB in total").
			WithHint("remove the largest sparse files, or make them smaller with truncate")
	}
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	first := true
	for w := range readWindows(ctx, f.FD, f.Stat.Size) {
		if w.err != nil {
			return w.err
		}
		parts := dataParts(w.data, w.offset)
		whole := f.Stat.Size == int64(len(w.data)) && len(parts) == 1 && parts[0].length == f.Stat.Size
		if !first && len(parts) == 0 {
			continue
		}
		if !whole {
			addParts(h, parts, f.Stat.Size, first)
		}
		if err := e.out.WriteHeader(h); err != nil {
			return err
		}
		for _, p := range parts {
			if _, err := e.out.Write(w.data[p.offset-w.offset:][:p.length]); err != nil {
				return err
			}
		}
		if first {
			first = false
			h = &tar.Header{Typeflag: tar.TypeReg, Name: h.Name, Format: tar.FormatPAX}
		}
	}
	return context.Cause(ctx)
}

// addParts records the file's parts in an entry. An entry that continues a file has nothing else.
func addParts(h *tar.Header, parts []part, size int64, first bool) {
	var list strings.Builder
	h.Size = 0
	for i, p := range parts {
		if i > 0 {
			list.WriteByte(',')
		}
		list.WriteString(strconv.FormatInt(p.offset, 10) + "," + strconv.FormatInt(p.length, 10))
		h.Size += p.length
	}
	if first {
		h.PAXRecords[recordSize] = strconv.FormatInt(size, 10)
		h.PAXRecords[recordSparse] = list.String()
		return
	}
	h.PAXRecords = map[string]string{recordMore: list.String()}
}

// dataParts returns the parts of data, which begins at offset, that are not whole pages of zeros.
func dataParts(data []byte, offset int64) (parts []part) {
	for at := 0; at < len(data); at += exportPage {
		page := data[at:min(at+exportPage, len(data))]
		if page[0] == 0 && bytes.Equal(page[1:], page[:len(page)-1]) {
			continue
		}
		start := offset + int64(at)
		if n := len(parts); n > 0 && parts[n-1].offset+parts[n-1].length == start {
			parts[n-1].length += int64(len(page))
		} else {
			parts = append(parts, part{start, int64(len(page))})
		}
	}
	return parts
}

// A fileWindow is a part of a file that was read.
type fileWindow struct {
	data   []byte // valid until the next window is requested
	offset int64
	err    error
}

// readWindows reads a file, one window ahead of its consumer. It ends when ctx ends.
func readWindows(ctx context.Context, fd int, size int64) iter.Seq[fileWindow] {
	return func(yield func(fileWindow) bool) {
		ctx, cancel := context.WithCancel(ctx)
		windows, free := make(chan fileWindow), make(chan []byte, 2)
		var reader sync.WaitGroup
		defer reader.Wait() // the reader uses fd
		defer cancel()
		length := min(window, size)
		free <- make([]byte, length)
		free <- make([]byte, length)
		reader.Go(func() {
			defer close(windows)
			for at := int64(0); at < size; at += length {
				var w fileWindow
				select {
				case buf := <-free:
					w = fileWindow{data: buf[:min(length, size-at)], offset: at}
				case <-ctx.Done():
					return
				}
				n, err := scan.ReadAt(fd, w.data, at)
				clear(w.data[n:])
				w.err = os.NewSyscallError("read", err)
				select {
				case windows <- w:
				case <-ctx.Done():
					return
				}
			}
		})
		for w := range windows {
			if !yield(w) {
				return
			}
			free <- w.data[:cap(w.data)]
		}
	}
}
