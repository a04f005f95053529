package agents

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"

	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// Bounds of a sandbox at the control API.
const (
	maxEnv      = 64
	maxName     = 128
	maxValue    = 2048
	maxMetadata = 32
	maxKey      = 64
	maxMetaText = 256
	maxImage    = 255
	maxInits    = 20

	leastMemory = 256 << 20
	mostMemory  = 1 << 40
	leastDisk   = 16 << 20
	mostDisk    = 16 << 40
	mostCPUs    = 64
	// usualDisk is added to what volumes ask for.
	usualDisk = 4 << 30
)

var (
	envName   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	metaKey   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]*$`)
	imageName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$`)
)

// Unsupported is the error about a pod that no sandbox can be.
type Unsupported struct{ Field, Why string }

func (u Unsupported) Error() string { return u.Field + ": " + u.Why }

// convert returns the call that creates the sandbox of an object, and its process. The request is the
// same for the same object, whenever it is made. An error is Unsupported.
func (o *Options) convert(s *sandboxv1.Sandbox) (*v1.CreateSandboxRequest, Main, error) {
	pod := &s.Spec.PodTemplate.Spec
	if err := supported(s, pod); err != nil {
		return nil, Main{}, err
	}
	c := &pod.Containers[0]
	r := &v1.CreateSandboxRequest{IdempotencyKey: string(s.UID), Timeout: durationpb.New(life),
		Cwd: c.WorkingDir, ManagedBy: o.ours(s), Metadata: map[string]string{MetadataUID: string(s.UID),
			MetadataName: s.Name, MetadataNamespace: s.Namespace, MetadataCluster: o.Cluster}}
	image := o.image(c.Image)
	if len(image) > maxImage || !imageName.MatchString(image) {
		return nil, Main{}, Unsupported{"containers[0].image", "is not the name of an image"}
	}
	r.Source = &v1.CreateSandboxRequest_Image{Image: image}
	if api.IsTemplateName(image) {
		r.Source = &v1.CreateSandboxRequest_Template{Template: image}
	}
	var err error
	if r.Env, err = environment(s, c); err != nil {
		return nil, Main{}, err
	}
	if r.Machine, err = machine(s, c); err != nil {
		return nil, Main{}, err
	}
	m, err := process(s, pod, c)
	if r.GetTemplate() != "" && len(c.Args) == 0 {
		m.Image = false // a template of the server starts nothing by itself
	}
	r.Metadata[MetadataAttempt] = "0"
	labels := s.Spec.PodTemplate.ObjectMeta.Labels
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if v := labels[k]; len(k) <= maxKey && metaKey.MatchString(k) && len(v) <= maxMetaText &&
			len(r.Metadata) < maxMetadata && r.Metadata[k] == "" {
			r.Metadata[k] = v
		}
	}
	return r, m, err
}

// supported reports what a pod asks for that a sandbox cannot have.
func supported(s *sandboxv1.Sandbox, p *corev1.PodSpec) error {
	for _, f := range []struct {
		asked      bool
		field, why string
	}{
		{p.HostNetwork, "hostNetwork", "a sandbox has a network of its own"},
		{p.HostPID, "hostPID", "a sandbox has processes of its own"},
		{p.HostIPC, "hostIPC", "a sandbox has a kernel of its own"},
		{len(p.Containers) != 1, "containers", "a sandbox has exactly one, without sidecars"},
		{len(p.InitContainers) > maxInits, "initContainers", "are more than " + strconv.Itoa(maxInits)},
		{len(p.EphemeralContainers) > 0, "ephemeralContainers", "a sandbox has one container"},
		{len(p.HostAliases) > 0, "hostAliases", "names come from the sandbox's name server"},
		{p.DNSConfig != nil, "dnsConfig", "names come from the sandbox's name server"},
		{len(p.ResourceClaims) > 0, "resourceClaims", "a sandbox has no devices"},
		{p.OS != nil && p.OS.Name != corev1.Linux, "os", "a sandbox runs Linux"},
	} {
		if f.asked {
			return Unsupported{f.field, f.why}
		}
	}
	for n := range p.Volumes {
		if why := unsupportedVolume(s, &p.Volumes[n]); why != "" {
			return Unsupported{fmt.Sprintf("volumes[%d]", n), why}
		}
	}
	for n := range p.InitContainers {
		if err := supportedInit(p, &p.InitContainers[n]); err != nil {
			return ofInit(n, err)
		}
	}
	return supportedContainer(&p.Containers[0])
}

