package agent

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// maxHeader bounds what one entry's extended attributes may take: archive/tar reads
// extended headers of 1 MiB at most.
const maxHeader = 768 << 10

// Export is State.export.
func (s *shell) Export(ctx context.Context, c *wire.Conn, p *wire.StateExportParams) (*wire.StateExportResult, error) {
	const op = wire.MethodStateExport
	d := s.a.opt.disks
	if d == nil {
		return nil, &turnstone.Error{Op: op, Kind: turnstone.Invalid, Subject: "sandbox", Err: errors.New("it is not a machine of its own")}
	}
	out, err := c.Sender(p.Stream)
	if err != nil {
		return nil, err
	}
	s.a.freezing.Lock() // so that nothing thaws meanwhile
	defer s.a.freezing.Unlock()
	if !s.a.frozen.Load() {
		err := &turnstone.Error{Op: op, Kind: turnstone.Invalid, Subject: "sandbox", Err: errors.New("its disks are not frozen"), Hint: "call State.freeze first"}
		out.Abort(err)
		return nil, err
	}
	defer out.Until(ctx)()
	n, err := d.export(ctx, out)
	if err != nil {
		out.Abort(err)
		return nil, exportError(err)
	}
	return &wire.StateExportResult{Entries: n}, out.Close()
}

func exportError(err error) error {
	var te *turnstone.Error
	if errors.As(err, &te) {
		return err
	}
	return &turnstone.Error{Op: wire.MethodStateExport, Kind: turnstone.Unavailable, Subject: "the sandbox's files", Err: rootCause(err)}
}

