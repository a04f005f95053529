package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"turnstone.dev/turnstone/internal/fixedport"
	"turnstone.dev/turnstone/internal/kube/kubetest"
)

const namespace = "default" // and the tenant

// An operated cluster has an operator and a server whose sandboxes are real.
type operated struct {
	*testing.T
	cluster *kubetest.Cluster
	server  *kubetest.Server
	to      dynamic.Interface
	router  string
	made    []*unstructured.Unstructured
}

// TestOperator kills the processes of the operator's way, one after another. Sandboxes go on, a claim and a turn that are
// created meanwhile get theirs afterwards, once, and nothing is left in the end.
func TestOperator(t *testing.T) {
	o := newOperated(t)
	o.create("kind: SandboxWarmPool", "metadata: {name: pool}", "spec: {replicas: 1, sandboxTemplateRef: {name: bash}}")
	o.create("kind: SandboxTemplate", "metadata: {name: bash}", "spec: {podTemplate: {spec: {containers: [{name: main, "+
		"image: turnstone.dev/template/base}]}}}")
	o.create("kind: Sandbox", "metadata: {name: stays}", "spec: {podTemplate: {spec: {containers: [{name: main, "+
		"image: turnstone.dev/template/base, command: [bash, -c, 'cat /proc/sys/kernel/random/uuid >/tmp/id; exec sleep 1000000'], "+
		"readinessProbe: {periodSeconds: 1, timeoutSeconds: 60, exec: {command: [test, -s, /tmp/id]}}}]}}}")
	o.becomes("Sandbox", "stays", "Ready")
	id := o.run("stays", "cat /tmp/id")
	for n, k := range []struct {
		name        string
		kill, start func() error // the claim and the turn are created in between
	}{
		{"operator", killed(o.server.Operator), o.server.Operator.Start},
		{"API server", func() error {
			o.cluster.KillAPIServer()
			o.run("stays", "true")
			return o.cluster.StartAPIServer(t.Context())
		}, nothing},
		{"etcd", o.cluster.RestartEtcd, nothing},
		{"server", killed(o.server.Process), o.server.Process.Start},
		{"operator and server", killed(o.server.Operator, o.server.Process), func() error {
			return errors.Join(o.server.Operator.Start(), o.server.Process.Start())
		}},
	} {
		t.Logf("killing %s", k.name)
		o.must(k.kill())
		claim, turn := fmt.Sprint("claim-", n), fmt.Sprint("turn-", n)
		o.asked(claim, turn)
		o.must(k.start())
		o.becomes("SandboxClaim", claim, "Ready")
		o.becomes("Turn", turn, "Completed")
		if s := o.get("Turn", turn); field(s, "phase") != "Passed" || field(s, "number") != "1" {
			t.Errorf("after the end of %s: the turn is %v", k.name, s.Object["status"])
		}
		if now := o.run("stays", "cat /tmp/id"); now != id {
			t.Errorf("after the end of %s: the sandbox is %q, not %q", k.name, now, id)
		}
	}
	o.empty()
}

func nothing() error { return nil }

func killed(all ...*kubetest.Program) func() error {
	return func() error {
		for _, p := range all {
			p.Kill()
		}
		return nil
	}
}

// newOperated starts everything.
func newOperated(t *testing.T) *operated {
	t.Helper()
	o := &operated{T: t, cluster: kubetest.Run(t, root)}
	cfg, err := o.cluster.Config(kubetest.Admin)
	o.must(err)
	o.to, err = dynamic.NewForConfig(cfg)
	o.must(err)
	dir, err := os.MkdirTemp("", "operated") // outside of the test's folder, whose path is too long for sockets
	o.must(err)
	t.Cleanup(func() { o.must(os.RemoveAll(dir)) })
	// As the documentation has them: package control, which has the list, needs the client, which this module lacks.
	scopes := []string{"tokens:issue,tokens:read,tenants:issue,nodes:read,pools:write", "templates:read,templates:write",
		"sandboxes:create,sandboxes:read,sandboxes:connect,sandboxes:control,sandboxes:delete,sandboxes:manage",
		"turns:run,turns:read,turns:cancel,sessions:read,sessions:write,sessions:delete"}
	o.server, err = kubetest.StartServer(t.Context(), kubetest.ServerOptions{Bin: filepath.Join(root, "bin"), Dir: dir,
		Tenant: namespace, Scopes: scopes})
	o.must(err)
	t.Cleanup(func() {
		o.server.End()
		if t.Failed() {
			t.Logf("the operator's log:\n%s\nthe server's:\n%s", o.server.Operator.Log(), o.server.Process.Log())
		}
	})
	l, err := fixedport.Listen(t.Context(), "127.0.0.1")
	o.must(err)
	o.router = l.Addr().String()
	o.must(l.Close())
	operator, err := filepath.Abs(filepath.Join(root, "bin/turn-operator"))
	o.must(err)
	o.must(o.server.Operate(o.cluster, operator, "--turns", "--router", o.router))
	return o
}

