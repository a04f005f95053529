// Package debian fetches Debian packages as a tar stream, through the program mmdebstrap. It needs
// no root: an ordinary user gets a user namespace. apt has checked the stream's packages against
// Debian's archive keys.
package debian

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/subprocess"
)

// Default addresses of packages, unless Mirrors names others.
const (
	defaultMirror         = "http://deb.debian.org/debian"
	defaultSecurityMirror = "http://deb.debian.org/debian-security"
)

// keyring contains the keys with which Debian signs its archive. The image's sources.list names it
// too, at the path of the package debian-archive-keyring, so that images do not depend on the host.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// Epoch is the time of generated files, and the latest time of any file in an image:
// 2026-01-01T00:00:00Z. It is the SOURCE_DATE_EPOCH of every run
// (https://reproducible-builds.org/specs/source-date-epoch/).
const Epoch = 1767225600

// A Request names the packages to fetch.
type Request struct {
	Suite   string   // such as "bookworm"
	Variant string   // of mmdebstrap: "extract" only unpacks, "minbase" creates a working root
	Include []string // packages
	// Proxy is the address of an HTTP proxy for this run; empty: the host's, if it has one.
	Proxy string
	// Slim leaves out manual pages, translations and documentation, except copyrights.
	Slim bool
	// Mirrors are the addresses of packages.
	Mirrors Mirrors
	Log     io.Writer // gets all output of mmdebstrap and apt; may be nil
	// Progress gets a short description of each stage; may be nil.
	Progress func(string)
}

// Fetch runs mmdebstrap for req and passes its tar stream to consume, which must read to the end or
// return an error. When ctx ends, or consume fails, mmdebstrap is stopped and removes its temporary
// files in $TMPDIR. Errors are *turnstone.Error, of kind Unavailable (a program or the network is
// missing), Invalid (no such package), Exhausted (disk full) or Integrity (bad signatures).
func Fetch(ctx context.Context, req Request, consume func(io.Reader) error) error {
	const op = "debian.fetch"
	mode, err := check()
	if err != nil {
		return err
	}
	if err := req.Mirrors.check(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return canceled(op, err)
	}
	out, in, err := os.Pipe()
	if err != nil {
		return turnstone.NewError(op, turnstone.KindUnavailable, "", err)
	}
	defer out.Close()
	log := newTranscript(req.Log, req.Progress)
	wait, stop, err := start(arguments(mode, req), environment(mode, req.Proxy), in, log)
	_ = in.Close() // the child has its own copy
	if err != nil {
		return turnstone.NewError(op, turnstone.KindUnavailable, "mmdebstrap", err).
			WithHint(installHint)
	}
	unwatch := context.AfterFunc(ctx, stop)
	defer unwatch()

	stream := &endReader{r: out}
	consumeErr := consume(stream)
	if consumeErr == nil {
		// tar pads its last record; mmdebstrap must not be left writing to a closed pipe.
		_, consumeErr = io.Copy(io.Discard, stream)
	}
	if consumeErr != nil && !stream.ended {
		stop()
	}
	_ = out.Close()
	runErr := wait()
	log.flush()
	switch {
	case ctx.Err() != nil:
		return canceled(op, ctx.Err())
	case runErr != nil && stream.ended:
		// When mmdebstrap fails, its stream is truncated and consume may have failed too: the cause
		// comes first.
		return explain(op, req, runErr, log.tail())
	default:
		return consumeErr
	}
}

// endReader records that its reader has reached the end.
type endReader struct {
	r     io.Reader
	ended bool
}

func (e *endReader) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	e.ended = e.ended || err == io.EOF
	return n, err
}

// check returns mmdebstrap's mode for this user, or the missing requirement.
func check() (mode string, err error) {
	missing := func(what, hint string) error {
		return turnstone.Errorf("debian.fetch", turnstone.KindUnavailable, what, "is not there").
			WithHint(hint)
	}
	if runtime.GOARCH != "amd64" {
		return "", turnstone.Errorf("debian.fetch", turnstone.KindUnavailable, runtime.GOARCH,
			"this processor has no guest kernel and templates yet").
			WithHint("use an x86-64 machine")
	}
	if _, err := lookPath("mmdebstrap"); err != nil {
		return "", missing("the program mmdebstrap", installHint)
	}
	if _, err := os.Stat(keyring); err != nil {
		return "", missing(keyring,
			"install Debian's archive keys: sudo apt install debian-archive-keyring")
	}
	if os.Geteuid() == 0 {
		return "root", nil
	}
	if _, err := lookPath("newuidmap"); err != nil {
		return "", missing("the program newuidmap", installHint)
	}
	if err := checkSubordinateIDs("/etc/subuid", "/etc/subgid"); err != nil {
		return "", err
	}
	return "unshare", nil
}

const installHint = "install the programs that build templates: sudo apt install mmdebstrap " +
	"uidmap debian-archive-keyring"

// arguments returns the command line of mmdebstrap, without the program itself.
func arguments(mode string, req Request) []string {
	args := []string{
		"--mode=" + mode,
		"--variant=" + req.Variant,
		"--format=tar",
		"--architectures=amd64",
		// Sources names the keyring, and an interrupted search leaves files behind
		"--skip=check/signed-by",
		`--aptopt=Acquire::Retries "3"`,
		`--aptopt=Acquire::Languages "none"`,
		`--aptopt=APT::Install-Recommends "false"`,
	}
	if req.Slim {
		for _, rule := range []string{
			"path-exclude=/usr/share/man/*", "path-exclude=/usr/share/info/*",
			"path-exclude=/usr/share/locale/*",
			"path-exclude=/usr/share/doc/*", "path-include=/usr/share/doc/*/copyright",
		} {
			args = append(args, "--dpkgopt="+rule)
		}
	}
	if len(req.Include) > 0 {
		args = append(args, "--include="+strings.Join(req.Include, ","))
	}
	args = append(args, req.Suite, "-")
	return append(args, req.Mirrors.Sources(req.Suite)...)
}