// export writes the upper directory to w as a tar stream.
func (d *disks) export(ctx context.Context, w io.Writer) (entries int64, err error) {
	dir, err := unix.Openat(d.fds[0], d.upper, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	return exportDir(ctx, dir, w)
}

// exportDir is export for an open directory, which it closes.
func exportDir(ctx context.Context, dir int, w io.Writer) (entries int64, err error) {
	buffered := bufio.NewWriterSize(w, wire.MaxChunk)
	e := &exporter{ctx: ctx, out: tar.NewWriter(buffered), names: make(map[diskFile]string)}
	scan := newScanner(ctx, dir)
	defer scan.close()
	for {
		f, err := scan.next()
		if err != nil {
			return e.entries, err
		}
		if f == nil {
			break
		}
		if err := e.entry(f); err != nil {
			return e.entries, err
		}
	}
	if err := e.out.Close(); err != nil {
		return e.entries, err
	}
	return e.entries, buffered.Flush()
}

// diskFile names a file of the scratch disk.
type diskFile struct{ dev, ino uint64 }

// An exporter writes a tar stream.
type exporter struct {
	ctx     context.Context
	out     *tar.Writer
	names   map[diskFile]string // the first names of files that have several
	entries int64
	buf     []byte
}

// entry writes one file, and closes it.
func (e *exporter) entry(f *scanned) error {
	defer f.close()
	if err := e.ctx.Err(); err != nil {
		return context.Cause(e.ctx)
	}
	h := &tar.Header{Name: f.path, Format: tar.FormatPAX, Mode: int64(f.st.Mode & 0o7777), Uid: int(f.st.Uid), Gid: int(f.st.Gid),
		ModTime: time.Unix(f.st.Mtim.Unix()), PAXRecords: make(map[string]string, 1+len(f.xattrs))}
	e.entries++
	kind := f.st.Mode & unix.S_IFMT
	if kind == unix.S_IFSOCK { // it means nothing without its process, but hides what lies below it
		kind, f.st.Rdev, f.st.Nlink, f.xattrs = unix.S_IFCHR, 0, 1, nil
	}
	whiteout := kind == unix.S_IFCHR && f.st.Rdev == 0
	if f.st.Nlink > 1 && kind != unix.S_IFDIR && !whiteout {
		id := diskFile{uint64(f.st.Dev), f.st.Ino}
		if first, ok := e.names[id]; ok {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			h.PAXRecords = nil
			return e.out.WriteHeader(h)
		}
		e.names[id] = f.path
		h.PAXRecords[recordLinks] = strconv.FormatUint(uint64(f.st.Nlink), 10)
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
		h.Typeflag, h.Linkname = tar.TypeSymlink, f.target
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	case unix.S_IFCHR, unix.S_IFBLK:
		h.Typeflag = tar.TypeChar
		if kind == unix.S_IFBLK {
			h.Typeflag = tar.TypeBlock
		}
		h.Devmajor, h.Devminor = int64(unix.Major(f.st.Rdev)), int64(unix.Minor(f.st.Rdev))
	default:
		return fmt.Errorf("%s: a file of the kind %#o", f.path, kind)
	}
	return e.out.WriteHeader(h)
}

// Records of an entry beside those that tar knows.
const (
	recordXattr  = "SCHILY.xattr."
	recordHex    = "TURNSTONE.xattr." // with the name in hex: for one that a record cannot have
	recordLinks  = "TURNSTONE.links"  // how many names the file has: hard links to it may follow
	recordSparse = "TURNSTONE.sparse" // offset and length of each part, separated by commas
	recordSize   = "TURNSTONE.size"   // of a file with holes
)

func addXattrs(h *tar.Header, f *scanned) error {
	total := 0
	for _, x := range f.xattrs {
		if total += 2*len(x.name) + len(x.value) + 64; total > maxHeader {
			return &turnstone.Error{Op: wire.MethodStateExport, Kind: turnstone.Exhausted, Subject: "/" + f.path,
				Err: errors.New("extended attributes of more than 768 KiB"), Hint: "remove some of the file's extended attributes before the turn ends"}
		}
		if strings.Contains(x.name, "=") {
			h.PAXRecords[recordHex+hex.EncodeToString([]byte(x.name))] = string(x.value)
		} else {
			h.PAXRecords[recordXattr+x.name] = string(x.value)
		}
	}
	return nil
}

// file writes a regular file. One that changes meanwhile, as nothing can when all
// is well, is cut off or filled with zeros.
func (e *exporter) file(h *tar.Header, f *scanned) error {
	h.Typeflag, h.Size = tar.TypeReg, f.st.Size
	if f.data != nil {
		h.Size = int64(len(f.data))
		if err := e.out.WriteHeader(h); err != nil {
			return err
		}
		_, err := e.out.Write(f.data)
		return err
	}
	parts, err := f.parts()
	if err != nil {
		return err
	}
	if parts != nil {
		h.Size = 0
		var list strings.Builder
		for i, p := range parts {
			if i > 0 {
				list.WriteByte(',')
			}
			list.WriteString(strconv.FormatInt(p.offset, 10) + "," + strconv.FormatInt(p.length, 10))
			h.Size += p.length
		}
		h.PAXRecords[recordSparse] = list.String()
		h.PAXRecords[recordSize] = strconv.FormatInt(f.st.Size, 10)
	} else {
		parts = []part{{0, f.st.Size}}
	}
	if err := e.out.WriteHeader(h); err != nil {
		return err
	}
	for _, p := range parts {
		if err := e.copy(f.fd, p); err != nil {
			return err
		}
	}
	return nil
}

// copySize is how much of a file is read at a time.
const copySize = 256 << 10

func (e *exporter) copy(fd int, p part) error {
	if e.buf == nil {
		e.buf = make([]byte, copySize)
	}
	for done := int64(0); done < p.length; {
		if err := e.ctx.Err(); err != nil {
			return context.Cause(e.ctx)
		}
		b := e.buf[:min(copySize, p.length-done)]
		n, err := unix.Pread(fd, b, p.offset+done)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n == 0:
			clear(b)
			n = len(b)
		}
		if _, err := e.out.Write(b[:n]); err != nil {
			return err
		}
		done += int64(n)
	}
	return nil
}
