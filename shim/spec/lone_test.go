package spec

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"turnstone.dev/turnstone"
)

// TestParseLone checks what a container without a pod asks of its sandbox.
func TestParseLone(t *testing.T) {
	bounds := Bounds{Default: turnstone.Shape{CPUs: 2, Memory: 2 << 30, Disk: 10 << 30},
		Most: turnstone.Shape{CPUs: 8, Memory: 4 << 30, Disk: 10 << 30}}
	parse := func(change func(*specs.Spec)) (*Lone, error) {
		s := ordinary()
		change(s)
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return ParseLone(text, bounds)
	}
	memory := func(n int64) func(*specs.Spec) {
		return func(s *specs.Spec) {
			s.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &n}}
		}
	}
	l, err := parse(func(s *specs.Spec) { s.Root.Path = "/r/./x" })
	if err != nil || l.Pod.Shape != bounds.Default || l.Network != "/proc/1/ns/net" || l.Root != "/r/x" {
		t.Errorf("%+v, %v", l, err)
	}
	if l, err := parse(memory(1 << 30)); err != nil || l.Pod.Shape.Memory != 1<<30+overhead || l.Root != "" {
		t.Errorf("with a limit: %+v, %v", l, err)
	}
	for name, change := range map[string]func(*specs.Spec){
		"memory":   memory(4 << 30),
		"hostname": func(s *specs.Spec) { s.Hostname = "a\nb" },
		"a pod's container": func(s *specs.Spec) {
			s.Annotations = map[string]string{"io.kubernetes.cri.sandbox-id": "x"}
		},
		"disk": func(s *specs.Spec) { s.Annotations = map[string]string{DiskAnnotation: "much"} },
	} {
		var r *Refusal
		if _, err := parse(change); !errors.As(err, &r) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
