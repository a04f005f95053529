package firecracker

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/substrate"
)

// TestKernelAdvice checks that the error of a user's kernel that fails to start in any way names
// the command that checks that file.
func TestKernelAdvice(t *testing.T) {
	for _, fault := range []string{"panic", "panic and hang", "refuse:/actions",
		"refuse:/boot-source", "poweroff", "no kernel", "late", "mute"} {
		b := newBench(t, "")
		s, m := b.substrate(t, fault), b.m
		m.KernelIs = substrate.KernelKind{Own: true, File: "/srv/a kernel"}
		s.guest = m.GuestKernel()
		if fault == "no kernel" {
			m.Kernel = filepath.Join(t.TempDir(), "text")
			check(t, os.WriteFile(m.Kernel, []byte("#!/bin/sh"), 0o644))
		}
		var err error
		switch fault {
		case "late": // the end of a wait of a minute
			err = s.wrap(t.Context(), console.New().Late(time.Minute, console.ErrLate))
		case "mute": // the end of a wait of half a minute
			err = s.wrap(t.Context(), fmt.Errorf("%w: %w", errMute, os.ErrDeadlineExceeded))
		default:
			vm, failed := s.Boot(within(t), m)
			if failed == nil {
				_ = vm.Close()
			}
			err = failed
		}
		if err == nil || turnstone.HintOf(err) != m.KernelIs.Advice() {
			t.Errorf("%s: %v (%s)", fault, err, turnstone.HintOf(err))
		}
		b.nothingLeft(t)
	}
}
