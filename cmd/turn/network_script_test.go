package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"turnstone.dev/turnstone/internal/network"
)

// A scriptServer is a web server of a script. It answers with the request, and logs the request.
type scriptServer struct {
	*httptest.Server
	mu  sync.Mutex
	n   int
	log *os.File
}

// ServeHTTP implements http.Handler.
func (s *scriptServer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(io.LimitReader(req.Body, 1<<20))
	s.mu.Lock()
	s.n++
	n := s.n
	fmt.Fprintf(s.log, "%s %s authorization=%q\n", req.Method, req.RequestURI,
		req.Header.Get("Authorization"))
	s.mu.Unlock()
	fmt.Fprintf(w, "answer %d to %s %s with %q, authorization %q\n", n, req.Method, req.RequestURI,
		body, req.Header.Get("Authorization"))
}

// web starts a web server on this computer's loopback until the script's end, or stops it: "web
// NAME", "web -tls NAME", "web -stop NAME". Its port is the variable NAME, its log the file
// NAME.log. With -tls it is host.turnstone.internal, and SSL_CERT_FILE, which turn reads, names its
// authority.
func web(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: web [-tls | -stop] NAME")
	}
	name := args[len(args)-1]
	servers := ts.Value(serversKey{}).(map[string]*scriptServer)
	if args[0] == "-stop" {
		servers[name].Close()
		return
	}
	log, err := os.Create(ts.MkAbs(name + ".log"))
	ts.Check(err)
	s := &scriptServer{log: log}
	s.Server = httptest.NewUnstartedServer(s)
	if args[0] == "-tls" {
		cert, authority := scriptCertificate(ts)
		s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
		s.StartTLS()
		ts.Check(os.WriteFile(ts.MkAbs("authority.pem"), authority, 0o600))
		ts.Setenv("SSL_CERT_FILE", ts.MkAbs("authority.pem"))
	} else {
		s.Start()
	}
	ts.Defer(func() { s.Close(); _ = log.Close() })
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	ts.Check(err)
	ts.Setenv(name, port)
	servers[name] = s
}

type serversKey struct{}

// scriptCertificate returns a certificate for the name by which a guest finds this computer.
func scriptCertificate(ts *testscript.TestScript) (cert tls.Certificate, authority []byte) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ts.Check(err)
	now := time.Now()
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour),
		NotAfter: now.Add(time.Hour), DNSNames: []string{network.HostName},
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	ts.Check(err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// fetch gets a page of this computer, which must match: "fetch FILE PATH REGEXP", where the first
// line of FILE is ADDRESS:PORT.
func fetch(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: fetch FILE PATH TEXT")
	}
	address, _, _ := strings.Cut(ts.ReadFile(args[0]), "\n")
	client := &http.Client{Timeout: 30 * time.Second}
	res, err := client.Get("http://" + address + args[1])
	if neg {
		if err == nil {
			_ = res.Body.Close()
			ts.Fatalf("answered with %s", res.Status)
		}
		return
	}
	ts.Check(err)
	b, err := io.ReadAll(res.Body)
	ts.Check(err)
	ts.Check(res.Body.Close())
	if !strings.Contains(string(b), args[2]) {
		ts.Fatalf("%s: %s", res.Status, last(b))
	}
}

// absent checks that no file below a folder contains a text: "absent FOLDER TEXT". It does not
// search packed and compressed data.
func absent(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: absent FOLDER TEXT")
	}
	ts.Check(eachFile(ts.MkAbs(args[0]), func(path string, b []byte) {
		if strings.Contains(string(b), args[1]) {
			ts.Fatalf("%s holds it", path)
		}
	}))
}

// eachFile calls f with the regular files below dir.
func eachFile(dir string, f func(path string, b []byte)) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		// an image, which is mostly a hole
		if st, err := d.Info(); err != nil || st.Size() > 64<<20 {
			return err
		}
		b, err := os.ReadFile(path)
		if err == nil {
			f(path, b)
		}
		return err
	})
}

// reachable reports whether a page answers.
func reachable(url string) bool {
	client := &http.Client{Timeout: 10 * time.Second}
	res, err := client.Head(url)
	if err != nil {
		return false
	}
	_ = res.Body.Close()
	return res.StatusCode == http.StatusOK
}
