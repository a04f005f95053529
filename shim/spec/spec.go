// Package spec reads what containerd asks of a pod and its containers: descriptions that tenants
// have written. It refuses what a sandbox cannot give, with the field's name, and returns the rest
// in the words of the helper in the sandbox.
package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/shim/guest"
)

// Bounds of a description.
const (
	MaxSize   = 4 << 20 // bytes of its JSON
	maxMounts = 256
	maxList   = 100_000 // words of the command and its environment
)

// A Refusal is the error of a description that a sandbox cannot have.
type Refusal struct {
	Field string // as the OCI runtime specification, or the CRI, names it
	Why   string
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("%s: %s; runtime class turnstone does not have it", r.Field, r.Why)
}

func refuse(field, format string, args ...any) error {
	return &Refusal{Field: field, Why: fmt.Sprintf(format, args...)}
}

// A Container is what a description asks for.
type Container struct {
	guest.Container
	Terminal bool
	Volumes  []Volume // host paths that become mounts, in the order of Mounts
}

// defaultCaps are the capabilities that a container may have: those of a container of a pod that
// asks for none.
var defaultCaps = map[string]int{
	"CAP_CHOWN": unix.CAP_CHOWN, "CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE,
	"CAP_FSETID": unix.CAP_FSETID, "CAP_FOWNER": unix.CAP_FOWNER, "CAP_MKNOD": unix.CAP_MKNOD,
	"CAP_NET_RAW": unix.CAP_NET_RAW, "CAP_SETGID": unix.CAP_SETGID, "CAP_SETUID": unix.CAP_SETUID,
	"CAP_SETFCAP": unix.CAP_SETFCAP, "CAP_SETPCAP": unix.CAP_SETPCAP,
	"CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE, "CAP_SYS_CHROOT": unix.CAP_SYS_CHROOT,
	"CAP_KILL": unix.CAP_KILL, "CAP_AUDIT_WRITE": unix.CAP_AUDIT_WRITE,
}

