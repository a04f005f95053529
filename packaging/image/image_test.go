package main

import (
	"archive/tar"
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"turnstone.dev/turnstone/internal/template/debian"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fake returns a folder with programs of a few bytes.
func fake(t *testing.T, content string) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range programs {
		check(t, os.WriteFile(filepath.Join(dir, p), []byte(content+p), 0o700))
	}
	return dir
}

func digest(t *testing.T, bin string) v1.Hash {
	t.Helper()
	image, err := Build(bin)
	check(t, err)
	d, err := image.Digest()
	check(t, err)
	return d
}

// TestReproducible: the digest depends on the content of the programs alone.
func TestReproducible(t *testing.T) {
	one, two := fake(t, "a"), fake(t, "a")
	old := time.Unix(1, 0)
	for _, p := range programs {
		check(t, os.Chmod(filepath.Join(two, p), 0o755))
		check(t, os.Chtimes(filepath.Join(two, p), old, old))
	}
	if a, b := digest(t, one), digest(t, two); a != b {
		t.Errorf("%s and %s", a, b)
	}
	if a, b := digest(t, one), digest(t, fake(t, "b")); a == b {
		t.Error("other programs have the same digest")
	}
	check(t, os.WriteFile(filepath.Join(one, operator), []byte("o"), 0o700))
	if a, b := digest(t, one), digest(t, two); a == b {
		t.Error("the operator is not in the image")
	}
	check(t, os.Remove(filepath.Join(two, "runsc")))
	if _, err := Build(two); err == nil {
		t.Error("an image without runsc")
	}
}

// files lists the merged layers of an image.
func files(t *testing.T, image v1.Image) map[string]*tar.Header {
	t.Helper()
	r := mutate.Extract(image)
	defer func() { _ = r.Close() }()
	all := map[string]*tar.Header{}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		check(t, err)
		all[strings.TrimSuffix(h.Name, "/")] = h
	}
}

// TestContents: the image has the programs and authorities, and its user can write only its state.
func TestContents(t *testing.T) {
	image, err := Build(fake(t, "a"))
	check(t, err)
	all := files(t, image)
	for _, path := range []string{"usr/bin/turn", "usr/bin/turn-server", "usr/bin/runsc",
		"etc/ssl/certs/ca-certificates.crt"} {
		if all[path] == nil || all[path].Size == 0 {
			t.Errorf("%s is missing", path)
		}
	}
	for path, h := range all {
		own := path == "var/lib/turnstone"
		if (h.Uid == user) != own || h.Mode&0o022 != 0 && path != "tmp" {
			t.Errorf("%s belongs to %d with mode %o", path, h.Uid, h.Mode)
		}
	}
	c, err := image.ConfigFile()
	check(t, err)
	if c.Config.User != "65532:65532" || c.OS != "linux" || c.Architecture != runtime.GOARCH ||
		!slices.Equal(c.Config.Entrypoint, []string{"/usr/bin/turn"}) {
		t.Errorf("%+v", c)
	}
}

// TestArchiveAndPush: what is written and pushed is the image.
func TestArchiveAndPush(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	ref := strings.TrimPrefix(server.URL, "http://") + "/turnstone:test"
	out := filepath.Join(t.TempDir(), "image.tar")
	bin := fake(t, "a")
	check(t, run(t.Context(), false, debian.Mirrors{}, bin, out, ref))
	at, err := name.ParseReference(ref)
	check(t, err)
	pushed, err := remote.Image(at)
	check(t, err)
	check(t, validate.Image(pushed))
	if d, err := pushed.Digest(); err != nil || d != digest(t, bin) {
		t.Errorf("%s, %v", d, err)
	}
	loaded, err := tarball.ImageFromPath(out, nil)
	check(t, err)
	if len(files(t, loaded)) != len(files(t, pushed)) {
		t.Error("the archive has other files")
	}
}

// TestRuns starts the server's programs as the image's user in nothing but the image.
func TestRuns(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can change the root folder")
	}
	bin, err := filepath.Abs("../../bin")
	check(t, err)
	for _, p := range programs {
		if info, err := os.Stat(filepath.Join(bin, p)); err != nil || info.Size() == 0 {
			t.Skip("make build has not built " + p)
		}
	}
	image, err := Build(bin)
	check(t, err)
	root := unpack(t, image)
	for _, c := range []struct{ args, want string }{
		{"version", "turn "}, {"serve --check-config", "roles = "}} {
		words := strings.Fields(c.args)
		out, err := inside(root, words...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), c.want) {
			t.Errorf("turn %s: %v: %s", c.args, err, out)
		}
	}
	serves(t, root)
}

// inside returns a command of turn as the image's user in the image's files.
func inside(root string, args ...string) *exec.Cmd {
	cmd := exec.Command("/usr/bin/turn", args...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin", "TURN_HOME=" + home}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Pdeathsig: syscall.SIGKILL,
		Credential: &syscall.Credential{Uid: user, Gid: user}}
	return cmd
}

// serves runs a gateway and a controller in the image's files, without /proc and /dev: they answer
// callers, and end when they are told to.
func serves(t *testing.T, root string) {
	t.Helper()
	server := inside(root, "serve", "--role", "gateway,controller", "--listen", "127.0.0.1:0")
	server.Env = append(server.Env, "TURN_SERVER_PEERS_LISTEN=unix:/tmp/peers.sock",
		"TURN_SERVER_LOG_FORMAT=json")
	log, err := server.StderrPipe()
	check(t, err)
	check(t, server.Start())
	defer func() { _ = server.Process.Kill() }()
	lines := bufio.NewScanner(log)
	var at string
	for at == "" && lines.Scan() {
		var line struct{ Listeners []string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && len(line.Listeners) > 0 {
			at = line.Listeners[0]
		}
	}
	if at == "" {
		t.Fatalf("the server ended: %v", server.Wait())
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.Discard, log)
	}()
	client := inside(root, "token", "create", "--name", "ci", "--ttl", "1h")
	client.Env = append(client.Env, "TURN_HOST=unix:"+home+"/server.sock")
	token, err := client.Output()
	check(t, err)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		"http://"+at+"/turnstone.v1.TurnService/ListTurns", strings.NewReader("{}"))
	check(t, err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	answer, err := http.DefaultClient.Do(r)
	check(t, err)
	b, err := io.ReadAll(answer.Body)
	check(t, err)
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("%d %s", answer.StatusCode, b)
	}
	check(t, server.Process.Signal(syscall.SIGTERM))
	<-drained
	check(t, server.Wait())
}

// unpack returns a folder with the image's files.
func unpack(t *testing.T, image v1.Image) string {
	t.Helper()
	root := t.TempDir()
	check(t, os.Chmod(root, 0o755))
	r := mutate.Extract(image)
	defer func() { _ = r.Close() }()
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return root
		}
		check(t, err)
		path := filepath.Join(root, h.Name)
		if h.Typeflag == tar.TypeDir {
			check(t, os.MkdirAll(path, 0o755))
		} else {
			check(t, os.MkdirAll(filepath.Dir(path), 0o755))
			b, err := io.ReadAll(in)
			check(t, err)
			check(t, os.WriteFile(path, b, 0o600))
		}
		check(t, os.Lchown(path, h.Uid, h.Gid))
		check(t, os.Chmod(path, h.FileInfo().Mode()))
	}
}
