//go:build linux && amd64

package kvm

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestTry checks that the program's first instructions run wherever KVM works, so that only the
// tested instructions can be the reason for a refusal.
func TestTry(t *testing.T) {
	began := time.Now()
	err := Try("/dev/kvm")
	t.Logf("%v: %v", time.Since(began), err)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		t.Skip(err)
	}
	if err != nil && !errors.Is(err, ErrEmulated) {
		t.Error(err)
	}
	for name, program := range map[string][]byte{
		"hlt":         {0xf4},
		"fxsave":      {0x0f, 0xae, 0x06, 0xf4},
		"up to xsave": append(bytes.Clone(program[:12]), 0xf4),
	} {
		if err := try("/dev/kvm", program); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestInterrupted checks that signals, which the Go runtime sends to its threads, are no verdict.
// They make the kernel end the creation of a machine with EINTR.
func TestInterrupted(t *testing.T) {
	want := Try("/dev/kvm")
	if want != nil && !errors.Is(want, ErrEmulated) {
		t.Skip(want)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			tasks, _ := os.ReadDir("/proc/self/task")
			for _, task := range tasks {
				if tid, err := strconv.Atoi(task.Name()); err == nil {
					_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG)
				}
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	for range 100 {
		if err := Try("/dev/kvm"); !errors.Is(err, want) {
			t.Error(err)
			break
		}
	}
	close(stop)
	<-stopped
}

func TestNoDevice(t *testing.T) {
	if err := Try(filepath.Join(t.TempDir(), "kvm")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := Try("/dev/null"); err == nil {
		t.Error("/dev/null is taken for KVM")
	}
}
