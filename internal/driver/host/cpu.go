package host

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

var cpuLine = lazyregexp.New(`(?m)^(model name|flags|microcode)\s*:.*$`)

// firstCPU returns the lines on the first CPU in /proc/cpuinfo.
func firstCPU() ([][]byte, error) {
	b, err := os.ReadFile("/proc/cpuinfo")
	first, _, _ := bytes.Cut(b, []byte("\n\n"))
	return cpuLine.FindAll(first, -1), err
}

// CPU digests the CPU's properties in /proc/cpuinfo: sandboxes see its features, and QEMU's
// translator depends on them. A snapshot fits only a CPU with the same digest.
func CPU() (turnstone.Digest, error) {
	lines, err := firstCPU()
	if err != nil {
		return "", err
	}
	return turnstone.DigestBytes(bytes.Join(lines, []byte("\n"))), nil
}

// A Model contains the properties that CPU digests, except the microcode's version, which no
// sandbox sees: features that microcode disables are missing in Features.
type Model struct {
	Name     string   `json:"name"`
	Features []string `json:"features"` // sorted
}

// CPUModel returns this host's CPU model.
func CPUModel() (*Model, error) {
	lines, err := firstCPU()
	if err != nil {
		return nil, err
	}
	m := &Model{}
	for _, line := range lines {
		key, value, _ := strings.Cut(string(line), ":")
		switch value = strings.TrimSpace(value); strings.TrimSpace(key) {
		case "model name":
			m.Name = value
		case "flags":
			m.Features = strings.Fields(value)
			slices.Sort(m.Features)
		}
	}
	return m, nil
}

// Differs returns why a machine that ran on a CPU of the model m cannot resume on this host: "" if
// it can. m is untrusted; nil means that the model is unknown.
func (m *Model) Differs() string {
	now, err := CPUModel()
	if err != nil {
		return "CPU"
	}
	return m.lacks(now)
}

// lacks is Differs for a given host model now. Additional features do not matter.
func (m *Model) lacks(now *Model) string {
	if m == nil {
		return "CPU (now " + Clip(now.Name) + ")"
	}
	if m.Name != now.Name {
		return fmt.Sprintf("CPU (%s, now %s)", Clip(m.Name), Clip(now.Name))
	}
	var missing []string
	for _, f := range m.Features {
		if _, has := slices.BinarySearch(now.Features, f); !has {
			missing = append(missing, f)
		}
	}
	if len(missing) == 0 {
		return ""
	}
	const most = 8
	what := strings.Join(missing[:min(most, len(missing))], " ")
	if n := len(missing) - most; n > 0 {
		what += fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("CPU (%s with %s, now without)", Clip(m.Name), Clip(what))
}

// Series returns the part of a kernel's release that determines its interfaces, such as 6.1 of
// 6.1.0-25-amd64.
func Series(release string) string {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 3 {
		return release
	}
	return parts[0] + "." + parts[1]
}

// Clip makes an untrusted text short and printable.
func Clip(s string) string { return brief.Clip(console.Printable(s), 120) }
