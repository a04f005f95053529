package spec

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"

	"turnstone.dev/turnstone/shim/guest"
)

// A Lone is what a container without a pod asks of the sandbox that it has for itself.
type Lone struct {
	Pod     *Pod
	Network string // the path of its network namespace; empty: a new one
	Root    string // the folder of its root file system on the host; empty: that of its bundle
}

// Annotations by which containerd marks containers of pods. They need the pod's sandbox.
var podAnnotations = []string{"io.kubernetes.cri.container-type", "io.kubernetes.cri.sandbox-id"}

// ParseLone reads the OCI description of a container without a pod. Parse refuses what it has of the
// host. The error is a *Refusal if there is no such sandbox.
func ParseLone(config []byte, b Bounds) (*Lone, error) {
	if len(config) > MaxSize {
		return nil, refuse("config.json", "it has more than %d bytes", MaxSize)
	}
	var s specs.Spec
	if err := json.Unmarshal(config, &s); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	for _, key := range podAnnotations {
		if _, ok := s.Annotations[key]; ok {
			return nil, refuse("annotation "+key, `a pod without its sandbox (containerd's `+
				`configuration of the runtime needs sandboxer = "shim")`)
		}
	}
	l := &Lone{Pod: &Pod{Shape: b.Default, Hostname: s.Hostname}}
	if err := checkHostname(s.Hostname); err != nil {
		return nil, err
	}
	if s.Root != nil && filepath.IsAbs(s.Root.Path) {
		l.Root = filepath.Clean(s.Root.Path)
	}
	var limits guest.Limits
	if s.Linux != nil {
		for _, n := range s.Linux.Namespaces {
			if n.Type == specs.NetworkNamespace {
				l.Network = n.Path
			}
		}
		limits = Limits(s.Linux.Resources)
	}
	return l, l.Pod.shape(limits, s.Annotations, b)
}
