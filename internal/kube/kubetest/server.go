package kubetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"turnstone.dev/turnstone/internal/testhome"
)

// A Server is a turn-server with all roles, whose sandboxes are real, and an operator that has it as its server. Both are
// processes of their own. End it.
type Server struct {
	Home   string // the server's state directory
	Client string // that of its users and of the operator; user.token and operator.token are tokens
	// Process and Operator are the processes; Operator is nil before Operate.
	Process, Operator *Program

	bin string
}

// ServerOptions are settings of a Server.
type ServerOptions struct {
	Bin    string   // the folder of the built programs
	Dir    string   // an empty folder
	Env    []string // settings of the server, beside its rates
	Tenant string   // of the user's token
	Scopes []string // of the operator's token
}

// serverHost is the server's name in hosts.toml.
const serverHost = "test"

// StartServer starts a server on a state directory with the templates that all tests share. It listens at the same
// address when its process starts again.
func StartServer(ctx context.Context, o ServerOptions) (s *Server, err error) {
	shared, err := testhome.Path()
	if err != nil {
		return nil, err
	}
	s = &Server{Home: filepath.Join(o.Dir, "node"), Client: filepath.Join(o.Dir, "user")}
	if s.bin, err = filepath.Abs(o.Bin); err != nil {
		return nil, err
	}
	for _, part := range []string{"templates", "kernel", "snapshots", "cache"} {
		if err := errors.Join(os.MkdirAll(s.Home, 0o700), os.MkdirAll(filepath.Join(shared, part), 0o700),
			os.Symlink(filepath.Join(shared, part), filepath.Join(s.Home, part))); err != nil {
			return nil, err
		}
	}
	port, err := freePorts(ctx, 1)
	if err != nil {
		return nil, err
	}
	s.Process = &Program{Path: filepath.Join(s.bin, "turn-server"),
		Args: []string{"serve", "--listen", fmt.Sprintf("127.0.0.1:%d", port[0])},
		Env: append([]string{"TURN_HOME=" + s.Home, "TURN_RUNSC=" + filepath.Join(s.bin, "runsc"),
			"TURN_SERVER_LIMITS_RATE=100000", "TURN_SERVER_LIMITS_BURST=100000"}, o.Env...)}
	if err := s.Process.Start(); err != nil {
		return nil, err
	}
	address, err := s.Process.Address(ctx)
	if err == nil {
		err = s.prepare(ctx, address, o)
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, s.Process.Log())
		s.End()
	}
	return s, err
}

// prepare builds the template and makes the files of the operator and of a user.
func (s *Server) prepare(ctx context.Context, address string, o ServerOptions) error {
	admin := s.Admin()
	if _, err := s.Turn(ctx, admin, "template", "build", "base"); err != nil {
		return err
	}
	keys, err := s.Turn(ctx, admin[:1], "key", "ls", "--json")
	pin := regexp.MustCompile(`SHA256:[A-Za-z0-9+/=]*`).FindString(keys)
	if err != nil || pin == "" {
		return errors.Join(err, fmt.Errorf("the node has no key: %s", keys))
	}
	user, err := s.Turn(ctx, admin, "token", "create", "--name", "user", "--tenant", o.Tenant, "--ttl", "2h")
	if err != nil {
		return err
	}
	args := []string{"token", "create", "--name", "operator", "--ttl", "2h"}
	for _, scope := range o.Scopes {
		args = append(args, "--scope", scope)
	}
	operator, err := s.Turn(ctx, admin, args...)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.Client, 0o700); err != nil {
		return err
	}
	for name, text := range map[string]string{"user": user, "operator": operator} {
		if err := os.WriteFile(filepath.Join(s.Client, name+".token"), []byte(text), 0o600); err != nil {
			return err
		}
	}
	_, err = s.Turn(ctx, []string{"TURN_HOME=" + s.Client, "TURN_TOKEN=" + strings.TrimSpace(user)}, "host", "add",
		serverHost, "http://"+address, "--pin", pin)
	return err
}

// Admin returns the variables with which turn is the server's administrator.
func (s *Server) Admin() []string {
	return []string{"TURN_HOME=" + s.Home, "TURN_HOST=unix:" + filepath.Join(s.Home, "server.sock")}
}

// Turn runs turn with variables, and returns its output.
func (s *Server) Turn(ctx context.Context, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "turn"), args...)
	cmd.Env = append(os.Environ(), env...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("turn %s: %w: %s", args[0], err, said.String())
	}
	return string(out), nil
}

// Operate starts the operator at path for a cluster, with more arguments.
func (s *Server) Operate(c *Cluster, path string, args ...string) error {
	config, err := c.Kubeconfig("turn-operator", "system:masters")
	if err != nil {
		return err
	}
	s.Operator = &Program{Path: path, Env: []string{"KUBECONFIG=" + config, "TURN_HOME=" + s.Client},
		Args: append([]string{"--host", serverHost, "--token-file", filepath.Join(s.Client, "operator.token"),
			"--default", "--metrics", "0", "--health", "0"}, args...)}
	return s.Operator.Start()
}

// End ends the operator, all sandboxes and the server.
func (s *Server) End() {
	s.Operator.End()
	_, _ = s.Turn(context.Background(), s.Admin(), "sandbox", "rm", "--all")
	s.Process.End()
}
