package testbed

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// clientSkipped are containerd's own tests by its client that do not apply here, with the reason: see
// docs/shim.md. Tests that skip themselves are not in it.
var clientSkipped = map[string][]string{
	"they restart or look into the containerd that the tests themselves start": {
		"TestShimDoesNotLeakPipes", "TestDaemonReconnectsToShimIOPipesOnRestart",
		"TestDaemonRestartWithRunningShim", "TestShimOOMScore", "TestDaemonRestart",
		"TestRestartMonitor", "TestContainerStartWithAbsRuntimePath", "TestContainerRestartPolicyAlways",
		"TestShimTraceContextPropagation", "TestMigration", "Fuzz.*", "TestDaemonRuntimeRoot",
		"TestDaemonCustomCgroup"},
	"they are of images, content, leases and snapshots, and start no shim": {"TestImage.*",
		"TestContentClient", "TestConvert", "TestExport.*", "TestPullFetchAllContent", "TestImport",
		"TestTransfer.*", "TestLeaseResources", "TestMountManager", "TestMountAtRuntime",
		"TestSnapshotterClient", "TestClientReconnect"},
	"users are those of the sandbox": {"TestIDMappedOverlay", "TestUserNamespaces"},
	"the container asks for the processes of the host": {"TestContainerKillAll",
		"TestContainerKillInitPidHost"},
	"hooks of the OCI runtime are refused": {"TestContainerHook"},
	"the sandbox starts, and is filled, with the task": {"TestContainerNoBinaryExists",
		"TestRegressionIssue6429"},
	"no process of the host is the container's":             {"TestContainerPids"},
	"they look into control groups of the host":             {"TestShimInCgroup", "TestTaskUpdate"},
	"gVisor's kernel lets every user have ports below 1024": {"TestBindLowPortNonRoot"},
	"it writes 700 MB to terminals, which takes too long here": {
		"TestContainerExecLargeOutputWithTTY"},
	"it names runc": {"TestContainerRuntimeOptionsv2"},
}

// An authority makes certificates for any name, so that a program that trusts it takes the tests'
// registry for any other.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	a := &authority{key: key, cert: &x509.Certificate{SerialNumber: big.NewInt(1),
		Subject: pkix.Name{CommonName: "tests"}, NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}}
	raw, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, &key.PublicKey, key)
	check(t, err)
	a.cert, err = x509.ParseCertificate(raw)
	check(t, err)
	return a
}

// certificate returns one for the name that a client asks for.
func (a *authority) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	raw, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(2),
		DNSNames: []string{hello.ServerName}, NotAfter: a.cert.NotAfter}, a.cert, &a.key.PublicKey,
		a.key)
	return &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: a.key}, err
}

// everywhere serves the registry at every address of which a program asks the proxy that the returned
// variables name.
func (r *Registry) everywhere(t *testing.T, authorityFile string) (env []string) {
	t.Helper()
	a := newAuthority(t)
	check(t, os.WriteFile(authorityFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: a.cert.Raw}), 0o644))
	mirror := httptest.NewUnstartedServer(r.http.Config.Handler)
	mirror.TLS = &tls.Config{GetCertificate: a.certificate, MinVersion: tls.VersionTLS12}
	mirror.StartTLS()
	t.Cleanup(mirror.Close)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		to, err := net.Dial("tcp", mirror.Listener.Addr().String()) //nolint:noctx // of this process
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer to.Close()
		from, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer from.Close()
		_, _ = io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(to, from); _ = to.Close() }()
		_, _ = io.Copy(from, to)
	}))
	t.Cleanup(proxy.Close)
	return []string{"HTTPS_PROXY=" + proxy.URL, "SSL_CERT_FILE=" + authorityFile, "SSL_CERT_DIR="}
}

// TestClient runs containerd's own tests of a runtime by its client (its package integration/client),
// except clientSkipped. They run containers without pods.
func TestClient(t *testing.T) {
	if os.Getenv("TURN_TEST_CLIENT") == "" {
		t.Skip("takes minutes: run make shim-client")
	}
	b := bed(t)
	program, err := Test(t.Context(), b.options.Tools, "integration",
		"github.com/containerd/containerd/v2/integration/client")
	check(t, err)
	// the names of the images are fixed before the program reads its flags
	check(t, b.Registry.Push("containerd/busybox:1.36", v1.Config{Cmd: []string{"sh"},
		Env: []string{"PATH=/bin"}}, nil, map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/usr/sbin:/bin/false\n" +
			"sys:x:3:3:sys:/dev:/bin/false\nwww-data:x:33:33::/var/www:/bin/false\n",
		"etc/group": "root:x:0:\ndaemon:x:1:\nsys:x:3:\nwww-data:x:33:\n"}))
	var skip []string
	for _, names := range clientSkipped {
		for _, n := range names {
			skip = append(skip, "^"+n+"$")
		}
	}
	slices.Sort(skip)
	cmd := exec.CommandContext(t.Context(), program, "-test.v", "-test.root", "-test.timeout=15m",
		"-test.parallel=2",
		"-no-daemon", "-no-criu", "-address", b.path("c.sock"), "-test.skip", strings.Join(skip, "|"))
	cmd.Dir = b.Dir
	cmd.Env = append(os.Environ(), append(b.Registry.everywhere(t, b.path("authority.pem")),
		"TEST_RUNTIME=io.containerd.turnstone.v2", "RUNC_FLAVOR=none")...)
	var out bytes.Buffer
	cmd.Stdout = io.MultiWriter(&out, os.Stdout)
	cmd.Stderr = cmd.Stdout
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
	results := regexp.MustCompile(`(?m)^ *--- (PASS|FAIL|SKIP): .*$`).FindAllString(out.String(), -1)
	t.Logf("%s", strings.Join(results, "\n"))
	if !strings.Contains(out.String(), "\n--- PASS: TestContainerStart ") {
		t.Error("the tests did not run")
	}
}
