package qemu

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// TestKVMTurnsAway checks that a device that turns away on opening, on a request or during a run is
// the error, also at once if QEMU hangs, and that nothing of the machine is left.
func TestKVMTurnsAway(t *testing.T) {
	dir := t.TempDir()
	m := substrate.Machine{Kernel: filepath.Join(dir, "kernel"), Initramfs: filepath.Join(dir,
		"empty"), Root: filepath.Join(dir, "empty"), Shape: turnstone.DefaultShape()}
	for path, content := range map[string][]byte{m.Kernel: stubKernel(),
		m.Root: make([]byte, 4096)} {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for said, then := range map[string]string{
		"Could not access KVM kernel module: Permission denied":       "exit 1",
		"Could not access KVM kernel module: Device or resource busy": "exit 1",
		"Could not access KVM kernel module: No such device":          "exit 1",
		"failed to initialize kvm: Device or resource busy":           "exit 1",
		"error: kvm run failed No such device":                        "exec sleep 600",
		"KVM internal error. Suberror: 1":                             "exec sleep 600",
	} {
		h := &statedir.Dir{Root: t.TempDir()}
		s, err := New(t.Context(), h,
			Options{Binary: program(t,
				"[ \"$1\" = --version ] && { echo QEMU emulator version 7.2.0; exit; }\n"+
					"echo 'qemu-system-x86_64: "+said+"' >&2\n"+then)})
		if err != nil {
			t.Fatal(err)
		}
		s.wall, s.accel = Jail{Wall: open}, accelKVM
		vm, err := s.Boot(t.Context(), m)
		if err == nil {
			_ = vm.Close()
		}
		want := "KVM turned away: " + strings.TrimPrefix(said, "error: ")
		if strings.HasPrefix(said, "KVM internal error") {
			want = "KVM cannot run the guest: " + said
		}
		if turnstone.KindOf(err) != turnstone.KindDead || !strings.Contains(err.Error(), want) ||
			turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v (%s)", said, err, turnstone.HintOf(err))
		}
		if left, _ := filepath.Glob(h.Path("sandboxes", "*")); len(left) > 0 {
			t.Errorf("%s: %v is left", said, left)
		}
	}
}
