// Package s3test starts a real S3 server for tests.
package s3test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"turnstone.dev/turnstone/internal/testhome"
)

// The credentials of the server.
const (
	AccessKey = "testing"
	SecretKey = "this-one-must-not-be-told"
)

// Server builds the S3 server named in the go.mod in the folder module if necessary, starts it on a
// fresh folder until the test ends, and returns its address.
func Server(t testing.TB, module string) string {
	t.Helper()
	program := build(t, module)
	dir := t.TempDir()
	for _, sub := range []string{"data", "meta"} {
		check(t, os.Mkdir(filepath.Join(dir, sub), 0o700))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	addr := l.Addr().String()
	check(t, l.Close())
	var log bytes.Buffer
	cmd := exec.Command(program, "--port", addr, "--quiet", "--region", "us-east-1",
		"posix", "--sidecar", filepath.Join(dir, "meta"), filepath.Join(dir, "data"))
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+AccessKey, "ROOT_SECRET_KEY="+SecretKey)
	cmd.Stdout, cmd.Stderr = &log, &log
	check(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the server's log:\n%s", log.String())
		}
	})
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
			return addr
		}
		if time.Since(start) > 20*time.Second {
			t.Fatal("the server does not answer: ", err)
		}
	}
}

// build returns the server's program, built once for each version.
func build(t testing.TB, module string) string {
	t.Helper()
	mod, err := os.ReadFile(filepath.Join(module, "go.mod"))
	check(t, err)
	sum := sha256.Sum256(mod)
	program := filepath.Join(testhome.Dir(t), "versitygw-"+hex.EncodeToString(sum[:6]))
	if _, err := os.Stat(program); err == nil {
		return program
	}
	// such as for the ordinary user that repeats the tests
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("the go command, which builds the S3 server, is not in PATH")
	}
	tmp := fmt.Sprintf("%s.%d", program, os.Getpid())
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", tmp,
		"github.com/versity/versitygw/cmd/versitygw")
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the S3 server: %v\n%s", err, out)
	}
	check(t, os.Rename(tmp, program))
	return program
}

// Bucket creates a bucket and sets the credentials in the environment.
func Bucket(t testing.TB, addr, name string) {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", SecretKey)
	c, err := minio.New(addr,
		&minio.Options{Creds: credentials.NewStaticV4(AccessKey, SecretKey, "")})
	check(t, err)
	check(t, c.MakeBucket(t.Context(), name, minio.MakeBucketOptions{}))
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
