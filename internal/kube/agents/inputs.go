package agents

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"turnstone.dev/turnstone"
)

// Bounds of what a container gets of ConfigMaps and Secrets.
const (
	maxSecrets = 64       // variables
	maxSecret  = 60 << 10 // bytes of one
	maxFiles   = 1000
	maxContent = 4 << 20 // bytes of all files
	usualMode  = 0o644
)

// refs are the ConfigMaps and Secrets of an object's namespace. Each is read once.
type refs struct {
	live      client.Reader // not a cache: that would have all of the cluster's
	namespace string
	read      map[string]map[string][]byte
}

// data returns what a ConfigMap or a Secret has; nil if an optional one is not there.
func (r *refs) data(ctx context.Context, kind, name string, optional *bool) (map[string][]byte, error) {
	id := kind + " " + name
	if d, has := r.read[id]; has {
		return d, nil
	}
	k := client.ObjectKey{Namespace: r.namespace, Name: name}
	data, err := map[string][]byte{}, error(nil)
	if kind == "Secret" {
		o := &corev1.Secret{}
		err = r.live.Get(ctx, k, o)
		maps.Copy(data, o.Data)
	} else {
		o := &corev1.ConfigMap{}
		err = r.live.Get(ctx, k, o)
		maps.Copy(data, o.BinaryData)
		for name, text := range o.Data {
			data[name] = []byte(text)
		}
	}
	switch {
	case apierrors.IsNotFound(err) && optional != nil && *optional:
		return nil, nil
	case apierrors.IsNotFound(err):
		return nil, turnstone.Errorf("kube.inputs", turnstone.KindNotFound, id, "is not there")
	case apierrors.IsForbidden(err):
		return nil, turnstone.Errorf("kube.inputs", turnstone.KindDenied, id, "the operator may not read it").
			WithHint("name the namespace in the chart's value operator.references")
	case err != nil:
		return nil, err
	}
	if r.read == nil {
		r.read = map[string]map[string][]byte{}
	}
	r.read[id] = data
	return data, nil
}

// key returns one value. It has none if an optional one is not there.
func (r *refs) key(ctx context.Context, kind, name, key string, optional *bool) (string, bool, error) {
	data, err := r.data(ctx, kind, name, optional)
	if err != nil {
		return "", false, err
	}
	v, has := data[key]
	if !has && (optional == nil || !*optional) {
		return "", false, turnstone.Errorf("kube.inputs", turnstone.KindNotFound, kind+" "+name,
			"has no key %.80q", key)
	}
	return string(v), has, nil
}

// needsInputs reports whether the containers need more than its object says.
func needsInputs(s *sandboxv1.Sandbox) bool {
	pod := &s.Spec.PodTemplate.Spec
	needs := func(c corev1.Container) bool {
		literal, _ := environment(s, &c)
		if len(c.EnvFrom) > 0 || len(names(&c)) != len(literal) {
			return true
		}
		return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
			return slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name && ofFiles(&v) })
		})
	}
	return needs(pod.Containers[0]) || slices.ContainsFunc(pod.InitContainers, needs)
}

// names returns the names of the variables of a container's own.
func names(c *corev1.Container) map[string]bool {
	all := map[string]bool{}
	for _, e := range c.Env {
		all[e.Name] = true
	}
	return all
}

// inputs reads what the containers of an object need of the cluster.
func inputs(ctx context.Context, live client.Reader, s *sandboxv1.Sandbox) (Inputs, error) {
	pod := &s.Spec.PodTemplate.Spec
	r := &refs{live: live, namespace: s.Namespace}
	in, _, err := r.inputs(ctx, s, &pod.Containers[0])
	if err != nil {
		return in, err
	}
	for n := range pod.InitContainers {
		c := &pod.InitContainers[n]
		of, all, err := r.inputs(ctx, s, c)
		if err != nil {
			return in, ofInit(n, err)
		}
		i := initOf(pod, c, all)
		for _, e := range of.Env {
			name, _, _ := strings.Cut(e, "=")
			i.Secrets = append(i.Secrets, name)
		}
		in.Inits, in.Files = append(in.Inits, i), append(in.Files, of.Files...)
	}
	return in, nil
}

