package paused

import (
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/sandboxes"
)

// hostSays are configurations with different network rules; the first two have the same rules.
var hostSays = []string{"", "[network]\ndefault = \"on\"", "[network]\nlocked = true",
	"[network]\nlocked = true\nallow = [\"pub2.test\"]",
	"[network]\nallow = [\"10.1.2.3\"]", "[network]\ndeny = [\"a.test\"]",
	"[network]\ndns = \"192.0.2.1:53\"", "[documents]\nallow = [\"10.1.0.0/16\"]"}

// TestMachineOfOtherRules checks that a turn resumes a paused machine only if the machine's network
// is what the turn would get today, whatever the host's configuration was when the machine was
// created.
func TestMachineOfOtherRules(tt *testing.T) {
	t := tt
	x := host.New(&statedir.Dir{Root: t.TempDir()}, host.Options{}, nil)
	path := filepath.Join(x.Dir.Root, "config.toml")
	says := append(hostSays, "[network]\ndefault = \"off\"",
		"[network]\ndefault = \"off\"\nlocked = true")
	planWith := func(t *rapid.T, host string, front document.FrontMatter) (*plan.Plan, error) {
		if err := os.WriteFile(path, []byte(host), 0o600); err != nil {
			t.Fatal(err)
		}
		a := &plan.Authority{Request: plan.Request{Document: &document.Document{Front: front}},
			Host: ok[plan.Host](tt)(x.Facts())}
		return plan.Make(a, "", "/workspace")
	}
	rapid.Check(t, func(t *rapid.T) {
		front := document.FrontMatter{}
		if rapid.Bool().Draw(t, "rules") {
			front.NetworkRules = &document.NetworkRules{Allow: []string{"pub2.test"},
				HasAllow: true}
		}
		at := func(label string) int { return rapid.IntRange(0, len(says)-1).Draw(t, label) }
		first, second := at("first"), at("second")
		was, err := planWith(t, says[first], front)
		if err != nil {
			return // rejected, and no machine was created
		}
		m := sandboxes.Info{Shape: was.Shape, Network: &was.Net.Asked}
		rules := x.StillRules(was.Net.Host)
		now, err := planWith(t, says[second], front)
		if err != nil {
			return
		}
		switch went := matches(now, m, rules); {
		case first == second && !went:
			t.Fatalf("another machine is made although the host says what it did: %q", says[first])
		case went && m.Shape.Network && !now.Shape.Network:
			t.Fatalf("a network goes on that %q switches off", says[second])
		case went && m.Shape.Network && first != second && min(first, second) >= 2 &&
			max(first, second) < len(hostSays):
			t.Fatalf("made under %q, and goes on under %q", says[first], says[second])
		}
		if m.Shape.Network && matches(now, m, "") {
			t.Fatal("a machine goes on although nobody knows by which rules it was made")
		}
		other := m
		other.Network = &turnstone.NetworkSpec{Deny: []string{"x.test"}}
		if m.Shape.Network && matches(now, other, rules) {
			t.Fatal("a machine of other rules goes on")
		}
	})
}

// TestMachineOfOtherIsolation checks that a turn resumes a machine only on the requested substrate
// and with the requested isolation.
func TestMachineOfOtherIsolation(t *testing.T) {
	for _, c := range []struct {
		driver    string
		isolation document.Isolation
		name, is  string
		want      bool
	}{
		{"auto", "", "gvisor", "gvisor (systrap)", true},
		{"", "", "gvisor", "gvisor (systrap)", true},
		{"gvisor", "", "gvisor", "gvisor (systrap)", true},
		{"qemu", "", "gvisor", "gvisor (systrap)", false},
		{"qemu", "", "qemu", "microvm (TCG)", true},
		{"auto", document.IsolationMicroVM, "gvisor", "gvisor (systrap)", false},
		{"auto", document.IsolationMicroVM, "qemu", "microvm (TCG)", true},
		{"auto", document.IsolationMicroVM, "qemu", "", false},
		{"auto", document.IsolationMicroVM, "firecracker", "microvm (KVM, jailed)", true},
		{"auto", document.IsolationMicroVM, "firecracker", "microvm (KVM, test kernel, jailed)",
			false},
		{"auto", document.IsolationMicroVM, "qemu", "microvm (KVM, test kernel)", false},
		{"qemu", document.IsolationMicroVM, "firecracker", "microvm (KVM, jailed)", false},
	} {
		p := &plan.Plan{Driver: c.driver, Isolation: c.isolation}
		if got := matches(p, sandboxes.Info{Substrate: c.name, Isolation: c.is},
			""); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
}
