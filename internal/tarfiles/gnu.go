package tarfiles

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"turnstone.dev/turnstone/internal/sparse"
)

// Entries of files with holes, in GNU's sparse format 0.1 for PAX (manual of GNU tar, "Storing Sparse
// Files"), which readers of tar know: GNU's, BSD's, Python's, Go's. Go's package reads it and cannot
// write it. The format has the list of parts in the extended header, which readers bound.

const (
	maxParts  = 8192 // their list has at most 320 KiB; Go's package reads extended headers of 1 MiB
	tarBlock  = 512
	maxOctal  = 1<<33 - 1 // of the 11 digits of a header's size and time
	placeName = 60        // bytes of a name in a header whose records have the whole name
)

// sparse writes an entry of a file that consists of parts.
func (p *packer) sparse(file string, f *os.File, h *tar.Header, parts []sparse.Part) error {
	if err := p.tw.Flush(); err != nil {
		return err
	}
	if n := len(parts); n == 0 || parts[n-1].Offset+parts[n-1].Length < h.Size {
		parts = append(parts, sparse.Part{Offset: h.Size}) // some readers take the end from it
	}
	var list []string
	data := int64(0)
	for _, one := range parts {
		list = append(list, strconv.FormatInt(one.Offset, 10), strconv.FormatInt(one.Length, 10))
		data += one.Length
	}
	var records bytes.Buffer
	if data > maxOctal { // otherwise not: Python's tarfile takes it for that of the file with its holes
		records.WriteString(record("size", strconv.FormatInt(data, 10)))
	}
	for _, r := range [][2]string{{"path", h.Name}, {"mtime", paxTime(h.ModTime)}, {"uid", strconv.Itoa(h.Uid)}, {"gid", strconv.Itoa(h.Gid)},
		{"GNU.sparse.size", strconv.FormatInt(h.Size, 10)},
		{"GNU.sparse.numblocks", strconv.Itoa(len(parts))}, {"GNU.sparse.name", h.Name},
		{"GNU.sparse.map", strings.Join(list, ",")}} {
		records.WriteString(record(r[0], r[1]))
	}
	name := path.Base(h.Name)
	name = name[:min(len(name), placeName)]
	var b bytes.Buffer
	b.Write(header("PaxHeaders.0/"+name, tar.TypeXHeader, 0o644, int64(records.Len()), time.Time{}))
	b.Write(records.Bytes())
	b.Write(padding(int64(b.Len())))
	b.Write(header("GNUSparseFile.0/"+name, tar.TypeReg, h.Mode, data, h.ModTime))
	if _, err := p.w.Write(b.Bytes()); err != nil {
		return err
	}
	for _, one := range parts {
		if err := p.copy(p.w, file, f, one); err != nil {
			return err
		}
	}
	_, err := p.w.Write(padding(data))
	return err
}

// padding returns the zeros behind size bytes.
func padding(size int64) []byte { return make([]byte, -size&(tarBlock-1)) }

// record returns a record of an extended header, whose length counts itself.
func record(key, value string) string {
	rest := " " + key + "=" + value + "\n"
	size := len(rest)
	for size != len(rest)+len(strconv.Itoa(size)) {
		size = len(rest) + len(strconv.Itoa(size))
	}
	return strconv.Itoa(size) + rest
}

// paxTime returns a time in seconds, with a fraction.
func paxTime(t time.Time) string {
	sec, nsec := t.Unix(), t.Nanosecond()
	if nsec == 0 {
		return strconv.FormatInt(sec, 10)
	}
	if sec < 0 { // the fraction is one of the number without its sign
		return fmt.Sprintf("-%d.%09d", -(sec + 1), 1_000_000_000-nsec)
	}
	return fmt.Sprintf("%d.%09d", sec, nsec)
}

// header returns the block of an entry (POSIX.1, pax, "ustar Interchange Format"). What is too large for it is 0: the
// records have it.
func header(name string, flag byte, mode, size int64, mtime time.Time) []byte {
	b := make([]byte, tarBlock)
	octal := func(at, digits int, n int64) {
		if n < 0 || n > maxOctal {
			n = 0
		}
		copy(b[at:], fmt.Sprintf("%0*o", digits, n))
	}
	copy(b, name)
	octal(100, 7, mode)
	octal(108, 7, 0)
	octal(116, 7, 0)
	octal(124, 11, size)
	octal(136, 11, mtime.Unix())
	b[156] = flag
	copy(b[257:], "ustar\x0000")
	copy(b[148:], "        ")
	sum := int64(0)
	for _, c := range b {
		sum += int64(c)
	}
	octal(148, 6, sum)
	b[154] = 0
	return b
}