func (o *operated) must(err error) {
	o.Helper()
	if err != nil {
		o.Fatal(err)
	}
}

// resource returns the resource of a kind.
func resource(kind string) schema.GroupVersionResource {
	r := schema.GroupVersionResource{Group: "extensions.agents.x-k8s.io", Version: "v1beta1"}
	switch kind {
	case "Sandbox":
		r.Group, r.Resource = "agents.x-k8s.io", "sandboxes"
	case "Turn":
		r.Group, r.Version, r.Resource = "turnstone.dev", "v1alpha1", "turns"
	default:
		r.Resource = strings.ToLower(kind) + "s"
	}
	return r
}

// create creates an object, whose kind is in the first line.
func (o *operated) create(lines ...string) {
	o.Helper()
	r := resource(strings.TrimPrefix(lines[0], "kind: "))
	all, err := kubetest.Objects([]byte("apiVersion: " + r.GroupVersion().String() + "\n" + strings.Join(lines, "\n")))
	o.must(err)
	u := all[0]
	o.until("the API server takes "+u.GetName(), func() bool {
		_, err = o.to.Resource(r).Namespace(namespace).Create(o.Context(), u, metav1.CreateOptions{})
		return err == nil || apierrors.IsInvalid(err) || apierrors.IsAlreadyExists(err)
	})
	if !apierrors.IsAlreadyExists(err) { // an answer may have been lost
		o.must(err)
	}
	o.made = append(o.made, u)
}

// asked creates a claim and a turn.
func (o *operated) asked(claim, turn string) {
	o.Helper()
	o.create("kind: SandboxClaim", "metadata: {name: "+claim+"}", "spec: {warmPoolRef: {name: pool}}")
	o.create("kind: Turn", "metadata: {name: "+turn+"}", `spec: {document: {inline: "`+"```bash\\necho done\\n```"+`\n"}}`)
}

// get returns an object, or nil if there is none, or no answer.
func (o *operated) get(kind, name string) *unstructured.Unstructured {
	u, err := o.to.Resource(resource(kind)).Namespace(namespace).Get(o.Context(), name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return u
}

// field returns a field of an object's status.
func field(u *unstructured.Unstructured, name string) string {
	status, _, _ := unstructured.NestedMap(u.Object, "status")
	return fmt.Sprint(status[name])
}

// becomes waits until an object has a condition.
func (o *operated) becomes(kind, name, condition string) {
	o.Helper()
	o.until(kind+" "+name+" is "+condition, func() bool {
		u := o.get(kind, name)
		if u == nil {
			return false
		}
		all, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
		for _, c := range all {
			if c, ok := c.(map[string]any); ok && c["type"] == condition && c["status"] == "True" {
				return true
			}
		}
		return false
	})
}

// run runs a command in the sandbox of an object, through the operator's router.
func (o *operated) run(sandbox, command string) (out string) {
	o.Helper()
	body, err := json.Marshal(map[string]string{"command": command})
	o.must(err)
	o.until("the router answers", func() bool {
		r, err := http.NewRequestWithContext(o.Context(), http.MethodPost, "http://"+o.router+"/execute",
			strings.NewReader(string(body)))
		o.must(err)
		r.Header.Set("X-Sandbox-ID", sandbox)
		r.Header.Set("X-Sandbox-Namespace", namespace)
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			return false
		}
		defer func() { _ = a.Body.Close() }()
		var answer struct{ Stdout string }
		text, err := io.ReadAll(a.Body)
		if err != nil || a.StatusCode != http.StatusOK || json.Unmarshal(text, &answer) != nil {
			return false
		}
		out = answer.Stdout
		return true
	})
	return out
}

// empty deletes all objects, and waits until the server has no sandbox of the tenant.
func (o *operated) empty() {
	o.Helper()
	token, err := os.ReadFile(filepath.Join(o.server.Client, "user.token"))
	o.must(err)
	user := []string{"TURN_HOME=" + o.server.Client, "TURN_HOST=test", "TURN_TOKEN=" + strings.TrimSpace(string(token))}
	left := func() int {
		text, err := o.server.Turn(o.Context(), user, "sandbox", "ls", "--json")
		o.must(err)
		var all struct{ Sandboxes []json.RawMessage }
		o.must(json.Unmarshal([]byte(text), &all))
		return len(all.Sandboxes)
	}
	if n := left(); n != 6 {
		o.Errorf("there are %d sandboxes, not one for each claim, and one", n)
	}
	for _, u := range o.made {
		o.must(o.to.Resource(resource(u.GetKind())).Namespace(namespace).Delete(o.Context(), u.GetName(), metav1.DeleteOptions{}))
	}
	o.until("no sandbox is left", func() bool { return left() == 0 })
}

// until waits until f is true.
func (o *operated) until(what string, f func() bool) {
	o.Helper()
	if !kubetest.Poll(patience, f) {
		o.Fatalf("waiting until %s took too long", what)
	}
}