// supportedInit reports what an init container asks for that a sandbox cannot have. Fields are named as those of the
// container: ofInit changes that.
func supportedInit(p *corev1.PodSpec, c *corev1.Container) error {
	if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
		return Unsupported{"containers[0].restartPolicy", "a sandbox has no sidecars"}
	}
	if c.Image != p.Containers[0].Image {
		return Unsupported{"containers[0].image", "is not that of the container: all that runs in a sandbox shares its image"}
	}
	for n, m := range c.VolumeMounts {
		for _, other := range p.Containers[0].VolumeMounts {
			if other.Name == m.Name && path.Clean(other.MountPath) != path.Clean(m.MountPath) &&
				!slices.ContainsFunc(p.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name && ofFiles(&v) }) {
				return Unsupported{fmt.Sprintf("containers[0].volumeMounts[%d]", n),
					"is mounted elsewhere in the container: a volume has one place in a sandbox"}
			}
		}
	}
	return supportedContainer(c)
}

// ofInit is an error about an init container.
func ofInit(n int, err error) error {
	var no Unsupported
	if !errors.As(err, &no) {
		return err
	}
	no.Field = strings.Replace(no.Field, "containers[0]", fmt.Sprintf("initContainers[%d]", n), 1)
	return no
}

func supportedContainer(c *corev1.Container) error {
	if x := c.SecurityContext; x != nil {
		if x.Privileged != nil && *x.Privileged {
			return Unsupported{"containers[0].securityContext.privileged", "a sandbox has no rights on its host"}
		}
		if x.Capabilities != nil && len(x.Capabilities.Add) > 0 {
			return Unsupported{"containers[0].securityContext.capabilities.add", "a sandbox has the capabilities of its own kernel"}
		}
	}
	if len(c.VolumeDevices) > 0 {
		return Unsupported{"containers[0].volumeDevices", "a sandbox has no devices"}
	}
	for n, p := range c.Ports {
		if p.HostPort != 0 {
			return Unsupported{fmt.Sprintf("containers[0].ports[%d].hostPort", n), "ports are reached through the router"}
		}
	}
	for name := range c.Resources.Limits {
		switch name {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		default:
			return Unsupported{"containers[0].resources.limits[" + string(name) + "]", "a sandbox has no devices"}
		}
	}
	return nil
}

// environment returns the variables of a container that its object alone says, which the server sees. Others
// are its inputs.
func environment(s *sandboxv1.Sandbox, c *corev1.Container) (map[string]string, error) {
	if len(c.Env) > maxEnv {
		return nil, Unsupported{"containers[0].env", "has more than " + strconv.Itoa(maxEnv) + " variables"}
	}
	all, later := make(map[string]string, len(c.Env)), map[string]bool{}
	for n, e := range c.Env {
		field := fmt.Sprintf("containers[0].env[%d]", n)
		if len(e.Name) > maxName || !envName.MatchString(e.Name) {
			return nil, Unsupported{field, "the name is no variable's"}
		}
		if strings.ContainsRune(e.Value, 0) || len(e.Value) > maxSecret {
			return nil, Unsupported{field, "the value has a zero byte, or more than 60 KiB"}
		}
		waits := false // for what the object does not say
		value := expand(e.Value, func(name string) (string, bool) {
			v, has := all[name]
			waits = waits || later[name] || !has && len(c.EnvFrom) > 0
			return v, has
		})
		if f := e.ValueFrom; f != nil {
			var err error
			if waits = f.SecretKeyRef != nil || f.ConfigMapKeyRef != nil; !waits {
				value, err = downward(s, f, n)
			}
			if err != nil {
				return nil, err
			}
		}
		if later[e.Name] = waits || len(value) > maxValue; later[e.Name] {
			delete(all, e.Name)
			continue
		}
		all[e.Name] = value
	}
	return all, nil
}

// machine returns the size that a container asks for; zero values are the template's.
func machine(s *sandboxv1.Sandbox, c *corev1.Container) (*v1.Machine, error) {
	of := func(name corev1.ResourceName) *resource.Quantity { // the most that a container asks for, as of a pod
		most := resource.NewQuantity(0, resource.DecimalSI)
		for _, c := range append([]corev1.Container{*c}, s.Spec.PodTemplate.Spec.InitContainers...) {
			for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
				if q, ok := list[name]; ok {
					if q.Cmp(*most) > 0 || q.Sign() < 0 {
						most = &q
					}
					break
				}
			}
		}
		return most
	}
	cpus, memory, disk := of(corev1.ResourceCPU).MilliValue(), of(corev1.ResourceMemory).Value(),
		of(corev1.ResourceEphemeralStorage).Value()
	var volumes int64
	for _, v := range s.Spec.VolumeClaimTemplates {
		q := v.Spec.Resources.Requests[corev1.ResourceStorage]
		if volumes += min(q.Value(), mostDisk); q.Value() < 0 || q.Value() > mostDisk || volumes > mostDisk {
			return nil, Unsupported{"volumeClaimTemplates", "ask for more than a sandbox's disk can have"}
		}
	}
	if volumes > 0 && disk == 0 {
		disk = usualDisk
	}
	if disk += volumes; cpus < 0 || memory < 0 || disk < 0 || cpus > mostCPUs*1000 || memory > mostMemory ||
		disk > mostDisk {
		return nil, Unsupported{"containers[0].resources", "are more than a sandbox can have"}
	}
	if cpus == 0 && memory == 0 && disk == 0 {
		return nil, nil
	}
	m := &v1.Machine{Cpus: uint32((cpus + 999) / 1000)}
	if memory > 0 {
		m.Memory = uint64(max(memory, leastMemory))
	}
	if disk > 0 {
		m.Disk = uint64(max(disk, leastDisk))
	}
	return m, nil
}