// inputs reads what a container needs, and returns all of its variables, too.
func (r *refs) inputs(ctx context.Context, s *sandboxv1.Sandbox, c *corev1.Container) (in Inputs, all map[string]string, err error) {
	pod := &s.Spec.PodTemplate.Spec
	literal, err := environment(s, c)
	if err != nil {
		return in, nil, err
	}
	all, err = r.variables(ctx, s, c)
	if err != nil {
		return in, nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		v := all[name]
		if old, has := literal[name]; has && old == v {
			continue
		}
		if len(v) > maxSecret || strings.ContainsRune(v, 0) {
			return in, nil, Unsupported{"containers[0].env", "the value of " + name + " has more than 60 KiB, or a zero byte"}
		}
		in.Env = append(in.Env, name+"="+v)
	}
	if len(in.Env) > maxSecrets {
		return in, nil, Unsupported{"containers[0].env", fmt.Sprintf("has more than %d variables of ConfigMaps and Secrets",
			maxSecrets)}
	}
	for _, a := range slices.Concat(c.Command, c.Args) {
		in.Argv = append(in.Argv, expand(a, lookup(all)))
	}
	in.Files, err = r.files(ctx, pod, c)
	return in, all, err
}

// variables returns all variables of a container, as a pod has them.
func (r *refs) variables(ctx context.Context, s *sandboxv1.Sandbox, c *corev1.Container) (map[string]string, error) {
	all := map[string]string{}
	for _, from := range c.EnvFrom {
		data, err := map[string][]byte(nil), error(nil)
		switch {
		case from.ConfigMapRef != nil:
			data, err = r.data(ctx, "ConfigMap", from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
		case from.SecretRef != nil:
			data, err = r.data(ctx, "Secret", from.SecretRef.Name, from.SecretRef.Optional)
		}
		if err != nil {
			return nil, err
		}
		for k, v := range data {
			name := from.Prefix + k
			if len(name) <= maxName && envName.MatchString(name) && !slices.Contains(v, 0) { // else no variable can be it
				all[name] = string(v)
			}
		}
	}
	for n, e := range c.Env {
		value, has, err := expand(e.Value, lookup(all)), true, error(nil)
		if f := e.ValueFrom; f != nil {
			switch {
			case f.SecretKeyRef != nil:
				value, has, err = r.key(ctx, "Secret", f.SecretKeyRef.Name, f.SecretKeyRef.Key, f.SecretKeyRef.Optional)
			case f.ConfigMapKeyRef != nil:
				value, has, err = r.key(ctx, "ConfigMap", f.ConfigMapKeyRef.Name, f.ConfigMapKeyRef.Key,
					f.ConfigMapKeyRef.Optional)
			default:
				value, err = downward(s, f, n)
			}
		}
		if err != nil {
			return nil, err
		}
		if has {
			all[e.Name] = value
		}
	}
	return all, nil
}

// downward returns what a variable says of the object itself.
func downward(s *sandboxv1.Sandbox, f *corev1.EnvVarSource, n int) (string, error) {
	field := fmt.Sprintf("containers[0].env[%d].valueFrom", n)
	if f.FieldRef == nil {
		return "", Unsupported{field, "only fieldRef, secretKeyRef and configMapKeyRef"}
	}
	of := func(m map[string]string, rest string) string { return m[strings.TrimSuffix(rest, "']")] }
	meta := &s.Spec.PodTemplate.ObjectMeta
	switch p := f.FieldRef.FieldPath; {
	case p == "metadata.name":
		return s.Name, nil
	case p == "metadata.namespace":
		return s.Namespace, nil
	case p == "metadata.uid":
		return string(s.UID), nil
	case strings.HasPrefix(p, "metadata.labels['"):
		return of(meta.Labels, strings.TrimPrefix(p, "metadata.labels['")), nil
	case strings.HasPrefix(p, "metadata.annotations['"):
		return of(meta.Annotations, strings.TrimPrefix(p, "metadata.annotations['")), nil
	}
	return "", Unsupported{field, "only metadata.name, .namespace, .uid, .labels['KEY'] and .annotations['KEY']"}
}

func lookup(all map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, has := all[name]; return v, has }
}

// expand replaces $(NAME) by the value of a variable. $$ stands for $, and names of no variable stay.
func expand(s string, of func(string) (string, bool)) string {
	var b strings.Builder
	for {
		at := strings.IndexByte(s, '$')
		if at < 0 || at+1 == len(s) {
			b.WriteString(s)
			return b.String()
		}
		b.WriteString(s[:at])
		name, rest, closed := strings.Cut(s[at+2:], ")")
		switch {
		case s[at+1] == '$':
			b.WriteByte('$')
			s = s[at+2:]
			continue
		case s[at+1] == '(' && closed:
			v, has := of(name)
			if !has {
				v = "$(" + name + ")"
			}
			b.WriteString(v)
			s = rest
			continue
		}
		b.WriteByte('$')
		s = s[at+1:]
	}
}

