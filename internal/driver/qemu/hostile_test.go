package qemu

import (
	"bytes"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestEndlessMessage checks that a QEMU that writes an endless message does not exhaust this
// process's memory.
func TestEndlessMessage(t *testing.T) {
	ours, theirs := net.Pipe()
	defer func() { _ = ours.Close() }()
	m := &monitor{conn: ours}
	done := make(chan struct{})
	go func() { m.read(); _ = ours.Close(); close(done) }()
	part := bytes.Repeat([]byte("x"), 1<<20)
	_, err := io.WriteString(theirs, `{"event": "`)
	for n := 0; err == nil && n < 16; n++ {
		select {
		case <-done:
			err = io.ErrClosedPipe
		default:
			_, err = theirs.Write(part)
		}
	}
	_ = theirs.Close()
	<-done
	if m.err == nil || !strings.Contains(m.err.Error(), "more than") {
		t.Errorf("it ends with %v", m.err)
	}
}

// TestManyMappings checks that a process that maps the memory more than once is rejected before its
// writes are collected.
func TestManyMappings(t *testing.T) {
	f, err := memory("ram")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	const size = 64 * pageSize
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	mapped := func(offset int64, length int) {
		t.Helper()
		b, err := unix.Mmap(int(f.Fd()), offset, length, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Munmap(b) })
		b[0] = 1
	}
	mapped(0, size)
	if runs, err := privateMemory(t.Context(), os.Getpid(), f); err != nil || len(runs) != 1 ||
		runs[0].offset != 0 || runs[0].length != pageSize {
		t.Errorf("one mapping: %v, %v", runs, err)
	}
	mapped(0, size)
	if runs, err := privateMemory(t.Context(), os.Getpid(), f); err == nil ||
		!strings.Contains(err.Error(), "more than once") {
		t.Errorf("two mappings: %v, %v", runs, err)
	}
	runtime.KeepAlive(f)
}

// TestMappingBehind checks that data after the end of the memory is not written anywhere.
func TestMappingBehind(t *testing.T) {
	f, err := memory("ram")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := f.Truncate(64 * pageSize); err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(int(f.Fd()), 1<<30, 64*pageSize, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(b) }()
	if runs, err := privateMemory(t.Context(), os.Getpid(), f); err == nil ||
		!strings.Contains(err.Error(), "bytes after it") {
		t.Errorf("%v, %v", runs, err)
	}
}
