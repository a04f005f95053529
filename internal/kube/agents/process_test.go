package agents_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/kube/agents"
	"turnstone.dev/turnstone/internal/kube/steady"
)

// A message is a call of a server by an operator in another process, or its answer.
type message struct {
	Namespace, ID string
	By            string // what manages the sandboxes of a list
	Request       []byte // of a creation
	Life          time.Duration
	Main          agents.Main

	Boxes   [][]byte
	Process agents.Process
	Kind    turnstone.Kind
	Text    string
}

// serve answers operators in other processes, at the path /NAME/METHOD. before is called before each call.
func (w *world) serve(before func(operator, method string, m *message)) string {
	s := httptest.NewServer(http.HandlerFunc(func(a http.ResponseWriter, r *http.Request) {
		var m message
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			http.Error(a, err.Error(), http.StatusBadRequest)
			return
		}
		operator, method, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		before(operator, method, &m)
		if err := w.server.answers(r.Context(), method, &m); err != nil {
			m.Kind, m.Text = turnstone.KindOf(err), err.Error()
		}
		_ = json.NewEncoder(a).Encode(&m)
	}))
	w.Cleanup(s.Close)
	return s.URL
}

// answers makes a call, and puts the answer into it.
func (s *server) answers(ctx context.Context, method string, m *message) error {
	switch method {
	case "create":
		r := &v1.CreateSandboxRequest{}
		if err := proto.Unmarshal(m.Request, r); err != nil {
			return err
		}
		b, err := s.Create(ctx, m.Namespace, r)
		if err != nil {
			return err
		}
		return m.put(b)
	case "list":
		all, err := s.List(ctx, m.Namespace, m.By)
		if err != nil {
			return err
		}
		return m.put(all...)
	case "delete":
		return s.Delete(ctx, m.Namespace, m.ID)
	case "pause":
		return s.Pause(ctx, m.Namespace, m.ID)
	case "resume":
		return s.Resume(ctx, m.Namespace, m.ID)
	case "life":
		return s.SetLife(ctx, m.Namespace, m.ID, m.Life)
	case "stop":
		return s.FollowContainer(ctx, m.Namespace, m.ID, m.Main, nil)
	case "run":
		var err error
		m.Process, err = s.run(ctx, m.Namespace, m.ID, m.Main)
		return err
	}
	return turnstone.Errorf("test", turnstone.KindInternal, method, "is not known")
}

func (m *message) put(all ...*v1.Sandbox) error {
	for _, b := range all {
		text, err := proto.Marshal(b)
		if err != nil {
			return err
		}
		m.Boxes = append(m.Boxes, text)
	}
	return nil
}

// A caller calls the server of serve.
type caller struct{ url string }

func (c caller) call(ctx context.Context, method string, m message) ([]*v1.Sandbox, agents.Process, error) {
	fail := func(err error) ([]*v1.Sandbox, agents.Process, error) {
		return nil, agents.Process{}, turnstone.NewError("test", turnstone.KindUnavailable, "the server", err)
	}
	body, err := json.Marshal(m)
	if err != nil {
		return fail(err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/"+method, bytes.NewReader(body))
	if err != nil {
		return fail(err)
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = a.Body.Close() }()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		return fail(err)
	}
	m = message{}
	if err := json.Unmarshal(text, &m); err != nil {
		return fail(err)
	}
	if m.Text != "" {
		return nil, agents.Process{}, turnstone.Errorf("test", m.Kind, "the server", "%s", m.Text)
	}
	var all []*v1.Sandbox
	for _, b := range m.Boxes {
		s := &v1.Sandbox{}
		if err := proto.Unmarshal(b, s); err != nil {
			return fail(err)
		}
		all = append(all, s)
	}
	return all, m.Process, nil
}

func (c caller) Create(ctx context.Context, namespace string, r *v1.CreateSandboxRequest) (*v1.Sandbox, error) {
	text, err := proto.Marshal(r)
	if err != nil {
		return nil, err
	}
	all, _, err := c.call(ctx, "create", message{Namespace: namespace, Request: text})
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

func (c caller) List(ctx context.Context, namespace, by string) ([]*v1.Sandbox, error) {
	all, _, err := c.call(ctx, "list", message{Namespace: namespace, By: by})
	return all, err
}

func (c caller) Delete(ctx context.Context, namespace, id string) error {
	_, _, err := c.call(ctx, "delete", message{Namespace: namespace, ID: id})
	return err
}

func (c caller) Pause(ctx context.Context, namespace, id string) error {
	_, _, err := c.call(ctx, "pause", message{Namespace: namespace, ID: id})
	return err
}

func (c caller) Resume(ctx context.Context, namespace, id string) error {
	_, _, err := c.call(ctx, "resume", message{Namespace: namespace, ID: id})
	return err
}

func (c caller) SetLife(ctx context.Context, namespace, id string, life time.Duration) error {
	_, _, err := c.call(ctx, "life", message{Namespace: namespace, ID: id, Life: life})
	return err
}

func (c caller) FollowContainer(ctx context.Context, namespace, id string, m agents.Main, tell func(agents.Process)) error {
	method := "run"
	if m.Stop {
		method = "stop"
	}
	_, p, err := c.call(ctx, method, message{Namespace: namespace, ID: id, Main: m})
	if err != nil || m.Stop {
		return err
	}
	tell(p)
	<-ctx.Done()
	return nil
}

// The variables of an operator in a process of its own: its name, and the URL of its server.
const (
	operatorName = "TURN_TEST_OPERATOR"
	operatorURL  = "TURN_TEST_OPERATOR_SERVER"
)

// process starts an operator in a process of its own, which elects itself and is kept. It ends with the
// test.
func (w *world) process(name, config, url string) *os.Process {
	w.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestOperatorProcess$", "-test.timeout=30m")
	cmd.Env = append(os.Environ(), operatorName+"="+name, operatorURL+"="+url, "KUBECONFIG="+config)
	w.must(cmd.Start())
	w.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process
}

// TestOperatorProcess is the process of TestBadTimes' operators.
func TestOperatorProcess(t *testing.T) {
	name := os.Getenv(operatorName)
	if name == "" {
		t.Skip("TestBadTimes starts it")
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS = -1
	scheme, err := agents.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGTERM)
	defer stop()
	err = steady.Keep(ctx, slog.New(slog.DiscardHandler), func(ctx context.Context) error {
		lease, renew, retry := 4*time.Second, 3*time.Second, time.Second
		lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, "default", leaseName,
			resourcelock.ResourceLockConfig{Identity: name}, cfg, renew)
		if err != nil {
			return err
		}
		m, err := ctrl.NewManager(cfg, ctrl.Options{Scheme: scheme, Metrics: metrics.Options{BindAddress: "0"},
			LeaderElection: true, LeaderElectionResourceLockInterface: lock, LeaseDuration: &lease, RenewDeadline: &renew,
			RetryPeriod: &retry})
		if err == nil {
			err = agents.Add(m, &agents.Options{Server: caller{os.Getenv(operatorURL) + "/" + name}, Cluster: "test",
				Default: true, Log: slog.New(slog.DiscardHandler)})
		}
		if err != nil {
			return err
		}
		return m.Start(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
}
