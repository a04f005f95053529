package s3_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/blob"
	"turnstone.dev/turnstone/internal/store/blob/blobtest"
	"turnstone.dev/turnstone/internal/store/blob/s3"
	"turnstone.dev/turnstone/internal/store/blob/s3/s3test"
	"turnstone.dev/turnstone/internal/testhome"
)

const (
	accessKey = s3test.AccessKey
	secretKey = s3test.SecretKey
)

func server(t *testing.T) string {
	t.Helper()
	return s3test.Server(t, "testserver")
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func bucket(t *testing.T, addr, name string) {
	t.Helper()
	s3test.Bucket(t, addr, name)
}

func open(t *testing.T, o s3.Options) *s3.Store {
	t.Helper()
	o.Insecure = true
	if o.Region == "" {
		o.Region = "us-east-1"
	}
	s, err := s3.Open(o)
	check(t, err)
	return s
}

// TestConformance runs the suite in a bucket, each test below its own prefix.
func TestConformance(t *testing.T) {
	addr := server(t)
	bucket(t, addr, "conformance")
	n := 0
	blobtest.Run(t, func(t *testing.T) blob.Store {
		n++
		return open(t, s3.Options{Endpoint: addr, Bucket: "conformance",
			Prefix: fmt.Sprintf("a/prefix-%d", n)})
	})
}

func TestErrors(t *testing.T) {
	addr := server(t)
	bucket(t, addr, "here")
	s := open(t, s3.Options{Endpoint: addr, Bucket: "here"})
	check(t, s.Check(t.Context()))
	check(t, s.Put(t.Context(), "x", strings.NewReader("1"), 1))

	none := open(t, s3.Options{Endpoint: addr, Bucket: "nowhere"})
	for what, err := range map[string]error{
		"check":  none.Check(t.Context()),
		"put":    none.Put(t.Context(), "x", strings.NewReader("1"), 1),
		"remove": none.Remove(t.Context(), "x"),
	} {
		if turnstone.KindOf(err) != turnstone.KindNotFound ||
			!strings.Contains(turnstone.HintOf(err), "bucket") {
			t.Errorf("%s without a bucket: %v (%s, %q)", what, err,
				turnstone.KindOf(err), turnstone.HintOf(err))
		}
	}
	t.Setenv("AWS_SECRET_ACCESS_KEY", "wrong-"+secretKey)
	refused := open(t, s3.Options{Endpoint: addr, Bucket: "here"})
	_, err := refused.Get(t.Context(), "x", 0, -1)
	if turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(turnstone.HintOf(err), "credentials") {
		t.Errorf("wrong credentials: %v (%q)", err, turnstone.HintOf(err))
	}
	if strings.Contains(fmt.Sprint(err, turnstone.HintOf(err)), secretKey) {
		t.Errorf("the secret is told: %v", err)
	}
}

// A bad proxy answers 503 at first and breaks connections: transient failures are retried.
type badProxy struct {
	http.Handler
	refuse, cut atomic.Int32 // remaining failures
}

func (p *badProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.refuse.Add(-1) >= 0 {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if r.Method == http.MethodGet && p.cut.Add(-1) >= 0 {
		w = &cutWriter{ResponseWriter: w, left: 100_000}
	}
	p.Handler.ServeHTTP(w, r)
}

// A cutWriter breaks the connection after some bytes.
type cutWriter struct {
	http.ResponseWriter
	left int
}

func (w *cutWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		panic(http.ErrAbortHandler)
	}
	return w.ResponseWriter.Write(p)
}

func TestRetries(t *testing.T) {
	addr := server(t)
	bucket(t, addr, "retries")
	target, err := url.Parse("http://" + addr)
	check(t, err)
	rp := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // the signature covers it
	}, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	proxy := &badProxy{Handler: rp}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	srv := &http.Server{Handler: proxy, ErrorLog: rp.ErrorLog}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })

	s := open(t, s3.Options{Endpoint: l.Addr().String(), Bucket: "retries"})
	want := bytes.Repeat([]byte("0123456789abcdef"), 40_000)
	proxy.refuse.Store(3)
	// A reader that can be read only once is sent again too.
	check(t, s.Put(t.Context(), "x", io.MultiReader(bytes.NewReader(want)), int64(len(want))))
	proxy.refuse.Store(2)
	proxy.cut.Store(2)
	r, err := s.Get(t.Context(), "x", 5, -1)
	check(t, err)
	got, err := io.ReadAll(r)
	check(t, err)
	check(t, r.Close())
	if !bytes.Equal(got, want[5:]) {
		t.Errorf("got %d bytes that are not the %d put", len(got), len(want)-5)
	}
	proxy.cut.Store(100)
	r, err = s.Get(t.Context(), "x", 0, -1)
	check(t, err)
	if _, err := io.ReadAll(r); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a connection that always breaks: %v", err)
	}
	check(t, r.Close())
	proxy.cut.Store(0)
	proxy.refuse.Store(1 << 20)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond) //wait: it is meant to expire
	defer cancel()
	if err := s.Put(ctx, "y", strings.NewReader("1"),
		1); turnstone.KindOf(err) != turnstone.KindTimeout {
		t.Errorf("a server that always refuses: %v", err)
	}
}

