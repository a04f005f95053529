package machines

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/kube/kubetest"
)

// theServer says which nodes there are.
type theServer struct {
	nodes   []*v1.Node
	waiting int
	err     error
}

func (s *theServer) Nodes(context.Context) ([]*v1.Node, int, error) { return s.nodes, s.waiting, s.err }

// theUser is a user with the rights of the chart's role.
const theUser = "asker"

// scene is a cluster without a scheduler, whose part the test plays.
type scene struct {
	*testing.T
	admin  client.Client
	server *theServer
	asker  *Asker
	now    time.Time
}

// shared is the cluster of all scenes, which are one after another.
var shared kubetest.Shared

func TestMain(m *testing.M) {
	code := m.Run()
	if err := shared.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func newScene(t *testing.T) *scene {
	c := shared.Use(t, "../../..", stage)
	admin, err := as(c, kubetest.Admin)
	if err != nil {
		t.Fatal(err)
	}
	asker, err := as(c, theUser)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // pods have no kubelet that would end them
		if err := kubetest.Clear(context.Background(), admin, corev1.SchemeGroupVersion.WithKind("Pod")); err != nil {
			t.Error(err)
		}
	})
	s := &scene{T: t, admin: admin, server: &theServer{}, now: time.Now()}
	s.asker = s.another(asker)
	return s
}

func as(c *kubetest.Cluster, user string) (client.Client, error) {
	cfg, err := c.Config(user)
	if err != nil {
		return nil, err
	}
	return client.New(cfg, client.Options{})
}

// stage makes what is in each scene: the DaemonSet of the nodes, and the rights of the asker.
func stage(ctx context.Context, c *kubetest.Cluster) error {
	admin, err := as(c, kubetest.Admin)
	if err != nil {
		return err
	}
	labels := map[string]string{"app": "node"}
	return errors.Join(admin.Create(ctx, &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "turnstone-node"},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				NodeSelector: map[string]string{"pool": "sandboxes"},
				Tolerations:  []corev1.Toleration{{Key: "sandboxes", Operator: corev1.TolerationOpExists}},
				Containers:   []corev1.Container{{Name: "node", Image: "node"}}}}}}),
		admin.Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: theUser},
			Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "create", "patch", "delete"}},
				{APIGroups: []string{"apps"}, Resources: []string{"daemonsets"}, Verbs: []string{"get"}}}}),
		admin.Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: theUser},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: theUser},
			Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: theUser}}}))
}

// another returns an asker, as after a restart.
func (s *scene) another(to client.Client) *Asker {
	return New(Options{Server: s.server, Client: to, Reader: to, Namespace: "default", Set: "turnstone-node",
		Image: "turnstone", Command: []string{"/usr/bin/turn-operator", "hold"},
		Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("12Gi")},
		Rules:    Rules{Min: 1, Max: 4, Spare: 25, Idle: time.Minute}, Log: slog.New(slog.DiscardHandler)})
}

func (s *scene) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// look lets the asker look, and returns the pods.
func (s *scene) look(later time.Duration) []corev1.Pod {
	s.Helper()
	s.now = s.now.Add(later)
	s.must(s.asker.look(s.Context(), s.now))
	list := &corev1.PodList{}
	s.must(s.admin.List(s.Context(), list, client.InNamespace("default"), client.MatchingLabels{Label: "turnstone-node"}))
	var all []corev1.Pod
	for _, p := range list.Items {
		if p.DeletionTimestamp.IsZero() {
			all = append(all, p)
		}
	}
	return all
}

// place puts a pod on a machine, as the scheduler does.
func (s *scene) place(p corev1.Pod, machine string) {
	s.Helper()
	s.must(s.admin.SubResource("binding").Create(s.Context(), &p, &corev1.Binding{Target: corev1.ObjectReference{
		Kind: "Node", Name: machine}}))
}

func answering(name string, memory uint64) *v1.Node {
	n := &v1.Node{Name: name, Capacity: &v1.Machine{Cpus: 8, Memory: 16 << 30}, Used: &v1.Machine{}}
	if memory > 0 {
		n.Used = &v1.Machine{Cpus: 1, Memory: memory << 30}
	}
	return n
}

// TestMachines: a machine is asked for, kept while it has work, and given back.
func TestMachines(t *testing.T) {
	s := newScene(t)
	pods := s.look(0)
	if len(pods) != 1 {
		t.Fatalf("%d pods for the least number", len(pods))
	}
	p := pods[0]
	if p.Spec.NodeSelector["pool"] != "sandboxes" || p.Annotations[evict] != "true" ||
		p.Spec.Containers[0].Resources.Requests.Memory().String() != "12Gi" ||
		p.OwnerReferences[0].Name != "turnstone-node" ||
		p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].TopologyKey != hostname ||
		!strings.Contains(p.Spec.Tolerations[0].Key, "sandboxes") || p.Spec.SecurityContext.RunAsNonRoot == nil {
		t.Errorf("the pod is %v", p)
	}
	if again := s.look(time.Second); len(again) != 1 {
		t.Errorf("%d pods at the next look", len(again))
	}
	s.place(p, "m1")
	s.server.nodes = []*v1.Node{answering("m1", 14)}
	pods = s.look(time.Second)
	if len(pods) != 2 || at(pods, "m1").Annotations[evict] != "false" {
		t.Fatalf("with work: %v", pods)
	}
	s.server.err = errors.New("is away")
	if err := s.asker.look(t.Context(), s.now); err == nil {
		t.Error("no error without the server")
	}
	s.server.err = nil
	s.place(*at(pods, ""), "m2")
	s.server.nodes = []*v1.Node{answering("m1", 1), answering("m2", 0)}
	if pods = s.look(time.Second); len(pods) != 2 {
		t.Errorf("%d pods after a moment of idleness", len(pods))
	}
	if pods = s.look(2 * time.Minute); len(pods) != 1 || pods[0].Spec.NodeName != "m1" {
		t.Errorf("after idleness: %v", pods)
	}
	s.server.nodes = []*v1.Node{answering("m1", 1), answering("m3", 2)}
	pods = s.look(time.Second)
	if len(pods) != 2 || wantedMachine(at(pods, "")) != "m3" || at(pods, "").Annotations[evict] != "false" {
		t.Errorf("work on a machine that has no pod: %v", pods)
	}
}

// TestMachinesWait: requests that wait for room ask for a machine, and a pod that has failed is made again.
func TestMachinesWait(t *testing.T) {
	s := newScene(t)
	s.server.nodes = []*v1.Node{answering("m1", 1)}
	s.place(s.look(0)[0], "m1")
	s.server.waiting = 3
	if pods := s.look(time.Second); len(pods) != 1 {
		t.Errorf("%d pods, though requests have waited for one look only", len(pods))
	}
	pods := s.look(time.Second)
	if len(pods) != 2 {
		t.Fatalf("%d pods while requests wait", len(pods))
	}
	p := at(pods, "")
	p.Status.Phase = corev1.PodFailed
	s.must(s.admin.Status().Update(t.Context(), p))
	s.look(time.Second)
	if pods = s.look(time.Second); len(pods) != 2 || at(pods, "").Name == p.Name {
		t.Errorf("a pod that failed: %v", pods)
	}
}

// at returns the pod at a machine.
func at(all []corev1.Pod, machine string) *corev1.Pod {
	for n := range all {
		if all[n].Spec.NodeName == machine {
			return &all[n]
		}
	}
	return &corev1.Pod{}
}
