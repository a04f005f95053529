// Package pgtest gives tests a PostgreSQL server of their own.
package pgtest

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/pg"
)

// A Server is a PostgreSQL server for tests, which listens on a Unix socket in a temporary folder.
type Server struct {
	URL string // of its database, for the tests' user

	dir     string
	bin     string
	as      *syscall.Credential // nil: this process's user
	options []string
	schemas atomic.Int32

	alive *os.File // the pipe whose end tells watch that the tests have ended

	mu  sync.Mutex
	cmd *exec.Cmd // nil: it does not run
}

var shared struct {
	once   sync.Once
	server *Server
	err    error
}

// Main runs the tests of a package, and ends the server that they used: it is called by TestMain.
func Main(m *testing.M) int {
	code := m.Run()
	if shared.server != nil {
		shared.server.Remove()
	}
	return code
}

// Shared returns the server of the test binary, whose TestMain has to call Main. It starts at the first
// call. If PostgreSQL is not installed the test is skipped, except in CI.
func Shared(t testing.TB) *Server {
	t.Helper()
	bin := installed(t)
	shared.once.Do(func() { shared.server, shared.err = start(bin, "fsync=off") })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server
}

// New returns a server for one test, with settings such as max_connections=8. It writes as durably as
// a real one unless the settings have fsync=off.
func New(t testing.TB, settings ...string) *Server {
	t.Helper()
	s, err := start(installed(t), settings...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Remove)
	return s
}

// Begin is New for what is no test, such as a script's command. Remove ends the server.
func Begin(settings ...string) (*Server, error) { return start(programs(), settings...) }

// Installed reports whether PostgreSQL is installed.
func Installed() bool { return programs() != "" }

// programs returns the folder with the server's programs; empty: it is not installed.
func programs() string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if p, err := exec.LookPath("postgres"); err == nil && len(found) == 0 {
		if p, err = filepath.EvalSymlinks(p); err == nil {
			found = []string{p}
		}
	}
	if len(found) == 0 {
		return ""
	}
	return filepath.Dir(found[len(found)-1])
}

func installed(t testing.TB) string {
	t.Helper()
	bin := programs()
	if bin == "" {
		const why = "PostgreSQL is not installed: scripts/setup tests installs it"
		if os.Getenv("CI") != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	return bin
}

func start(bin string, settings ...string) (*Server, error) {
	// the path of a socket has at most 107 bytes, and another user has to reach it
	dir, err := os.MkdirTemp("/tmp", "turn-pg-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, bin: bin,
		URL: "postgres://turn@/postgres?host=" + dir}
	for _, o := range append([]string{"listen_addresses=", "unix_socket_directories=" + dir,
		"unix_socket_permissions=0777", "logging_collector=off", "shared_buffers=16MB",
		"dynamic_shared_memory_type=mmap"}, settings...) {
		s.options = append(s.options, "-c", o)
	}
	err = s.watch()
	if err == nil {
		err = s.initialize()
	}
	if err == nil {
		err = s.Start()
	}
	if err != nil {
		s.Remove()
		return nil, err
	}
	return s, nil
}

// watch starts a process that ends the server and removes its files after the tests, also if they are
// killed.
func (s *Server) watch() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	s.alive = w
	cmd := exec.Command("/bin/sh", "-c", `cat
read -r pid <"$1/data/postmaster.pid" && kill -QUIT "$pid"
rm -rf "$1"`, "sh", s.dir)
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Start()
}

// initialize makes the server's files. PostgreSQL does not run as root: then it runs as another user.
func (s *Server) initialize() error {
	if os.Getuid() == 0 {
		var err error
		if s.as, err = ordinary(); err != nil {
			return err
		}
		if err := os.Chown(s.dir, int(s.as.Uid), int(s.as.Gid)); err != nil {
			return err
		}
	}
	if err := os.Chmod(s.dir, 0o755); err != nil {
		return err
	}
	out, err := s.command("initdb", "-D", s.data(), "-U", "turn", "-A", "trust", "-E", "UTF8",
		"--locale=C.UTF-8", "--no-sync").CombinedOutput()
	if err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return nil
}

// ordinary returns a user who is not root.
func ordinary() (*syscall.Credential, error) {
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, fmt.Errorf("there is no user postgres or nobody")
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	// a signal to the tests' group is not for it
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.as, Setpgid: true}
	return cmd
}

// Start starts the server and waits until it answers. A server that runs is left alone.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		return nil
	}
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := s.command("postgres", append([]string{"-D", s.data()}, s.options...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	s.cmd = cmd
	if err := s.answers(); err != nil {
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("%w\n%s", err, text)
	}
	return nil
}

func (s *Server) answers() error {
	db, err := sql.Open("pgx", s.URL)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return pg.Retry(ctx, 2*time.Minute, func() error { return db.PingContext(ctx) })
}

// Stop ends the server at once: connections break, and transactions that are not stored are lost.
func (s *Server) Stop() error { return s.signal(syscall.SIGINT) }

// Crash ends the server without a word, as a power failure of its machine does.
func (s *Server) Crash() error { return s.signal(syscall.SIGQUIT) }

func (s *Server) signal(sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return nil
	}
	if err := s.cmd.Process.Signal(sig); err != nil {
		return err
	}
	err := s.cmd.Wait()
	s.cmd = nil
	if _, ended := err.(*exec.ExitError); ended {
		return nil
	}
	return err
}

// Remember copies the server's files. goBack ends the server and starts it with the copy: what was
// stored meanwhile is lost, as when a standby that lacks the newest transactions becomes the primary.
func (s *Server) Remember() (goBack func() error, err error) {
	old := s.data() + ".old"
	if err := s.Stop(); err != nil {
		return nil, err
	}
	cp := s.command("cp", "-a", s.data(), old)
	cp.Path = "/bin/cp"
	if out, err := cp.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cp: %w\n%s", err, out)
	}
	return func() error {
		if err := s.Crash(); err != nil {
			return err
		}
		if err := os.RemoveAll(s.data()); err != nil {
			return err
		}
		if err := os.Rename(old, s.data()); err != nil {
			return err
		}
		return s.Start()
	}, s.Start()
}

// Remove ends the server and removes its files.
func (s *Server) Remove() {
	_ = s.Crash()
	_ = os.RemoveAll(s.dir)
	if s.alive != nil {
		_ = s.alive.Close()
	}
}

// Schema returns the name of a schema that nobody else of the test binary uses.
func (s *Server) Schema(name string) string {
	name = strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(name))
	return fmt.Sprintf("t%d_%.40s", s.schemas.Add(1), name)
}