// Mirrors are the addresses of Debian's packages; an empty address is the default.
type Mirrors struct{ Main, Security string }

// check rejects mirrors that would not remain a single word of sources.list.
func (m Mirrors) check() error {
	for name, v := range map[string]string{"TURN_DEBIAN_MIRROR": m.Main,
		"TURN_DEBIAN_SECURITY_MIRROR": m.Security} {
		if strings.ContainsFunc(v, func(r rune) bool { return r <= ' ' || r == '[' || r == ']' }) {
			return turnstone.Errorf("debian.fetch", turnstone.KindInvalid, name,
				"%q is not the address of a mirror", v).
				WithHint("set it to an address such as " + defaultMirror)
		}
	}
	return nil
}

// Sources returns the lines of sources.list for a suite of Debian: the main
// archive, its updates and its security fixes.
func (m Mirrors) Sources(suite string) []string {
	line := func(url, suite string) string {
		return fmt.Sprintf("deb [signed-by=%s] %s %s main", keyring, url, suite)
	}
	at := m.Addresses()
	return []string{line(at[0], suite), line(at[0], suite+"-updates"),
		line(at[1], suite+"-security")}
}

// Addresses returns the addresses of the main archive and of its security fixes.
func (m Mirrors) Addresses() []string {
	return []string{
		cmp.Or(strings.TrimRight(m.Main, "/"), defaultMirror),
		cmp.Or(strings.TrimRight(m.Security, "/"), defaultSecurityMirror),
	}
}

// searchPath adds the system's own folders, which an ordinary user's PATH often lacks: mmdebstrap
// calls chroot and other programs from them.
func searchPath() string {
	return strings.TrimPrefix(os.Getenv("PATH")+":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin",
		":")
}

func lookPath(program string) (string, error) {
	for _, dir := range strings.Split(searchPath(), ":") {
		if !strings.HasPrefix(dir, "/") {
			continue
		}
		if path, err := exec.LookPath(dir + "/" + program); err == nil {
			return path, nil
		}
	}
	return "", exec.ErrNotFound
}

// environment passes on only variables for paths and network access, so that a user's settings do
// not leak into images.
func environment(mode, proxy string) []string {
	env := []string{"PATH=" + searchPath(), "LC_ALL=C.UTF-8",
		fmt.Sprintf("SOURCE_DATE_EPOCH=%d", Epoch)}
	for _, name := range []string{"HOME", "USER", "LOGNAME", "TMPDIR",
		"http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy"} {
		if v, ok := os.LookupEnv(name); ok &&
			!(name == "TMPDIR" && mode == "unshare" && !reachable(v)) {
			env = append(env, name+"="+v)
		}
	}
	if proxy != "" {
		env = slices.DeleteFunc(env, func(kv string) bool {
			return strings.HasPrefix(kv, "http_proxy=") || strings.HasPrefix(kv, "no_proxy=")
		})
		env = append(env, "http_proxy="+proxy)
	}
	return env
}

// reachable reports whether users other than dir's owner can enter dir, as the namespace's root
// must, because that root is a subordinate ID. If TMPDIR is private to its user, as with
// libpam-tmpdir, /tmp is used instead.
func reachable(dir string) bool {
	for dir = filepath.Clean(dir); ; dir = filepath.Dir(dir) {
		fi, err := os.Stat(dir)
		if err != nil || fi.Mode()&0o001 == 0 {
			return false
		}
		if dir == "/" || dir == "." {
			return dir == "/"
		}
	}
}

// stopGrace bounds the time that mmdebstrap may take to remove its files after the signal to end. A
// busy machine needs more than 20 seconds for them, and what stays belongs to subordinate users, whose
// files an ordinary user cannot remove.
const stopGrace = 2 * time.Minute

// start starts mmdebstrap. wait returns when it has ended; stop signals it to end, and kills it if
// it does not. Both may be called many times.
func start(args, env []string, stdout *os.File,
	log *transcript) (wait func() error, stop func(), err error) {
	program, err := lookPath("mmdebstrap")
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(program, args...)
	cmd.Env = env
	cmd.Dir = "/" // the namespace's user may have no access to the caller's directory
	cmd.Stdout = stdout
	cmd.Stderr = log
	// A separate group: mmdebstrap signals its whole group, which must not be the caller's, and the
	// terminal's Ctrl-C reaches it only through the caller.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	done := make(chan struct{})
	var runErr error
	ended := func(err error) { runErr = err; close(done) }
	if err := subprocess.Start(cmd, subprocess.Options{Ended: ended}); err != nil {
		return nil, nil, err
	}
	var once sync.Once
	stop = func() {
		once.Do(func() {
			signal := func(s syscall.Signal) {
				select {
				case <-done: // another process may already have the number
				default:
					_ = syscall.Kill(-cmd.Process.Pid, s)
				}
			}
			signal(syscall.SIGTERM)
			go func() {
				select {
				case <-done:
				case <-time.After(stopGrace):
					signal(syscall.SIGKILL)
				}
			}()
		})
	}
	return func() error { <-done; return runErr }, stop, nil
}
