package qemu

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/lazyregexp"
	"turnstone.dev/turnstone/substrate"
)

// An engine describes what runs the guest's instructions.
type engine struct {
	accel accel
	cpu   string // model of the virtual CPU under KVM; empty: the host's
	bios  string // firmware in QEMU's folder of data; empty: QEMU's choice
}

// quickFirmware needs a twentieth of the instructions of QEMU's default, SeaBIOS. That counts where
// the host's KVM emulates the ring of the firmware instruction by instruction, which is where a test
// kernel is for: 0.4 s instead of 12. Other hosts have QEMU's choice, because none of them could be tried.
const quickFirmware = "qboot.rom"

// engineOf returns the engine for a machine.
func (s *Substrate) engineOf(m substrate.Machine) engine {
	e := s.engine()
	if e.accel != accelKVM || !m.KernelIs.Test {
		return e
	}
	binary, err := filepath.EvalSymlinks(s.binary)
	if err != nil {
		return e
	}
	// Where QEMU looks, in a prefix like /usr.
	if _, err := os.Stat(filepath.Join(binary, "../../share/qemu", quickFirmware)); err == nil {
		e.bios = quickFirmware
	}
	return e
}

// model returns the virtual CPU's model, in the form of QEMU's -cpu.
func (e engine) model() string {
	switch {
	case e.accel != accelKVM:
		return "max"
	case e.cpu == "":
		return "host"
	}
	return e.cpu
}

// leastModel is the last model, for a QEMU that rejects the host's model for an unknown reason. It
// has the features that every x86-64 has.
const leastModel = "qemu64"

// refusedMSR matches QEMU's message before it aborts because the host's KVM rejects a register's
// value that KVM itself has offered (kvm_buf_set_msrs, kvm_get_msrs).
var refusedMSR = lazyregexp.New(`failed to (?:set|get) MSR 0x([0-9a-fA-F]{1,8})\b[^\r\n]{0,100}`)

// refusedCPU matches QEMU's other messages about a CPU that it cannot create.
var refusedCPU = lazyregexp.New(
	`(?i)[^\r\n]{0,200}\b(?:CPU model|CPU feature|CPUID|vCPU|KVM_SET_\w+)\b[^\r\n]{0,200}`)

// lessOf returns the words that remove a feature with its registers from a model (target/i386/cpu.h
// and cpu.c of QEMU), by register.
func lessOf(msr uint64) string {
	switch {
	case msr >= 0x480 && msr <= 0x493, msr == 0x3a:
		return "-vmx"
	case msr >= 0xc1 && msr <= 0xc8, msr >= 0x186 && msr <= 0x18d, msr >= 0x309 && msr <= 0x30c,
		msr >= 0x38d && msr <= 0x390:
		return "pmu=off"
	}
	return map[uint64]string{
		0x10a: "-arch-capabilities", 0xcf: "-core-capability", 0x345: "-pdcm", 0x48: "-spec-ctrl",
		0xc001011f: "-virt-ssbd", 0x122: "-tsx-ctrl",
		0x3b: "-tsc-adjust", 0x6e0: "-tsc-deadline", 0xe1: "-waitpkg", 0xda0: "-xsaves",
		0x1c4: "-xfd", 0x6e1: "-pks", 0xc0000104: "-tsc-scale",
		0x4b564d02: "-kvm-asyncpf", 0x4b564d03: "-kvm-steal-time", 0x4b564d04: "-kvm-pv-eoi",
		0x4b564d05: "-kvm-poll-control",
	}[msr]
}

// nextModel returns the next model after QEMU has rejected a model with the output said, and the
// line with the reason. Empty: QEMU did not reject the model, or no model is left.
func nextModel(model, said string) (next, why string) {
	match := refusedMSR.FindStringSubmatch(said)
	if match == nil {
		if match = refusedCPU.FindStringSubmatch(said); match == nil || model == leastModel {
			return "", ""
		}
		return leastModel, console.Printable(strings.TrimSpace(match[0]))
	}
	msr, _ := strconv.ParseUint(match[1], 16, 64) // eight digits always fit
	why = console.Printable(match[0])
	base, have, _ := strings.Cut(model, ",")
	word := lessOf(msr)
	switch removed := strings.Split(have, ","); {
	case base == leastModel:
		return "", ""
	case word == "", slices.Contains(removed, word):
		return leastModel, why
	}
	return model + "," + word, why
}