// ofFiles reports whether a volume has files of ConfigMaps and Secrets.
func ofFiles(v *corev1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.Projected != nil
}

// files returns the files of a container's volumes.
func (r *refs) files(ctx context.Context, pod *corev1.PodSpec, c *corev1.Container) (all []File, err error) {
	total := 0
	for _, m := range c.VolumeMounts {
		at := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name && ofFiles(&v) })
		if at < 0 {
			continue
		}
		has, err := r.volume(ctx, &pod.Volumes[at])
		if err != nil {
			return nil, err
		}
		for _, f := range has {
			if m.SubPath != "" && path.Clean("/"+m.SubPath) != f.Path {
				continue
			}
			if f.Path = path.Join(m.MountPath, f.Path); m.SubPath != "" {
				f.Path = path.Clean(m.MountPath)
			}
			all, total = append(all, f), total+len(f.Content)
		}
		if len(all) > maxFiles || total > maxContent {
			return nil, Unsupported{"volumes", fmt.Sprintf("have more than %d files or %d bytes", maxFiles, maxContent)}
		}
	}
	return all, nil
}

// volume returns the files of a volume, whose paths begin with "/".
func (r *refs) volume(ctx context.Context, v *corev1.Volume) (all []File, err error) {
	add := func(kind, name string, items []corev1.KeyToPath, mode *int32, optional *bool) {
		if err != nil {
			return
		}
		var data map[string][]byte
		if data, err = r.data(ctx, kind, name, optional); err != nil {
			return
		}
		bits := uint32(usualMode)
		if mode != nil {
			bits = uint32(*mode) & 0o777
		}
		if len(items) == 0 {
			for _, k := range slices.Sorted(maps.Keys(data)) {
				all = append(all, File{Path: path.Clean("/" + k), Mode: bits, Content: data[k]})
			}
			return
		}
		for _, i := range items {
			content, has := data[i.Key]
			if !has && (optional == nil || !*optional) {
				err = turnstone.Errorf("kube.inputs", turnstone.KindNotFound, kind+" "+name, "has no key %.80q", i.Key)
				return
			}
			f := File{Path: path.Clean("/" + i.Path), Mode: bits, Content: content}
			if i.Mode != nil {
				f.Mode = uint32(*i.Mode) & 0o777
			}
			if has {
				all = append(all, f)
			}
		}
	}
	switch {
	case v.ConfigMap != nil:
		add("ConfigMap", v.ConfigMap.Name, v.ConfigMap.Items, v.ConfigMap.DefaultMode, v.ConfigMap.Optional)
	case v.Secret != nil:
		add("Secret", v.Secret.SecretName, v.Secret.Items, v.Secret.DefaultMode, v.Secret.Optional)
	case v.Projected != nil:
		for _, p := range v.Projected.Sources {
			if p.ConfigMap != nil {
				add("ConfigMap", p.ConfigMap.Name, p.ConfigMap.Items, v.Projected.DefaultMode, p.ConfigMap.Optional)
			}
			if p.Secret != nil {
				add("Secret", p.Secret.Name, p.Secret.Items, v.Projected.DefaultMode, p.Secret.Optional)
			}
		}
	}
	return all, err
}

// unsupportedVolume returns why a sandbox cannot have a volume; empty: it can.
func unsupportedVolume(s *sandboxv1.Sandbox, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		claim := v.PersistentVolumeClaim.ClaimName
		if slices.ContainsFunc(s.Spec.VolumeClaimTemplates, func(t sandboxv1.PersistentVolumeClaimTemplate) bool {
			return t.Name == claim
		}) {
			return ""
		}
		return "a sandbox cannot mount a claim of the cluster: name it in volumeClaimTemplates to have a directory of " +
			"the sandbox's own disk, which lives as long as the object, or use an object store through the network"
	case v.Projected != nil:
		for _, p := range v.Projected.Sources {
			if p.ConfigMap == nil && p.Secret == nil {
				return "only ConfigMaps and Secrets are projected: a sandbox has no account of the cluster"
			}
		}
		return ""
	case v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil && v.EmptyDir.SizeLimit.Cmp(*resource.NewQuantity(0, resource.BinarySI)) < 0:
		return "the size is below 0"
	case v.EmptyDir != nil, ofFiles(v):
		return ""
	}
	return "only emptyDir, configMap, secret, projected, and the claims of volumeClaimTemplates"
}