// process returns the process of a container: its command, or what the image starts.
func process(s *sandboxv1.Sandbox, pod *corev1.PodSpec, c *corev1.Container) (Main, error) {
	m := Main{Image: len(c.Command) == 0, Cwd: c.WorkingDir, Again: Restart(pod.RestartPolicy)}
	literal, _ := environment(s, c)
	for _, a := range slices.Concat(c.Command, c.Args) {
		m.Argv = append(m.Argv, expand(a, lookup(literal)))
	}
	if m.Again == "" {
		m.Again = Always
	}
	if m.Message = c.TerminationMessagePath; m.Message == "" {
		m.Message = corev1.TerminationMessagePathDefault
	}
	m.Output = c.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError
	if err := probes(&m, pod, c); err != nil {
		return m, err
	}
	m.User = user(pod, c)
	var err error
	if m.Dirs, err = directories(s, pod, c); err != nil {
		return m, err
	}
	for n := range pod.InitContainers {
		if err := initContainer(&m, s, pod, &pod.InitContainers[n]); err != nil {
			return m, ofInit(n, err)
		}
	}
	return m, nil
}

// initContainer adds an init container.
func initContainer(m *Main, s *sandboxv1.Sandbox, pod *corev1.PodSpec, c *corev1.Container) error {
	literal, err := environment(s, c)
	if err != nil {
		return err
	}
	dirs, err := directories(s, pod, c)
	if err != nil {
		return err
	}
	for _, d := range dirs {
		if !slices.Contains(m.Dirs, d) {
			m.Dirs = append(m.Dirs, d)
		}
	}
	m.Inits = append(m.Inits, initOf(pod, c, literal))
	return nil
}

// initOf returns the process of an init container with these variables.
func initOf(pod *corev1.PodSpec, c *corev1.Container, variables map[string]string) Init {
	i := Init{Name: c.Name, Image: len(c.Command) == 0, Cwd: c.WorkingDir, User: user(pod, c)}
	for _, a := range slices.Concat(c.Command, c.Args) {
		i.Argv = append(i.Argv, expand(a, lookup(variables)))
	}
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		i.Env = append(i.Env, name+"="+variables[name])
	}
	return i
}

// user returns the user of a container, as USER:GROUP; empty: the image's.
func user(pod *corev1.PodSpec, c *corev1.Container) string {
	var user, group *int64
	if x := pod.SecurityContext; x != nil {
		user, group = x.RunAsUser, x.RunAsGroup
	}
	if x := c.SecurityContext; x != nil {
		if x.RunAsUser != nil {
			user = x.RunAsUser
		}
		if x.RunAsGroup != nil {
			group = x.RunAsGroup
		}
	}
	if user == nil {
		return ""
	}
	text := strconv.FormatInt(*user, 10)
	if group != nil {
		text += ":" + strconv.FormatInt(*group, 10)
	}
	return text
}

// directories returns the directories that stand for volumes. The files of others are inputs.
func directories(s *sandboxv1.Sandbox, pod *corev1.PodSpec, c *corev1.Container) (dirs []string, err error) {
	for n, m := range c.VolumeMounts {
		field := fmt.Sprintf("containers[0].volumeMounts[%d]", n)
		at := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		files := at >= 0 && ofFiles(&pod.Volumes[at])
		switch {
		case at < 0 && !slices.ContainsFunc(s.Spec.VolumeClaimTemplates,
			func(t sandboxv1.PersistentVolumeClaimTemplate) bool { return t.Name == m.Name }):
			return nil, Unsupported{field, "names no volume that a sandbox can have"}
		case m.SubPathExpr != "" || m.SubPath != "" && !files:
			return nil, Unsupported{field, "a part of a volume cannot be mounted"}
		case !path.IsAbs(m.MountPath) || len(m.MountPath) > 512 || strings.ContainsRune(m.MountPath, 0):
			return nil, Unsupported{field, "mountPath is not an absolute path of at most 512 bytes"}
		}
		if !files {
			dirs = append(dirs, path.Clean(m.MountPath))
		}
	}
	return dirs, nil
}
