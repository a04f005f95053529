// Package s3test starts a real S3 server for tests.
package s3test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"turnstone.dev/turnstone/internal/statedir"
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
	program, err := Build(t.Context(), testhome.Dir(t), module)
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("the go command, which builds the S3 server, is not in PATH")
	}
	check(t, err)
	s, err := Start(Options{Program: program, Dir: t.TempDir()})
	check(t, err)
	t.Cleanup(func() {
		s.End()
		if t.Failed() {
			t.Logf("the server's log:\n%s", s.log.String())
		}
	})
	return s.addr
}

// Build returns the server's program, which is built once in the folder dir for each version. Where
// it is missing and there is no Go, such as for the ordinary user that repeats the tests, the error
// is exec.ErrNotFound.
func Build(ctx context.Context, dir, module string) (string, error) {
	mod, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(mod)
	program := filepath.Join(dir, "versitygw-"+hex.EncodeToString(sum[:6]))
	// Several tests of a process, and several processes, may want it at the same time.
	lock, err := statedir.Acquire(ctx, program+".lock", nil)
	if err != nil {
		return "", err
	}
	defer lock.Release()
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	if _, err := exec.LookPath("go"); err != nil {
		return "", err
	}
	tmp := fmt.Sprintf("%s.%d", program, os.Getpid())
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags=netgo,osusergo", "-ldflags=-s -w", "-o", tmp,
		"github.com/versity/versitygw/cmd/versitygw")
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the S3 server: %w\n%s", err, out)
	}
	return program, os.Rename(tmp, program)
}

// Bucket creates a bucket and sets the credentials in the environment.
func Bucket(t testing.TB, addr, name string) {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", SecretKey)
	MakeBucket(t, addr, name)
}

// MakeBucket creates a bucket, for a parallel test, whose environment is that of others.
func MakeBucket(t testing.TB, addr, name string) {
	t.Helper()
	check(t, makeBucket(t.Context(), addr, name))
}

func makeBucket(ctx context.Context, addr, name string) error {
	c, err := minio.New(addr,
		&minio.Options{Creds: credentials.NewStaticV4(AccessKey, SecretKey, "")})
	if err != nil {
		return err
	}
	return c.MakeBucket(ctx, name, minio.MakeBucketOptions{})
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
