package agent

import (
	_ "embed"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/guest/exports"
	"turnstone.dev/turnstone/internal/guest/process"
	"turnstone.dev/turnstone/internal/guest/scan"
)

const (
	bashPath   = "/bin/bash"
	stateFile  = "state"        // in RunDir: the state that a step's shell left
	commonFile = "capture.bash" // in the same directory: the common start of most bash steps
	maxCapture = 1 << 20        // bytes; a larger state cannot be passed to a program anyway
)

// Preludes of a step's script: the shell then writes its working directory and exported environment
// to a file when it exits. bash does so with builtins only, because a fork costs tens of
// milliseconds under emulation. The trap files keep the author's own EXIT trap working.
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

// fill inserts the run directory's name into a prelude. The agent chooses the name, which contains
// no quote.
func (s *shell) fill(parts ...string) []byte {
	return []byte(strings.ReplaceAll(strings.Join(parts, ""), "@RUN@", s.a.opt.RunDir))
}

// common returns the common start of most bash steps.
func (s *shell) common() []byte { return s.fill(captureBash, "\nunset BASH_ENV\n") }

func (s *shell) writePrelude() error {
	return os.WriteFile(filepath.Join(s.a.path(s.a.opt.RunDir), commonFile), s.common(), 0o644)
}

// bash prepares a bash step. BASH_ENV is sourced before the script, which so has the $0, line
// numbers and exit status of "bash script". own is the file that was made for this step alone, if
// there is one.
func (s *shell) bash(dir runDir, sp *process.Spec, script, text string,
	number int) (own string, err error) {
	prelude := commonFile
	user := process.LookupEnv(sp.Env, "BASH_ENV")
	traps := setsExitTrap(text)
	if user != "" || traps {
		parts := []string{captureBash}
		if traps {
			parts = append(parts, trapBash)
		}
		parts = append(parts, "\nunset BASH_ENV\n")
		body := s.fill(parts...)
		if user != "" {
			// The author's own BASH_ENV keeps its effect.
			q := "'" + strings.ReplaceAll(user, "'", `'\''`) + "'"
			body = append(body, "export BASH_ENV="+q+"\nif [ -r "+q+" ]; then . "+q+"; fi\n"...)
		}
		prelude = "capture-" + strconv.Itoa(number) + ".bash"
		if err := dir.write(prelude, body); err != nil {
			return "", err
		}
		own = prelude
	} else if !dir.has(prelude) { // a step removed it
		if err := dir.write(prelude, s.common()); err != nil {
			return "", err
		}
	}
	sp.Argv = []string{bashPath, script}
	sp.Env = process.MergeEnv(sp.Env,
		[]string{"BASH_ENV=" + filepath.Join(s.a.opt.RunDir, prelude)})
	return own, nil
}

// sh prepares a step for the system's sh, which has no BASH_ENV: a command line sources the script,
// with the script's path as $0.
func (s *shell) sh(sp *process.Spec, script, text string) {
	parts := []string{captureSh}
	if setsExitTrap(text) {
		parts = append(parts, trapSh)
	}
	parts = append(parts, ". \"$0\"\n")
	sp.Argv = []string{"/bin/sh", "-c", string(s.fill(parts...)), script}
}

// setsExitTrap reports whether a script may set or show an EXIT trap. When in doubt, it returns
// true: the wrapper around the builtin is then cheap, but has a side effect (it cannot reset a
// RETURN trap).
func setsExitTrap(script string) bool {
	i := strings.Index(script, "trap")
	if i < 0 {
		return false
	}
	ofExit := regexp.MustCompile(`(?i)\bexit\b|\bsigexit\b|\b0\b|\btrap\s*($|[|;&)>\n]|-p|-P)`)
	return ofExit.MatchString(script[i:])
}

// readCapture reads the state that a step's shell left. The file is untrusted: it may have any
// content, type and size.
func (d runDir) readCapture() ([]byte, error) {
	fd, err := unix.Openat(d.Dir, stateFile,
		unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxCapture {
		return nil, exports.ErrMalformed
	}
	data := make([]byte, st.Size)
	n, err := scan.ReadAt(fd, data, 0)
	return data[:n], err
}
