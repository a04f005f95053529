package machines

import (
	"context"
	"errors"
	"log/slog"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// A Server says which nodes there are, and how many requests wait for room.
type Server interface {
	Nodes(ctx context.Context) (nodes []*v1.Node, waiting int, err error)
}

// Options are the parts of an Asker.
type Options struct {
	Server Server
	Client client.Client // changes pods
	Reader client.Reader // reads pods and the DaemonSet, without a cache of all pods of the cluster
	// Namespace and Set name the DaemonSet of the nodes. Its pods' node selector, tolerations and
	// affinity say which machines will do, and with it the pods of this package end.
	Namespace, Set string
	// Image is that of a pod, whose command is Command: it does nothing until it is told to end.
	Image    string
	Command  []string
	Requests corev1.ResourceList // of a pod: the room that a machine's sandboxes may use
	Rules    Rules
	Every    time.Duration // between two looks; 0: 10 s
	Log      *slog.Logger
}

// Names in objects.
const (
	// Label is that of the pods, with the name of the DaemonSet.
	Label = "turnstone.dev/room"
	// evict says to the cluster autoscaler whether it may evict a pod.
	evict    = "cluster-autoscaler.kubernetes.io/safe-to-evict"
	hostname = "kubernetes.io/hostname"
)

// An Asker keeps the pods of machines.
type Asker struct {
	o       Options
	idle    map[string]time.Time
	waiting int
}

// New returns an asker. It works while Start runs.
func New(o Options) *Asker {
	if o.Every == 0 {
		o.Every = 10 * time.Second
	}
	return &Asker{o: o, idle: map[string]time.Time{}}
}

// Start implements manager.Runnable. It runs where the leader is.
func (a *Asker) Start(ctx context.Context) error {
	for t := time.NewTicker(a.o.Every); ; {
		if err := a.look(ctx, time.Now()); err != nil && ctx.Err() == nil {
			a.o.Log.Warn("the pods of machines were not looked at", "error", err)
		}
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
	}
}

// look compares pods with nodes once. Without the server's answer nothing changes.
func (a *Asker) look(ctx context.Context, now time.Time) error {
	all, waiting, err := a.o.Server.Nodes(ctx)
	if err != nil {
		return err
	}
	nodes := nodesOf(all)
	a.note(now, nodes)
	waited := min(waiting, a.waiting) > 0 // twice: a request waits for its turn for some milliseconds
	a.waiting = waiting
	set := &appsv1.DaemonSet{}
	if err := a.o.Reader.Get(ctx, types.NamespacedName{Namespace: a.o.Namespace, Name: a.o.Set}, set); err != nil {
		return err
	}
	list := &corev1.PodList{}
	if err := a.o.Reader.List(ctx, list, client.InNamespace(a.o.Namespace),
		client.MatchingLabels{Label: a.o.Set}); err != nil {
		return err
	}
	pods, over := podsOf(list.Items)
	p := decide(now, a.o.Rules, nodes, pods, waited, a.idle)
	p.Remove = append(p.Remove, over...)
	return a.apply(ctx, set, p)
}

// note remembers since when machines are idle.
func (a *Asker) note(now time.Time, nodes []Node) {
	still := make(map[string]time.Time, len(nodes))
	for _, n := range nodes {
		if n.busy() {
			continue
		}
		if since, ok := a.idle[n.Name]; ok {
			still[n.Name] = since
		} else {
			still[n.Name] = now
		}
	}
	a.idle = still
}

// nodesOf returns what nodes say of themselves.
func nodesOf(all []*v1.Node) (nodes []Node) {
	for _, n := range all {
		m := n.GetUsed()
		nodes = append(nodes, Node{Name: n.GetName(), Drains: n.GetDraining(),
			Capacity: Size{uint64(n.GetCapacity().GetCpus()) * uint64(max(1, n.GetCpuShares())),
				n.GetCapacity().GetMemory()},
			Work: Size{uint64(m.GetCpus()), m.GetMemory()}})
	}
	return nodes
}

// podsOf returns the pods that stand for a machine, and the names of those that have ended.
func podsOf(all []corev1.Pod) (pods []Pod, over []string) {
	for n := range all {
		p := &all[n]
		switch {
		case !p.DeletionTimestamp.IsZero():
		case p.Status.Phase == corev1.PodFailed, p.Status.Phase == corev1.PodSucceeded:
			over = append(over, p.Name)
		default:
			pods = append(pods, Pod{Name: p.Name, Machine: p.Spec.NodeName, For: wantedMachine(p),
				Kept: p.Annotations[evict] == "false", Created: p.CreationTimestamp.Time})
		}
	}
	return pods, over
}

// wantedMachine returns the only machine that will do for a pod.
func wantedMachine(p *corev1.Pod) string {
	if p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil ||
		p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, t := range p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range t.MatchFields {
			if f.Key == metav1.ObjectNameField && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}

// apply does what a plan says. It goes on after an error.
func (a *Asker) apply(ctx context.Context, set *appsv1.DaemonSet, p Plan) error {
	var errs []error
	// first what protects work
	mark := func(names []string, text string) {
		for _, name := range names {
			patch := client.RawPatch(types.MergePatchType,
				[]byte(`{"metadata":{"annotations":{"`+evict+`":"`+text+`"}}}`))
			errs = append(errs, client.IgnoreNotFound(a.o.Client.Patch(ctx, a.named(name), patch)))
		}
	}
	mark(p.Keep, "false")
	for _, machine := range p.For {
		errs = append(errs, a.o.Client.Create(ctx, a.pod(set, machine)))
	}
	for range p.Any {
		errs = append(errs, a.o.Client.Create(ctx, a.pod(set, "")))
	}
	mark(p.Free, "true")
	for _, name := range p.Remove {
		errs = append(errs, client.IgnoreNotFound(a.o.Client.Delete(ctx, a.named(name))))
	}
	if p.Any+len(p.For)+len(p.Remove) > 0 {
		a.o.Log.Info("pods of machines", "more", p.Any+len(p.For), "fewer", len(p.Remove))
	}
	return errors.Join(errs...)
}

func (a *Asker) named(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: a.o.Namespace, Name: name}}
}

