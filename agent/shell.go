package agent

import (
	"context"
	_ "embed"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	wire "turnstone.dev/turnstone/oldwire"
)

// What is put in front of a step's script, so that the shell writes its working
// directory and exported environment to a file when it exits. bash does it with
// builtins alone, because a fork costs tens of milliseconds under emulation. The
// trap files keep an EXIT trap of the author's working beside this one.
var (
	//go:embed prelude/capture.bash
	captureBash string
	//go:embed prelude/trap.bash
	trapBash string
	//go:embed prelude/capture.sh
	captureSh string
	//go:embed prelude/trap.sh
	trapSh string
)

// A shell is the session that steps run in: each is a shell process of its own,
// which starts from the exported environment and the working directory that the
// step before it left.
type shell struct {
	a *Agent

	mu    sync.Mutex // one step at a time
	steps int
	env   []string
	cwd   string
}

func newShell(a *Agent) (*shell, error) {
	s := &shell{a: a, env: mergeEnv(a.opt.Env, nil), cwd: a.opt.Cwd}
	dir := a.path(a.opt.RunDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return s, os.WriteFile(filepath.Join(dir, "capture.bash"), s.fill(captureBash, "\nunset BASH_ENV\n"), 0o644)
}

// fill puts the run directory's name into a prelude. It is the agent's own, and
// holds no quote.
func (s *shell) fill(parts ...string) []byte {
	return []byte(strings.ReplaceAll(strings.Join(parts, ""), "@RUN@", s.a.opt.RunDir))
}

// execute is Shell.execute. A step whose capture is missing or malformed, since
// another program replaced the shell or it was killed, leaves the session as it
// was before.
func (s *shell) execute(ctx context.Context, p wire.ExecuteParams) (any, error) {
	ran := false
	defer func() {
		if !ran {
			s.a.procs.abandon(p.ID)
		}
	}()
	if p.ID == "" || (p.Language != "bash" && p.Language != "sh") {
		return nil, invalid("shell.execute", p.Language, "an id and the language bash or sh are needed")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.env = mergeEnv(s.env, p.Env)
	if p.Cwd != "" {
		s.cwd = p.Cwd
	}
	s.steps++
	dir := s.a.path(s.a.opt.RunDir)
	state := filepath.Join(dir, "state")
	if err := os.Remove(state); err != nil && !os.IsNotExist(err) {
		return nil, runDirError(err)
	}
	sp := spec{id: p.ID, cwd: s.cwd}
	name := strconv.Itoa(s.steps) + "-" + safeName(p.Name) + ".sh"
	script := filepath.Join(s.a.opt.RunDir, name)
	err := os.WriteFile(filepath.Join(dir, name), []byte(p.Script), 0o644)
	if err != nil {
		return nil, runDirError(err)
	}
	if p.Language == "bash" {
		err = s.bash(&sp, script, p.Script)
	} else {
		s.sh(&sp, script, p.Script)
	}
	if err != nil {
		return nil, runDirError(err)
	}
	ran = true
	res, err := s.a.procs.run(ctx, sp)
	if err != nil {
		return nil, err
	}
	data, err := readCapture(state)
	if err == nil {
		err = s.adopt(data, p.Language)
	}
	res.StateLost = err != nil
	res.Cwd, res.Env = s.cwd, s.env
	return res, nil
}

// adopt makes what a step's shell left the session's own, if it is well formed.
func (s *shell) adopt(data []byte, language string) error {
	if language == "bash" {
		c, err := parseBash(data)
		if err == nil {
			s.cwd, s.env = c.cwd, append(c.vars, c.funs...)
		}
		return err
	}
	c, err := parseSh(data)
	if err != nil {
		return err
	}
	// sh drops what it cannot name, so the functions stay as they were.
	for _, kv := range s.env {
		if strings.HasPrefix(kv, "BASH_FUNC_") {
			c.vars = append(c.vars, kv)
		}
	}
	s.cwd, s.env = c.cwd, c.vars
	return nil
}

// bash prepares a bash step. BASH_ENV is sourced before the script, which so has
// the $0, line numbers and exit status of "bash script".
func (s *shell) bash(sp *spec, script, text string) error {
	prelude := "capture.bash"
	user := lookupEnv(s.env, "BASH_ENV")
	traps := setsExitTrap(text)
	if user != "" || traps {
		parts := []string{captureBash}
		if traps {
			parts = append(parts, trapBash)
		}
		parts = append(parts, "\nunset BASH_ENV\n")
		body := s.fill(parts...)
		if user != "" {
			// Its own BASH_ENV means as much to the author's script as before.
			q := "'" + strings.ReplaceAll(user, "'", `'\''`) + "'"
			body = append(body, "export BASH_ENV="+q+"\nif [ -r "+q+" ]; then . "+q+"; fi\n"...)
		}
		prelude = "capture-" + strconv.Itoa(s.steps) + ".bash"
		if err := os.WriteFile(filepath.Join(s.a.path(s.a.opt.RunDir), prelude), body, 0o644); err != nil {
			return err
		}
	}
	sp.argv = []string{"/bin/bash", script}
	sp.env = mergeEnv(s.env, []string{"BASH_ENV=" + filepath.Join(s.a.opt.RunDir, prelude)})
	return nil
}

// sh prepares a step for the system's sh, which has no BASH_ENV: a command line
// sources the script, with the script's path as $0.
func (s *shell) sh(sp *spec, script, text string) {
	parts := []string{captureSh}
	if setsExitTrap(text) {
		parts = append(parts, trapSh)
	}
	parts = append(parts, ". \"$0\"\n")
	sp.argv = []string{"/bin/sh", "-c", string(s.fill(parts...)), script}
	sp.env = s.env
}

// setsExitTrap says whether a script may set or show an EXIT trap. It errs
// towards yes: the wrapper that is then put around the builtin costs little, but
// cannot be had for nothing (it cannot reset a RETURN trap).
func setsExitTrap(script string) bool {
	i := strings.Index(script, "trap")
	if i < 0 {
		return false
	}
	return regexp.MustCompile(`(?i)\bexit\b|\bsigexit\b|\b0\b|\btrap\s*($|[|;&)>\n]|-p|-P)`).MatchString(script[i:])
}

// safeName keeps of a step's name what may stand in a file name.
func safeName(name string) string {
	b := []byte(name)
	if len(b) > 64 {
		b = b[:64]
	}
	for i, c := range b {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			b[i] = '_'
		}
	}
	return string(b)
}

func runDirError(err error) error {
	return &turnstone.Error{Op: "shell.execute", Kind: turnstone.Unavailable, Subject: "the agent's folder", Err: rootCause(err),
		Hint: "a step removed or filled what the agent keeps below /run"}
}

const (
	maxCapture = 1 << 20 // bytes; more than that cannot be passed to a program anyway
	maxPath    = 4095    // bytes; PATH_MAX without its NUL
)

// readCapture reads what a step's shell left. The file is a guest's: it may be
// anything, and of any size.
func readCapture(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxCapture {
		return nil, errCapture
	}
	data := make([]byte, st.Size)
	n := 0
	for n < len(data) {
		k, err := unix.Read(fd, data[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if k == 0 {
			break
		}
		n += k
	}
	return data[:n], nil
}
