package qemu

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A run is a part of the guest's memory that differs from its file.
type run struct {
	address int64 // in QEMU
	offset  int64 // in the memory file
	length  int64
}

// privateMemory returns a process's writes to its private mappings of f: the pages of them that the
// kernel holds as anonymous pages, resident or swapped out (Linux,
// Documentation/admin-guide/mm/pagemap.rst).
func privateMemory(ctx context.Context, pid int, f *os.File) ([]run, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	defer maps.Close()
	pages, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		return nil, err
	}
	defer pages.Close()
	var runs []run
	var covered int64
	in := bufio.NewScanner(maps)
	for in.Scan() {
		m, ok := parseMapping(in.Text())
		if !ok || m.inode != st.Ino || m.device != [2]uint64{uint64(unix.Major(st.Dev)),
			uint64(unix.Minor(st.Dev))} {
			continue
		}
		if !m.private {
			return nil, errors.New("the memory is mapped shared")
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		// The process may be hostile: too many mappings would exhaust this process's memory.
		if covered += m.end - m.start; covered > st.Size || m.offset < 0 ||
			m.offset > st.Size-(m.end-m.start) {
			return nil, errors.New("QEMU maps the memory more than once, or bytes after it")
		}
		if runs, err = written(runs, pages, m); err != nil {
			return nil, err
		}
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	if covered != st.Size {
		return nil, fmt.Errorf("QEMU maps %d of the %d bytes of the memory", covered, st.Size)
	}
	return runs, nil
}

// A mapping is a line of /proc/PID/maps (proc(5)).
type mapping struct {
	start, end, offset int64
	private            bool
	device             [2]uint64
	inode              uint64
}

func parseMapping(line string) (m mapping, ok bool) {
	f := strings.Fields(line)
	if len(f) < 5 || len(f[1]) != 4 {
		return m, false
	}
	first, last, _ := strings.Cut(f[0], "-")
	major, minor, _ := strings.Cut(f[3], ":")
	var errs [6]error
	var start, end, offset uint64
	start, errs[0] = strconv.ParseUint(first, 16, 63)
	end, errs[1] = strconv.ParseUint(last, 16, 63)
	offset, errs[2] = strconv.ParseUint(f[2], 16, 63)
	m.device[0], errs[3] = strconv.ParseUint(major, 16, 32)
	m.device[1], errs[4] = strconv.ParseUint(minor, 16, 32)
	m.inode, errs[5] = strconv.ParseUint(f[4], 10, 64)
	m.start, m.end, m.offset, m.private = int64(start), int64(end), int64(offset), f[1][3] == 'p'
	return m, errors.Join(errs[:]...) == nil && m.start < m.end
}

// Bits of an entry of /proc/PID/pagemap.
const (
	pagePresent = 1 << 63
	pageSwapped = 1 << 62
	pageFile    = 1 << 61 // of a file, or shared
)

const pageSize = 4096 // page size of x86-64

// written adds the pages of m that its process has written to runs.
func written(runs []run, pagemap io.ReaderAt, m mapping) ([]run, error) {
	buf := make([]byte, 64<<10)
	for at := m.start; at < m.end; {
		want := min(int64(len(buf)), (m.end-at)/pageSize*8)
		if want == 0 {
			return nil, errors.New("the memory is mapped in parts of pages")
		}
		if _, err := pagemap.ReadAt(buf[:want], at/pageSize*8); err != nil {
			return nil, fmt.Errorf("pagemap: %w", err)
		}
		for i := int64(0); i < want; i, at = i+8, at+pageSize {
			v := binary.NativeEndian.Uint64(buf[i:])
			if v&pageSwapped == 0 && (v&pagePresent == 0 || v&pageFile != 0) {
				continue
			}
			if n := len(runs) - 1; n >= 0 && runs[n].address+runs[n].length == at &&
				runs[n].offset+runs[n].length == m.offset+at-m.start {
				runs[n].length += pageSize
			} else {
				runs = append(runs, run{at, m.offset + at - m.start, pageSize})
			}
		}
	}
	return runs, nil
}

// copyMemory writes runs of a process's memory to dst.
func copyMemory(ctx context.Context, dst io.WriterAt, pid int, runs []run) error {
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return err
	}
	defer mem.Close()
	buf := make([]byte, 1<<20)
	for _, r := range runs {
		for done := int64(0); done < r.length; {
			if err := ctx.Err(); err != nil {
				return err
			}
			part := buf[:min(int64(len(buf)), r.length-done)]
			if _, err := io.ReadFull(io.NewSectionReader(mem, r.address+done, int64(len(part))),
				part); err != nil {
				return fmt.Errorf("reading the guest's memory: %w", err)
			}
			if _, err := dst.WriteAt(part, r.offset+done); err != nil {
				return err
			}
			done += int64(len(part))
		}
	}
	return nil
}
