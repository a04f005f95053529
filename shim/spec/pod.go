package spec

import (
	"fmt"
	"math"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/shim/guest"
)

// A Pod is what a pod asks of its sandbox.
type Pod struct {
	UID          string // the kubelet's name for the pod
	Hostname     string
	DNS          *cri.DNSConfig // nil: the host's
	Sysctl       map[string]string
	Shape        turnstone.Shape
	CgroupParent string
}

// Bounds of a pod's sandbox, which the node's administrator sets.
type Bounds struct {
	Default turnstone.Shape // of a pod that asks for nothing
	Most    turnstone.Shape
}

// DiskAnnotation is the annotation that asks for a size of the sandbox's disk.
const DiskAnnotation = "turnstone.dev/disk"

// ParsePod reads the configuration that a pod's sandbox is created with. The error is a *Refusal if
// there is no such sandbox.
func ParsePod(options *anypb.Any, b Bounds) (*Pod, error) {
	p := &Pod{Shape: b.Default}
	if options == nil {
		return p, nil
	}
	if len(options.GetValue()) > MaxSize {
		return nil, refuse("PodSandboxConfig", "it has more than %d bytes", MaxSize)
	}
	var c cri.PodSandboxConfig
	if err := proto.Unmarshal(options.GetValue(), &c); err != nil {
		return nil, fmt.Errorf("the pod's configuration: %w", err)
	}
	ns := c.GetLinux().GetSecurityContext().GetNamespaceOptions()
	sec := c.GetLinux().GetSecurityContext()
	switch {
	case ns.GetNetwork() == cri.NamespaceMode_NODE:
		return nil, refuse("hostNetwork", "the host's network")
	case ns.GetPid() == cri.NamespaceMode_NODE:
		return nil, refuse("hostPID", "the host's processes")
	case ns.GetIpc() == cri.NamespaceMode_NODE:
		return nil, refuse("hostIPC", "the host's shared memory")
	case ns.GetUsernsOptions() != nil && ns.GetUsernsOptions().GetMode() == cri.NamespaceMode_POD:
		return nil, refuse("hostUsers", "users are those of the sandbox: leave the field out")
	case sec.GetPrivileged():
		return nil, refuse("securityContext.privileged", "a privileged sandbox")
	}
	p.UID, p.Hostname = c.GetMetadata().GetUid(), c.GetHostname()
	if err := checkHostname(p.Hostname); err != nil {
		return nil, err
	}
	p.DNS = c.GetDnsConfig()
	p.Sysctl = c.GetLinux().GetSysctls()
	if err := CheckSysctl(p.Sysctl); err != nil {
		return nil, err
	}
	p.CgroupParent = c.GetLinux().GetCgroupParent()
	r := c.GetLinux().GetResources()
	return p, p.shape(guest.Limits{CPUQuota: r.GetCpuQuota(), CPUPeriod: uint64(max(r.GetCpuPeriod(), 0)),
		Memory: r.GetMemoryLimitInBytes()}, c.GetAnnotations(), b)
}

func checkHostname(name string) error {
	if len(name) > 63 || strings.ContainsAny(name, "\x00/ \n") {
		return refuse("hostname", "%.70q is no host name", name)
	}
	return nil
}

// overhead is the memory that the sandbox's agent and kernel take beside the containers.
const overhead = 128 << 20

// shape chooses the machine: as large as the containers' limits together, which the kubelet adds.
func (p *Pod) shape(l guest.Limits, annotations map[string]string, b Bounds) error {
	if l.CPUQuota > 0 && l.CPUPeriod > 0 {
		p.Shape.CPUs = int(min(math.Ceil(float64(l.CPUQuota)/float64(l.CPUPeriod)), turnstone.MaxCPUs))
	}
	if l.Memory > 0 {
		if l.Memory > int64(turnstone.MaxMemory)-overhead {
			return refuse("resources.limits.memory", "%d bytes", l.Memory)
		}
		p.Shape.Memory = max(turnstone.Bytes(l.Memory)+overhead, turnstone.MinMemory)
	}
	if text, ok := annotations[DiskAnnotation]; ok {
		disk, err := turnstone.ParseBytes(text)
		if err != nil {
			return refuse("annotation "+DiskAnnotation, "%.40q is no size", text)
		}
		p.Shape.Disk = disk
	}
	for _, x := range []struct {
		field      string
		have, most turnstone.Bytes
	}{
		{"resources.limits.cpu", turnstone.Bytes(p.Shape.CPUs), turnstone.Bytes(b.Most.CPUs)},
		{"resources.limits.memory", p.Shape.Memory, b.Most.Memory},
		{"annotation " + DiskAnnotation, p.Shape.Disk, b.Most.Disk},
	} {
		if x.have > x.most {
			return refuse(x.field, "it is more than this node allows (%d, at most %d)",
				x.have, x.most)
		}
	}
	if err := p.Shape.Validate(); err != nil {
		return refuse("resources.limits", "%v", err)
	}
	return nil
}
