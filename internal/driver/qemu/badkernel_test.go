package qemu

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/driver/kit"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

const look = "turn doctor --kernel /a/vmlinux"

// badMachine returns a machine with a user's kernel that consists of code and text.
func badMachine(t *testing.T, code []byte, text string) substrate.Machine {
	t.Helper()
	dir := t.TempDir()
	image := tinyKernel(code, text)
	m := substrate.Machine{Kernel: filepath.Join(dir, "kernel"), Initramfs: filepath.Join(dir,
		"empty"), Root: filepath.Join(dir, "empty"), Shape: turnstone.DefaultShape(),
		KernelDigest: turnstone.DigestBytes(image), KernelIs: substrate.KernelKind{Own: true,
			File: "/a/vmlinux"}}
	for path, content := range map[string][]byte{m.Kernel: image, m.Initramfs: make([]byte, 4096)} {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// TestGuestHangs checks that a kernel that halts, loops or resets its machine is ended for that
// reason, with a hint, and that a kernel that prints lines is waited for up to the limit.
func TestGuestHangs(t *testing.T) {
	h := &statedir.Dir{Root: t.TempDir()}
	long := console.Patience{Idle: time.Hour, Work: time.Hour, Limit: time.Hour}
	with := func(set func(*console.Patience)) console.Patience {
		p := long
		set(&p)
		return p
	}
	for name, tt := range map[string]struct {
		code []byte
		text string
		p    console.Patience
		says string
	}{
		"halts": {halt, "", with(func(p *console.Patience) { p.Idle = time.Second }),
			"it has neither computed nor printed a line for 1s; the console is empty"},
		"talks, then halts": {join(printThen, halt), "\r\nso far\r\n",
			with(func(p *console.Patience) { p.Idle = time.Second }),
			`for 1s; the console ends: "so far"`},
		"spins": {spin, "", with(func(p *console.Patience) { p.Work = time.Second }),
			"it has computed for 1s and printed no line"},
		"one line for ever": {printAlways, "",
			with(func(p *console.Patience) { p.Work = time.Second }),
			"it has computed for 1s and printed no line"},
		"resets": {reset, "", long,
			"the guest reset its machine, or shut it down, before its agent was ready"},
	} {
		t.Run(name, func(t *testing.T) {
			m := badMachine(t, tt.code, tt.text)
			s, err := New(t.Context(), h, Options{Kernel: m.GuestKernel()})
			if err != nil {
				t.Fatal(err)
			}
			s.accel = accelTCG
			vm, err := s.bootFresh(t.Context(), m)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = vm.Close() }()
			err = vm.wait(t.Context(), tt.p)
			if turnstone.KindOf(err) != turnstone.KindDead ||
				!strings.Contains(err.Error(), tt.says) ||
				!strings.Contains(turnstone.HintOf(err), "`"+look+"`") {
				t.Errorf("%v (%s)", err, turnstone.HintOf(err))
			}
		})
	}
}

// TestProveBadKernel checks that a kernel's own fault under KVM is distinguished from KVM's fault,
// and is remembered for its modules only.
func TestProveBadKernel(t *testing.T) {
	if err := mayOpen(kvmDevice, nil); err != nil {
		t.Skip(err)
	}
	h := &statedir.Dir{Root: t.TempDir()}
	for name, tt := range map[string]struct {
		code  []byte
		text  string
		fault bool
	}{
		"panics": {join(printThen, halt), "Kernel panic - not syncing: no tables\n", true},
		"resets": {reset, "", false}, // or the host's emulator fails
	} {
		m := badMachine(t, tt.code, tt.text)
		m.InitDigest = "sha256:modules"
		s, err := New(t.Context(), h, Options{Probe: &m})
		if err != nil {
			t.Fatal(err)
		}
		v := s.Verdict()
		if v.Usable || !v.Known || v.Kernel != tt.fault || v.Lasts == tt.fault {
			t.Errorf("%s: %+v", name, v)
		}
		if again := s.KVM(t.Context(), nil); again.Known == tt.fault || again.Reason != v.Reason {
			t.Errorf("%s, without its modules: %+v", name, again)
		}
	}
	if left, _ := filepath.Glob(h.Path("sandboxes", "*")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// TestBothReasons checks that the error of a guest that starts neither under KVM nor without it has
// both reasons, KVM's first.
func TestBothReasons(t *testing.T) {
	m := badMachine(t, join(printThen, halt), "Kernel panic - not syncing: no tables\n")
	why := errors.New("KVM: the guest hangs")
	s, err := New(t.Context(), &statedir.Dir{Root: t.TempDir()}, Options{Kernel: m.GuestKernel(),
		Fallback: why})
	if err != nil {
		t.Fatal(err)
	}
	s.accel = accelTCG
	for what, start := range map[string]func() (substrate.Sandbox, error){
		"boot":    func() (substrate.Sandbox, error) { return s.Boot(t.Context(), m) },
		"restore": func() (substrate.Sandbox, error) { return s.Restore(t.Context(), m) },
	} {
		vm, err := start()
		if err == nil {
			_ = vm.Close()
		}
		if !errors.Is(err, why) || turnstone.KindOf(err) != turnstone.KindDead ||
			!strings.HasSuffix(err.Error(),
				"KVM: the guest hangs; and without it, under TCG: the guest kernel panicked: no "+
					"tables") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestTestKernelIsForKVM checks that there is no report on a test kernel without KVM.
func TestTestKernelIsForKVM(t *testing.T) {
	s := newSubstrate(t, &statedir.Dir{Root: t.TempDir()}, nil)
	order, ruledOut := s.checkOrder(true)
	if len(order) > 0 && (order[0] != accelKVM || len(order) > 1) || len(order) == 0 &&
		len(ruledOut) == 0 {
		t.Errorf("%v, %q", order, ruledOut)
	}
}

// TestPanicOfARunningGuest checks that console output after the agent was ready explains nothing,
// and is quoted as the console's.
func TestPanicOfARunningGuest(t *testing.T) {
	m := &machine{Process: kit.New("", console.Running(), "")}
	_, _ = m.Console.Write([]byte("Kernel panic - not syncing: \x1b[2Jforged\n"))
	err := m.explain(nil)
	if strings.Contains(err.Error(), "panicked") || turnstone.HintOf(err) != "" ||
		!strings.HasSuffix(err.Error(),
			`the guest shut its machine down; its console says: "Kernel panic - not syncing: `+
				`?[2Jforged"`) {
		t.Errorf("%v (%s)", err, turnstone.HintOf(err))
	}
}