// Parse reads an OCI description. The error is a *Refusal if a sandbox cannot have it.
func Parse(config []byte, o Owner) (*Container, error) {
	if len(config) > MaxSize {
		return nil, refuse("config.json", "it has more than %d bytes", MaxSize)
	}
	var s specs.Spec
	if err := json.Unmarshal(config, &s); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	if s.Process == nil || s.Linux == nil || s.Root == nil {
		return nil, errors.New("config.json: process, root or linux is missing")
	}
	c := new(Container)
	var err error
	if c.Process, err = Process(s.Process); err != nil {
		return nil, err
	}
	c.Terminal = s.Process.Terminal
	if err := c.namespaces(s.Linux); err != nil {
		return nil, err
	}
	if err := check(&s); err != nil {
		return nil, err
	}
	c.Masked, c.ReadOnly = s.Linux.MaskedPaths, s.Linux.ReadonlyPaths
	c.ReadOnlyRoot = s.Root.Readonly
	c.Sysctl = maps.Clone(s.Linux.Sysctl)
	if err := CheckSysctl(c.Sysctl); err != nil {
		return nil, err
	}
	for _, p := range slices.Concat(c.Masked, c.ReadOnly) {
		if err := guest.CheckPath(p); err != nil {
			return nil, refuse("linux.maskedPaths", "%.100q: %v", p, err)
		}
	}
	c.Limits = Limits(s.Linux.Resources)
	if len(s.Mounts) > maxMounts {
		return nil, refuse("mounts", "there are more than %d", maxMounts)
	}
	for _, m := range s.Mounts {
		if err := c.mount(m, o); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// CheckSysctl reports a name that is no kernel parameter's.
func CheckSysctl(all map[string]string) error {
	for key := range all {
		for part := range strings.SplitSeq(key, ".") {
			if part == "" || strings.ContainsAny(part, "/\x00") || len(key) > 200 {
				return refuse("linux.sysctl", "%.100q is no kernel parameter", key)
			}
		}
	}
	return nil
}

// check refuses what no sandbox has.
func check(s *specs.Spec) error {
	switch h := s.Hooks; {
	//lint:ignore SA1019 a description may still have them
	case h != nil && len(h.Prestart)+len(h.CreateRuntime)+len(h.CreateContainer)+
		len(h.StartContainer)+len(h.Poststart)+len(h.Poststop) > 0:
		return refuse("hooks", "hooks run on the host")
	case len(s.Linux.UIDMappings)+len(s.Linux.GIDMappings) > 0:
		return refuse("linux.uidMappings", "users are those of the sandbox")
	case s.Linux.RootfsPropagation == "shared" || s.Linux.RootfsPropagation == "rshared":
		return refuse("linux.rootfsPropagation", "nothing of the host is mounted")
	case s.Linux.Personality != nil && s.Linux.Personality.Domain != specs.PerLinux:
		return refuse("linux.personality", "%q is not possible", s.Linux.Personality.Domain)
	}
	for _, d := range s.Linux.Devices {
		switch d.Path {
		case "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty":
		default:
			return refuse("linux.devices", "a device of the host: %.100q", d.Path)
		}
	}
	return nil
}

// namespaces refuses those of the host.
func (c *Container) namespaces(l *specs.Linux) error {
	have := map[specs.LinuxNamespaceType]string{}
	for _, n := range l.Namespaces {
		if n.Type == specs.UserNamespace {
			return refuse("linux.namespaces", "users are those of the sandbox")
		}
		have[n.Type] = n.Path
	}
	for _, t := range []specs.LinuxNamespaceType{specs.PIDNamespace, specs.NetworkNamespace,
		specs.IPCNamespace, specs.MountNamespace} {
		if _, ok := have[t]; !ok {
			return refuse("linux.namespaces", "the host's namespace (%s)", t)
		}
	}
	c.OwnPIDs = have[specs.PIDNamespace] == ""
	return nil
}

// noID is (uid_t)-1, by which setresuid(2) leaves the user as it is.
const noID = 1<<32 - 1

// Process reads the description of a process.
func Process(p *specs.Process) (guest.Process, error) {
	g := guest.Process{Args: p.Args, Cwd: path.Clean("/" + p.Cwd), Terminal: p.Terminal,
		UID: p.User.UID, GID: p.User.GID, Groups: p.User.AdditionalGids, Umask: p.User.Umask,
		NoNewPrivs: p.NoNewPrivileges, OOMScoreAdj: p.OOMScoreAdj}
	if len(p.Args) == 0 || p.Args[0] == "" {
		return g, refuse("process.args", "there is no program")
	}
	if len(p.Args)+len(p.Env) > maxList {
		return g, refuse("process.args", "there are more than %d words", maxList)
	}
	if slices.Contains(slices.Concat(p.User.AdditionalGids, []uint32{p.User.UID, p.User.GID}), noID) {
		return g, refuse("process.user", "%d is no number of a user or group", uint32(noID))
	}
	if len(p.User.AdditionalGids) > 65536 {
		return g, refuse("process.user.additionalGids", "there are too many")
	}
	for _, text := range slices.Concat(p.Args, p.Env, []string{p.Cwd}) {
		if strings.ContainsRune(text, 0) {
			return g, refuse("process", "a word contains a byte 0")
		}
	}
	for _, kv := range p.Env {
		if strings.Contains(kv, "=") {
			g.Env = append(g.Env, kv)
		}
	}
	if c := p.Capabilities; c != nil {
		for _, name := range slices.Concat(c.Bounding, c.Effective, c.Permitted, c.Inheritable,
			c.Ambient) {
			n, ok := defaultCaps[name]
			if !ok {
				return g, refuse("process.capabilities", "%.40q (or privileged)", name)
			}
			if slices.Contains(c.Bounding, name) && !slices.Contains(g.Capabilities, n) {
				g.Capabilities = append(g.Capabilities, n)
			}
		}
	}
	for _, l := range p.Rlimits {
		n, ok := rlimits[l.Type]
		if !ok {
			return g, refuse("process.rlimits", "%.40q is unknown", l.Type)
		}
		g.Rlimits = append(g.Rlimits, guest.Rlimit{Resource: n, Soft: l.Soft, Hard: l.Hard})
	}
	return g, nil
}

var rlimits = map[string]int{
	"RLIMIT_AS": unix.RLIMIT_AS, "RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_CPU": unix.RLIMIT_CPU,
	"RLIMIT_DATA": unix.RLIMIT_DATA, "RLIMIT_FSIZE": unix.RLIMIT_FSIZE,
	"RLIMIT_LOCKS": unix.RLIMIT_LOCKS, "RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK,
	"RLIMIT_MSGQUEUE": unix.RLIMIT_MSGQUEUE, "RLIMIT_NICE": unix.RLIMIT_NICE,
	"RLIMIT_NOFILE": unix.RLIMIT_NOFILE, "RLIMIT_NPROC": unix.RLIMIT_NPROC,
	"RLIMIT_RSS": unix.RLIMIT_RSS, "RLIMIT_RTPRIO": unix.RLIMIT_RTPRIO,
	"RLIMIT_RTTIME": unix.RLIMIT_RTTIME, "RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING,
	"RLIMIT_STACK": unix.RLIMIT_STACK,
}

// Limits returns what bounds a container; devices, huge pages and the like bound nothing there.
func Limits(r *specs.LinuxResources) (l guest.Limits) {
	if r == nil {
		return l
	}
	if m := r.Memory; m != nil && m.Limit != nil && *m.Limit > 0 {
		l.Memory = *m.Limit
	}
	if c := r.CPU; c != nil && c.Quota != nil && *c.Quota > 0 {
		l.CPUQuota, l.CPUPeriod = *c.Quota, 100_000
		if c.Period != nil && *c.Period > 0 {
			l.CPUPeriod = *c.Period
		}
	}
	if p := r.Pids; p != nil && p.Limit != nil && *p.Limit > 0 {
		l.PIDs = *p.Limit
	}
	return l
}

// ParseProcess reads the description of an exec.
func ParseProcess(text []byte) (guest.Process, error) {
	var p specs.Process
	if len(text) > MaxSize {
		return guest.Process{}, refuse("process", "it has more than %d bytes", MaxSize)
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return guest.Process{}, fmt.Errorf("the process: %w", err)
	}
	return Process(&p)
}

// ParseLimits reads the description of a container's new bounds.
func ParseLimits(text []byte) (guest.Limits, error) {
	var r specs.LinuxResources
	if len(text) > MaxSize {
		return guest.Limits{}, refuse("resources", "they have more than %d bytes", MaxSize)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return guest.Limits{}, fmt.Errorf("the resources: %w", err)
	}
	return Limits(&r), nil
}
