package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"turnstone.dev/turnstone"
)

// ordinary returns the description of a container that asks for nothing.
func ordinary() *specs.Spec {
	return &specs.Spec{Root: &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Args: []string{"true"}, Cwd: "/",
			Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_CHOWN"}}},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace},
			{Type: specs.NetworkNamespace, Path: "/proc/1/ns/net"},
			{Type: specs.IPCNamespace, Path: "/proc/1/ns/ipc"}, {Type: specs.MountNamespace}}},
		Mounts: []specs.Mount{{Type: "proc", Source: "proc", Destination: "/proc"},
			{Type: "cgroup", Source: "cgroup", Destination: "/sys/fs/cgroup", Options: []string{"ro"}},
			{Type: "tmpfs", Source: "shm", Destination: "/dev/shm"}}}
}

// owner is the pod whose containers are described.
var owner = Owner{Container: "id", Sandbox: strings.Repeat("b", 64), UID: "u"}

func parse(t testing.TB, s *specs.Spec) (*Container, error) {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return Parse(text, owner)
}

func TestParse(t *testing.T) {
	c, err := parse(t, ordinary())
	if err != nil {
		t.Fatal(err)
	}
	if !c.OwnPIDs || len(c.Mounts) != 3 || len(c.Process.Capabilities) != 1 {
		t.Errorf("%+v", c)
	}
	if m := c.Mounts[1]; m.Type != "bind" || m.Source != "/sys/fs/cgroup/pod-id" || m.Flags == 0 {
		t.Errorf("the control groups: %+v", m)
	}
}

// TestRefusals checks that what a sandbox does not have is refused with the field's name.
func TestRefusals(t *testing.T) {
	bind := func(source string, options ...string) func(*specs.Spec) {
		return func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Type: "bind", Source: source,
				Destination: "/x", Options: options})
		}
	}
	for _, x := range []struct {
		field  string
		change func(*specs.Spec)
	}{
		{"process.args", func(s *specs.Spec) { s.Process.Args = nil }},
		{"process", func(s *specs.Spec) { s.Process.Env = []string{"A=\x00"} }},
		{"process.capabilities", func(s *specs.Spec) {
			s.Process.Capabilities.Ambient = []string{"CAP_SYS_ADMIN"}
		}},
		{"process.user", func(s *specs.Spec) { s.Process.User.UID = noID }},
		{"process.user", func(s *specs.Spec) { s.Process.User.AdditionalGids = []uint32{0, noID} }},
		{"process.rlimits", func(s *specs.Spec) {
			s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NEW"}}
		}},
		{"hooks", func(s *specs.Spec) {
			s.Hooks = &specs.Hooks{Poststop: []specs.Hook{{Path: "/bin/sh"}}}
		}},
		{"linux.devices", func(s *specs.Spec) {
			s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/kvm"}}
		}},
		{"linux.namespaces", func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[1:] }},
		{"linux.uidMappings", func(s *specs.Spec) {
			s.Linux.UIDMappings = []specs.LinuxIDMapping{{Size: 1}}
		}},
		{"linux.rootfsPropagation", func(s *specs.Spec) { s.Linux.RootfsPropagation = "rshared" }},
		{"linux.sysctl", func(s *specs.Spec) {
			s.Linux.Sysctl = map[string]string{"net/../../etc/passwd": "x"}
		}},
		{"linux.maskedPaths", func(s *specs.Spec) { s.Linux.MaskedPaths = []string{"etc"} }},
		{"mounts", bind("/srv", "rbind", "rw")},
		{"mounts", bind("/srv", "rbind", "ro", "rshared")},
		{"mounts", bind("srv", "rbind", "ro")},
		{"mounts", bind("/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pvc/mount", "rw")},
		// a hostPath that only looks like a volume of this pod
		{"mounts", bind("/var/lib/kubelet/pods/other/containers/main/1234", "rw")},
		{"mounts", bind("/var/lib/kubelet/pods/other/volumes/kubernetes.io~secret/s", "rw")},
		{"mounts", bind("/var/lib/kubelet/pods/other/etc-hosts", "rw")},
		{"mounts", bind("/srv/pods/u/containers/main/passwd", "rw")},
		{"mounts", bind(containerdDir+"sandboxes/"+strings.Repeat("a", 64)+"/hosts", "rw")},
		{"mounts", bind(containerdDir+"containers/other/volumes/1", "rw")},
		// its name is the tenant's
		{"mounts", bind("/var/lib/kubelet/pods/u/volume-subpaths/empty-dir/main/0", "rw")},
		{"mounts", func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Type: "nfs", Destination: "/x"})
		}},
	} {
		s := ordinary()
		x.change(s)
		_, err := parse(t, s)
		var r *Refusal
		if !errors.As(err, &r) || r.Field != x.field {
			t.Errorf("want a refusal of %s: %v", x.field, err)
		}
	}
}

// containerdDir is a folder of containerd.
const containerdDir = "/var/lib/containerd/io.containerd.grpc.v1.cri/"

