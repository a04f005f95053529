//go:build linux && amd64

package kvm

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"
	"testing"
	"time"
)

// What the program begins with has to run wherever there is KVM, so that nothing but
// the instructions that are asked about can be the reason for a no.
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

func TestNoDevice(t *testing.T) {
	if err := Try(filepath.Join(t.TempDir(), "kvm")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := Try("/dev/null"); err == nil {
		t.Error("/dev/null is taken for KVM")
	}
}