func TestParseURL(t *testing.T) {
	for _, v := range []string{"AWS_REGION", "AWS_DEFAULT_REGION",
		"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"} {
		t.Setenv(v, "")
	}
	o, err := s3.ParseURL("s3://b/some/prefix/")
	if want := (s3.Options{Endpoint: "s3.amazonaws.com", Bucket: "b",
		Prefix: "some/prefix"}); err != nil || o != want {
		t.Errorf("got %+v, %v", o, err)
	}
	t.Setenv("AWS_ENDPOINT_URL", "http://localhost:9000/")
	t.Setenv("AWS_REGION", "eu-north-1")
	o, err = s3.ParseURL("s3://b")
	if want := (s3.Options{Endpoint: "localhost:9000", Insecure: true, Region: "eu-north-1",
		Bucket: "b"}); err != nil || o != want {
		t.Errorf("got %+v, %v", o, err)
	}
	for _, bad := range []string{"", "b", "s3:", "s3://", "http://b", "s3://user:pw@b",
		"s3://b/../c", "s3://b?x=1", "s3://b/a//c", ":"} {
		if _, err := s3.ParseURL(bad); turnstone.KindOf(err) != turnstone.KindInvalid ||
			turnstone.HintOf(err) == "" {
			t.Errorf("%q: %v", bad, err)
		}
	}
	t.Setenv("AWS_ENDPOINT_URL_S3", "localhost:9000")
	if _, err := s3.ParseURL("s3://b"); err == nil {
		t.Error("an endpoint that is no URL is taken")
	}
}

// TestFull: a full bucket and a server that is busy for long are errors that say so, and a refused
// blob is not there.
func TestFull(t *testing.T) {
	if err := exec.Command("unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/tmp").Run(); err != nil {
		t.Skip("a small file system cannot be mounted here: ", err)
	}
	program, err := s3test.Build(t.Context(), testhome.Dir(t), "testserver")
	check(t, err)
	server, err := s3test.Start(s3test.Options{Program: program, Dir: t.TempDir(), Size: "4m"})
	check(t, err)
	t.Cleanup(server.End)
	check(t, server.Bucket(t.Context(), "small"))
	t.Setenv("AWS_ACCESS_KEY_ID", accessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secretKey)
	s := open(t, s3.Options{Endpoint: strings.TrimPrefix(server.URL, "http://"), Bucket: "small"})
	put := func(name string) error {
		return s.Put(t.Context(), name, bytes.NewReader(make([]byte, 100_000)), 100_000)
	}
	check(t, put("before"))
	check(t, server.Fill())
	if err := put("refused"); turnstone.KindOf(err) != turnstone.KindExhausted ||
		!strings.HasPrefix(turnstone.HintOf(err), "free space in the bucket") {
		t.Errorf("a full bucket: %v (%s)", err, turnstone.HintOf(err))
	}
	check(t, server.Free())
	for code, kind := range map[string]turnstone.Kind{"QuotaExceeded": turnstone.KindExhausted,
		"AccessDenied": turnstone.KindUnavailable} {
		server.Fail(func(w http.ResponseWriter, _ *http.Request) bool {
			s3test.Refuse(w, http.StatusForbidden, code)
			return true
		})
		if err := put("refused"); turnstone.KindOf(err) != kind {
			t.Errorf("%s: %v (%s)", code, err, turnstone.HintOf(err))
		}
	}
	server.Fail(func(w http.ResponseWriter, _ *http.Request) bool {
		s3test.Refuse(w, http.StatusServiceUnavailable, "SlowDown")
		return true
	})
	if err := s.Remove(t.Context(), "before"); turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(turnstone.HintOf(err), "busy") {
		t.Errorf("a busy server: %v (%s)", err, turnstone.HintOf(err))
	}
	server.Fail(nil)
	if _, err := s.Get(t.Context(), "refused", 0, -1); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Errorf("a blob that was refused: %v", err)
	}
	check(t, put("refused"))
	if _, err := s.Get(t.Context(), "before", 0, -1); err != nil {
		t.Error(err)
	}
}