// pod returns the pod of a machine: of one that has none, or of this one.
func (a *Asker) pod(set *appsv1.DaemonSet, machine string) *corev1.Pod {
	no, yes, user, end := false, true, int64(65532), int64(1)
	from := set.Spec.Template.Spec
	labels := map[string]string{Label: a.o.Set}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: a.o.Namespace, GenerateName: a.o.Set + "-room-",
		Labels: labels, Annotations: map[string]string{evict: "true"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: set.Name,
			UID: set.UID}}},
		Spec: corev1.PodSpec{NodeSelector: from.NodeSelector, Tolerations: from.Tolerations,
			PriorityClassName: from.PriorityClassName, ImagePullSecrets: from.ImagePullSecrets,
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no, TerminationGracePeriodSeconds: &end,
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user,
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{Name: "room", Image: a.o.Image, Command: a.o.Command,
				Resources: corev1.ResourceRequirements{Requests: a.o.Requests},
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &no,
					ReadOnlyRootFilesystem: &yes,
					Capabilities:           &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}}}}}
	p.Spec.Affinity = affinity(from.Affinity, labels, machine)
	if machine != "" {
		p.Annotations[evict] = "false"
	}
	return p
}

// affinity returns the affinity of the nodes' pods with: no two of these pods on a machine, and perhaps
// this machine only.
func affinity(from *corev1.Affinity, labels map[string]string, machine string) *corev1.Affinity {
	a := &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: hostname,
			LabelSelector: &metav1.LabelSelector{MatchLabels: labels}}}}}
	if from != nil {
		a.NodeAffinity = from.NodeAffinity.DeepCopy()
	}
	if machine != "" {
		a.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
				Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{machine}}}}}}}
	}
	return a
}
