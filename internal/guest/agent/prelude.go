package agent

import (
	_ "embed"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/guest/process"
)

const (
	bashPath   = "/bin/bash"
	stateFile  = "state"        // in RunDir: what a step's shell left
	commonFile = "capture.bash" // there too: what most bash steps begin with
	maxCapture = 1 << 20        // bytes; more than that cannot be passed to a program anyway
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

// fill puts the run directory's name into a prelude. It is the agent's own, and
// holds no quote.
func (s *shell) fill(parts ...string) []byte {
	return []byte(strings.ReplaceAll(strings.Join(parts, ""), "@RUN@", s.a.opt.RunDir))
}

// common is what most bash steps begin with.
func (s *shell) common() []byte { return s.fill(captureBash, "\nunset BASH_ENV\n") }

func (s *shell) writePrelude() error {
	return os.WriteFile(filepath.Join(s.a.path(s.a.opt.RunDir), commonFile), s.common(), 0o644)
}

// bash prepares a bash step. BASH_ENV is sourced before the script, which so has
// the $0, line numbers and exit status of "bash script". own is the file that was
// made for this step alone, if one was.
func (s *shell) bash(dir runDir, sp *process.Spec, script, text string, number int) (own string, err error) {
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
			// Its own BASH_ENV means as much to the author's script as before.
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
	sp.Env = process.MergeEnv(sp.Env, []string{"BASH_ENV=" + filepath.Join(s.a.opt.RunDir, prelude)})
	return own, nil
}

// sh prepares a step for the system's sh, which has no BASH_ENV: a command line
// sources the script, with the script's path as $0.
func (s *shell) sh(sp *process.Spec, script, text string) {
	parts := []string{captureSh}
	if setsExitTrap(text) {
		parts = append(parts, trapSh)
	}
	parts = append(parts, ". \"$0\"\n")
	sp.Argv = []string{"/bin/sh", "-c", string(s.fill(parts...)), script}
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

// readCapture reads what a step's shell left. The file is a guest's: it may be
// anything, and of any size.
func (d runDir) readCapture() ([]byte, error) {
	fd, err := unix.Openat(d.Dir, stateFile, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
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
