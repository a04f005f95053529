package s3test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"turnstone.dev/turnstone/internal/duplex"
)

// Options are for Start.
type Options struct {
	Program string // of Build
	Dir     string // an empty folder
	// Size mounts a file system of this size, such as 64m, for the buckets. It takes root.
	Size string
}

// A Started is an S3 server, and a proxy in front of it that fails as a test wants. Its methods are
// safe for concurrent use.
type Started struct {
	// URL is the address of the proxy.
	URL string
	// Data is the folder with the buckets, in which objects are files.
	Data string

	addr  string // of the server
	cmd   *exec.Cmd
	log   bytes.Buffer
	proxy *httptest.Server

	mu      sync.Mutex
	fault   func(w http.ResponseWriter, r *http.Request) bool
	plan    Plan
	release chan struct{} // closed at the end of a plan
	newest  string        // the key of the last PUT
}

// Start starts an S3 server. End ends it.
func Start(o Options) (*Started, error) {
	s := &Started{Data: filepath.Join(o.Dir, "data")}
	for _, sub := range []string{"data", "meta"} {
		if err := os.Mkdir(filepath.Join(o.Dir, sub), 0o700); err != nil {
			return nil, err
		}
	}
	// The server listens at this port when it is free again, so the address is one that nobody else has.
	l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+rand.IntN(254), rand.IntN(256),
		1+rand.IntN(254)))
	if err != nil {
		return nil, err
	}
	s.addr = l.Addr().String()
	_ = l.Close()
	args := []string{o.Program, "--port", s.addr, "--quiet", "--region", "us-east-1",
		"posix", "--sidecar", filepath.Join(o.Dir, "meta"), s.Data}
	if o.Size != "" {
		args = append([]string{"unshare", "-m", "sh", "-c",
			`mount -t tmpfs -o size="$1" tmpfs "$2" && shift 2 && exec "$@"`, "sh", o.Size, s.Data},
			args...)
	}
	s.cmd = exec.Command(args[0], args[1:]...)
	s.cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+AccessKey, "ROOT_SECRET_KEY="+SecretKey)
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	if o.Size != "" { // as the server sees it
		s.Data = fmt.Sprintf("/proc/%d/root%s", s.cmd.Process.Pid, s.Data)
	}
	target := &url.URL{Scheme: "http", Host: s.addr}
	forward := duplex.Handler(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // which is signed
	}})
	s.proxy = httptest.NewServer(s.handler(forward))
	s.URL = s.proxy.URL
	if err := s.answers(); err != nil {
		s.End()
		return nil, err
	}
	return s, nil
}

// handler is the proxy.
func (s *Started) handler(forward http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		fault, plan, f := s.fault, s.plan, faulty{forward, s.release, s.newest}
		if r.Method == http.MethodPut {
			s.newest = keyOf(r)
		}
		s.mu.Unlock()
		if fault != nil && fault(w, r) {
			return
		}
		if plan != nil {
			if p := plan(r); p != None {
				f.serve(w, r, p)
				return
			}
		}
		forward.ServeHTTP(w, r)
	})
}

// answers waits until the server answers.
func (s *Started) answers() error {
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", s.addr)
		if err == nil {
			return c.Close()
		}
		if time.Since(start) > 2*time.Minute {
			return fmt.Errorf("the server does not answer: %w", err)
		}
	}
}

// End ends the server and the proxy.
func (s *Started) End() {
	s.Plan(nil)
	s.proxy.CloseClientConnections()
	s.proxy.Close()
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// Bucket makes a bucket.
func (s *Started) Bucket(ctx context.Context, name string) error {
	return makeBucket(ctx, s.addr, name)
}

// Fail lets f answer requests in place of the server, and report whether it did; nil: the server
// answers again.
func (s *Started) Fail(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// Refuse answers with a status and a code, in S3's form.
func Refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", code, code)
}

// filler is a file beside the buckets.
const filler = "filler"

// mostFilled bounds a filler in bytes, so that no test fills the host's disk.
const mostFilled = 256 << 20

// Fill leaves no space in the file system of the buckets, which has to have a size.
func (s *Started) Fill() error {
	f, err := os.OpenFile(filepath.Join(s.Data, filler), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, io.LimitReader(zeros{}, mostFilled))
	if cerr := f.Close(); !errors.Is(err, syscall.ENOSPC) {
		return errors.Join(fmt.Errorf("%s is not full", s.Data), err, cerr)
	}
	return nil
}

// Free undoes Fill.
func (s *Started) Free() error { return os.Remove(filepath.Join(s.Data, filler)) }

// zeros are bytes without an end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
