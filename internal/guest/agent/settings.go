package agent

import (
	"context"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/tarfiles"
	"turnstone.dev/turnstone/wire"
)

// defaults are what processes get that name nothing else.
type defaults struct {
	mu               sync.Mutex
	cwd, user, owner string // owner: of files

	entrypoint, cmd []string // of the image
	imageDir        string
}

// program returns what the image starts with these arguments, and its directory.
func (d *defaults) program(args []string) (argv []string, dir string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.entrypoint)+len(d.cmd) == 0 {
		return nil, "", turnstone.Errorf(wire.MethodProcessStart, turnstone.KindInvalid, "image",
			"the sandbox's image has no ENTRYPOINT and no CMD").WithHint("name the program")
	}
	if len(args) == 0 {
		args = d.cmd
	}
	return slices.Concat(d.entrypoint, args), path.Join("/", d.imageDir), nil
}

// own sets to whom new files belong.
func (d *defaults) own(user string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.owner = user
}

// ownerOf returns to whom new files belong; nil: root, or who the agent is. A user that the sandbox has lost is root:
// what runs there can edit the accounts.
func (a *Agent) ownerOf() *tarfiles.Owner {
	a.defaults.mu.Lock()
	user := a.defaults.owner
	a.defaults.mu.Unlock()
	if user == "" || os.Geteuid() != 0 {
		return nil
	}
	uid, gid, err := a.procs.Account(user)
	if err != nil {
		return nil
	}
	return &tarfiles.Owner{UID: int(uid), GID: int(gid)}
}

// of returns the directory and the user of a process.
func (d *defaults) of(cwd, user, byDefault string) (string, string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range []string{d.cwd, byDefault} {
		if cwd == "" {
			cwd = c
		}
	}
	if user == "" {
		user = d.user
	}
	return cwd, user
}

// SetDefaults implements Sandbox.setDefaults.
func (s *sandbox) SetDefaults(_ context.Context, _ *wire.Conn,
	p *wire.SandboxSetDefaultsParams) error {
	for _, dir := range []string{p.Cwd, p.ImageDirectory} {
		if dir != "" && !path.IsAbs(dir) {
			return Invalid(wire.MethodSandboxSetDefaults, dir, "it is not an absolute path")
		}
	}
	for _, kv := range p.Env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" || strings.ContainsRune(kv, 0) {
			return Invalid(wire.MethodSandboxSetDefaults, "env", "one of them is not KEY=VALUE")
		}
	}
	if len(p.Env) > 0 {
		s.a.shell.addEnv(p.Env)
	}
	d := &s.a.defaults
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cwd, d.user = p.Cwd, p.User
	if len(p.Entrypoint)+len(p.Cmd) > 0 {
		d.entrypoint, d.cmd, d.imageDir = p.Entrypoint, p.Cmd, p.ImageDirectory
	}
	return nil
}

// AddSecrets implements Sandbox.addSecrets. The host knows a secret before a command has it.
func (s *sandbox) AddSecrets(ctx context.Context, _ *wire.Conn,
	p *wire.SandboxAddSecretsParams) error {
	return s.a.secrets.Add(ctx, s.a.records, p.Secrets, s.a.shell.addEnv)
}
