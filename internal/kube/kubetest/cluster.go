package kubetest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"turnstone.dev/turnstone/internal/fixedport"
)

// A Cluster is an etcd and a kube-apiserver. End it.
type Cluster struct {
	dir  string
	auth *authority
	port int
	kv   string // the address of etcd for clients
	etcd *Program
	api  *Program

	path  string // of the kube-apiserver
	nodes bool
}

// Admin is a user who may do everything.
const Admin = "admin"

const (
	// startTime bounds a start, on a machine that does much else.
	startTime = 5 * time.Minute
	// endTime is the time from TERM to KILL. KILL loses nothing: a change is stored before it is answered.
	endTime = 10 * time.Second
)

// Start starts a cluster whose files are in dir, which is empty and this user's alone.
func Start(ctx context.Context, p Programs, dir string) (*Cluster, error) {
	return start(ctx, &Cluster{dir: dir, path: p.APIServer}, p)
}

// StartForNodes is Start for a cluster that gets controllers and kubelets: pods have service accounts, and what the API
// server asks of a kubelet it asks as Admin.
func StartForNodes(ctx context.Context, p Programs, dir string) (*Cluster, error) {
	return start(ctx, &Cluster{dir: dir, path: p.APIServer, nodes: true}, p)
}

func start(ctx context.Context, c *Cluster, p Programs) (*Cluster, error) {
	if err := c.files(); err != nil {
		return nil, err
	}
	if err := c.start(ctx, p); err != nil {
		c.End()
		return nil, err
	}
	return c, nil
}

// files writes certificates and the policy of the audit log.
func (c *Cluster) files() (err error) {
	if c.auth, err = newAuthority(c.dir); err != nil {
		return err
	}
	if err := errors.Join(c.auth.issue("server", "kube-apiserver"), c.auth.issue("etcd", "etcd"),
		c.auth.issue("accounts", "accounts"), c.auth.issue(Admin, Admin, "system:masters")); err != nil {
		return err
	}
	return os.WriteFile(c.auth.path("audit.yaml"), []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\n"+
		"omitStages: [RequestReceived, ResponseStarted]\nrules:\n- level: Metadata\n  verbs: "+
		"[create, update, patch, delete, deletecollection]\n- level: None\n"), 0o600)
}

func (c *Cluster) start(ctx context.Context, p Programs) error {
	ports, err := freePorts(ctx, 3)
	if err != nil {
		return err
	}
	client := fmt.Sprintf("https://127.0.0.1:%d", ports[0])
	peer := fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	f := c.auth.path
	c.kv = client
	c.etcd = c.program(p.Etcd, "--name=test", "--data-dir="+filepath.Join(c.dir, "data"),
		"--listen-client-urls="+client, "--advertise-client-urls="+client, "--listen-peer-urls="+peer,
		"--initial-advertise-peer-urls="+peer, "--initial-cluster=test="+peer, "--unsafe-no-fsync",
		"--client-cert-auth", "--trusted-ca-file="+f("ca.crt"), "--cert-file="+f("etcd.crt"),
		"--key-file="+f("etcd.key"), "--log-level=warn")
	if err := c.etcd.Start(); err != nil {
		return err
	}
	c.port = ports[2]
	args := []string{"--etcd-servers=" + client, "--etcd-cafile=" + f("ca.crt"),
		"--etcd-certfile=" + f("server.crt"), "--etcd-keyfile=" + f("server.key"),
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.port),
		"--tls-cert-file=" + f("server.crt"), "--tls-private-key-file=" + f("server.key"),
		"--client-ca-file=" + f("ca.crt"), "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + f("accounts.crt"),
		"--service-account-signing-key-file=" + f("accounts.key"),
		"--service-cluster-ip-range=10.0.0.0/24",
		"--cert-dir=" + c.dir, "--audit-policy-file=" + f("audit.yaml"),
		"--audit-log-path=" + f("audit.log"), "--endpoint-reconciler-type=none",
		"--profiling=false"}
	if c.nodes {
		args = append(args, "--kubelet-client-certificate="+f(Admin+".crt"), "--kubelet-client-key="+f(Admin+".key"),
			"--allow-privileged", "--kubelet-preferred-address-types=InternalIP")
	} else {
		args = append(args, "--disable-admission-plugins=ServiceAccount")
	}
	c.api = c.program(c.path, args...)
	return c.StartAPIServer(ctx)
}