func TestVolumes(t *testing.T) {
	const pods = "/var/lib/kubelet/pods/u/"
	s := ordinary()
	for _, source := range []string{"volumes/kubernetes.io~empty-dir/a",
		"volumes/kubernetes.io~projected/b", "etc-hosts", "containers/main/1234"} {
		s.Mounts = append(s.Mounts, specs.Mount{Type: "bind", Source: pods + source,
			Destination: "/" + source, Options: []string{"rbind", "rw", "rprivate"}})
	}
	for i, source := range []string{"containers/id/volumes/1", "sandboxes/" + owner.Sandbox + "/hosts"} {
		s.Mounts = append(s.Mounts, specs.Mount{Type: "bind", Source: containerdDir + source,
			Destination: fmt.Sprint("/", i), Options: []string{"rbind", "rw", "rprivate"}})
	}
	s.Mounts = append(s.Mounts, specs.Mount{Type: "bind", Source: "/srv", Destination: "/srv",
		Options: []string{"rbind", "rro", "rprivate"}})
	c, err := parse(t, s)
	if err != nil {
		t.Fatal(err)
	}
	testSubPath(t)
	if len(c.Volumes) != 7 || !c.Volumes[6].ReadOnly || c.Volumes[4].Updated || c.Volumes[4].Back || c.Volumes[0].Updated || !c.Volumes[1].Updated || c.Volumes[2].Back ||
		!c.Volumes[3].Back {
		t.Errorf("%+v", c.Volumes)
	}
}

// testSubPath checks that a subPath of the pod's own emptyDir is a part of it.
func testSubPath(t *testing.T) {
	t.Helper()
	const pods = "/var/lib/kubelet/pods/"
	o := owner
	o.Below = func(source, folder string) (string, bool) {
		return "logs", source == pods+"u/volume-subpaths/scratch/main/0" &&
			folder == pods+"u/volumes/kubernetes.io~empty-dir/scratch"
	}
	for source, want := range map[string]bool{pods + "u/volume-subpaths/scratch/main/0": true,
		pods + "u/volume-subpaths/claim/main/0": false, "/srv/pods/v/volume-subpaths/scratch/main/0": false} {
		s := ordinary()
		s.Mounts = append(s.Mounts, specs.Mount{Type: "bind", Source: source, Destination: "/x",
			Options: []string{"rbind", "rw"}})
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Parse(text, o)
		if (err == nil) != want || want && (len(c.Volumes) != 1 || c.Volumes[0].Sub != "logs" ||
			c.Volumes[0].Source != pods+"u/volumes/kubernetes.io~empty-dir/scratch") {
			t.Errorf("%s: %+v, %v", source, c, err)
		}
	}
}

var bounds = Bounds{Default: turnstone.Shape{CPUs: 2, Memory: 1 << 30, Disk: 1 << 30},
	Most: turnstone.Shape{CPUs: 4, Memory: 8 << 30, Disk: 4 << 30}}

func pack(t testing.TB, c *cri.PodSandboxConfig) *anypb.Any {
	t.Helper()
	value, err := proto.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return &anypb.Any{Value: value}
}

func TestParsePod(t *testing.T) {
	p, err := ParsePod(pack(t, &cri.PodSandboxConfig{Hostname: "h",
		Annotations: map[string]string{DiskAnnotation: "2G"},
		Linux: &cri.LinuxPodSandboxConfig{Resources: &cri.LinuxContainerResources{
			CpuQuota: 250_000, CpuPeriod: 100_000, MemoryLimitInBytes: 2 << 30}}}), bounds)
	if err != nil {
		t.Fatal(err)
	}
	if s := p.Shape; s.CPUs != 3 || s.Memory != 2<<30+overhead || s.Disk != 2<<30 {
		t.Errorf("%+v", s)
	}
	for field, c := range map[string]*cri.PodSandboxConfig{
		"hostname":                     {Hostname: strings.Repeat("a", 64)},
		"annotation " + DiskAnnotation: {Annotations: map[string]string{DiskAnnotation: "1T"}},
		"resources.limits.cpu": {Linux: &cri.LinuxPodSandboxConfig{
			Resources: &cri.LinuxContainerResources{CpuQuota: 1 << 40, CpuPeriod: 1}}},
	} {
		var r *Refusal
		if _, err := ParsePod(pack(t, c), bounds); !errors.As(err, &r) || r.Field != field {
			t.Errorf("want a refusal of %s: %v", field, err)
		}
	}
}

// FuzzParse checks that what is accepted has only what a sandbox has.
func FuzzParse(f *testing.F) {
	text, _ := json.Marshal(ordinary())
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse(text, owner)
		if err != nil {
			return
		}
		for _, m := range c.Mounts {
			if !strings.HasPrefix(m.Target, "/") || strings.Contains(m.Target+m.Source, "\x00") {
				t.Errorf("a mount at %q", m.Target)
			}
		}
		for _, v := range c.Volumes {
			if v.Mount < 0 || v.Mount >= len(c.Mounts) || !strings.HasPrefix(v.Source, "/") {
				t.Errorf("%+v", v)
			}
		}
	})
}

// FuzzParsePod checks that no pod gets more than the node allows.
func FuzzParsePod(f *testing.F) {
	f.Add(pack(f, &cri.PodSandboxConfig{Hostname: "h"}).Value)
	f.Fuzz(func(t *testing.T, value []byte) {
		p, err := ParsePod(&anypb.Any{Value: value}, bounds)
		if err == nil && (p.Shape.CPUs > 4 || p.Shape.Memory > 8<<30 || p.Shape.Disk > 4<<30) {
			t.Errorf("%+v", p.Shape)
		}
	})
}