// program returns a program of the cluster. Its collections of garbage would take a fifth of its time; a test has the
// memory.
func (c *Cluster) program(path string, args ...string) *Program {
	return &Program{Path: path, Args: args, Dir: c.dir, Env: []string{"GOGC=400"}, Grace: endTime}
}

// StartAPIServer starts the API server, and waits until it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	if err := c.api.Start(); err != nil {
		return err
	}
	cfg, err := c.Config(Admin)
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.Host+"/readyz", nil)
		if err != nil {
			return err
		}
		a, err := client.Do(r)
		if err == nil {
			_ = a.Body.Close()
			if a.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-c.api.Done():
			return fmt.Errorf("kube-apiserver has ended:\n%s\netcd:\n%s", c.api.Log(), c.etcd.Log())
		case <-ctx.Done():
			return fmt.Errorf("kube-apiserver is not ready: %w\n%s", err, c.api.Log())
		case <-time.After(50 * time.Millisecond): //wait: the loop polls
		}
	}
}

// EndAPIServer ends the API server; its objects stay.
func (c *Cluster) EndAPIServer() { c.api.End() }

// KillAPIServer kills the API server; its objects stay.
func (c *Cluster) KillAPIServer() { c.api.Kill() }

// RestartEtcd kills etcd and starts it again.
func (c *Cluster) RestartEtcd() error {
	c.etcd.Kill()
	return c.etcd.Start()
}

// End ends both programs.
func (c *Cluster) End() { c.api.End(); c.etcd.End() }

// Log returns the end of what the API server has printed.
func (c *Cluster) Log() string { return c.api.Log() }

// Config returns the configuration of a client that is a user, of these groups.
func (c *Cluster) Config(user string, groups ...string) (*rest.Config, error) {
	if _, err := os.Stat(c.auth.path(user + ".crt")); err != nil {
		if err := c.auth.issue(user, user, groups...); err != nil {
			return nil, err
		}
	}
	return &rest.Config{Host: c.URL(), QPS: -1, TLSClientConfig: rest.TLSClientConfig{
		CAFile: c.auth.path("ca.crt"), CertFile: c.auth.path(user + ".crt"),
		KeyFile: c.auth.path(user + ".key")}}, nil
}

// File returns the path of a file of the cluster: ca.crt, or accounts.key, which signs the tokens of service accounts.
func (c *Cluster) File(name string) string { return c.auth.path(name) }

// URL returns the address of the API server.
func (c *Cluster) URL() string { return fmt.Sprintf("https://127.0.0.1:%d", c.port) }

// Kubeconfig writes a file for clients that are a user, and returns its path.
func (c *Cluster) Kubeconfig(user string, groups ...string) (string, error) {
	cfg, err := c.Config(user, groups...)
	if err != nil {
		return "", err
	}
	k := clientcmdapi.NewConfig()
	k.Clusters["test"] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthority: cfg.CAFile}
	k.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificate: cfg.CertFile, ClientKey: cfg.KeyFile}
	k.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: user}
	k.CurrentContext = "test"
	path := c.auth.path(user + ".kubeconfig")
	return path, clientcmd.WriteToFile(*k, path)
}

// PIDs returns the IDs of the two processes.
func (c *Cluster) PIDs() (etcd, apiServer int) { return c.etcd.PID(), c.api.PID() }

// A Write is a request of the audit log that changed something.
type Write struct {
	User, Verb, Resource, Subresource, Namespace, Name string
	Code                                               int
}

// Writes returns the requests that changed something, in the order of their ends.
func (c *Cluster) Writes() (all []Write, err error) {
	f, err := os.Open(c.auth.path("audit.log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	for d := json.NewDecoder(bufio.NewReader(f)); d.More(); {
		var e struct {
			Verb string
			User struct{ Username string }
			Ref  struct{ Resource, Subresource, Namespace, Name string } `json:"objectRef"`
			Done struct{ Code int }                                      `json:"responseStatus"`
		}
		if err := d.Decode(&e); err != nil {
			return all, nil // a line is being written
		}
		if e.Done.Code < http.StatusMultipleChoices {
			all = append(all, Write{e.User.Username, e.Verb, e.Ref.Resource, e.Ref.Subresource,
				e.Ref.Namespace, e.Ref.Name, e.Done.Code})
		}
	}
	return all, nil
}

// freePorts returns ports of loopback at which nobody listens, also when the API server starts again.
func freePorts(ctx context.Context, n int) (all []int, err error) {
	for range n {
		l, err := fixedport.Listen(ctx, "127.0.0.1")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }() // after all were chosen
		all = append(all, l.Addr().(*net.TCPAddr).Port)
	}
	return all, nil
}
