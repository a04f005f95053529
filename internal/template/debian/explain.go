package debian

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"regexp"
	"strings"
	"sync"

	"turnstone.dev/turnstone"
)

// tailSize is the number of bytes of mmdebstrap's output that are kept to explain a failure.
const tailSize = 32 << 10

// A transcript receives mmdebstrap's output: it writes all of it to a log, keeps the end to explain
// a failure, and reports its headlines as progress.
type transcript struct {
	mu       sync.Mutex
	log      io.Writer
	progress func(string)
	last     []byte // the last tailSize bytes
	line     []byte // the incomplete line
}

func newTranscript(log io.Writer, progress func(string)) *transcript {
	return &transcript{log: log, progress: progress}
}

// Write never fails: a full disk below the log must not end the build.
func (t *transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.log != nil {
		_, _ = t.log.Write(p)
	}
	t.last = append(t.last, p...)
	if over := len(t.last) - tailSize; over > 0 {
		t.last = append(t.last[:0], t.last[over:]...)
	}
	for rest := p; ; {
		i := bytes.IndexByte(rest, '\n')
		if i < 0 {
			t.line = append(t.line, rest[:min(len(rest), 4096)]...)
			t.line = t.line[:min(len(t.line), 4096)]
			return len(p), nil
		}
		t.headline(append(t.line, rest[:i]...))
		t.line, rest = t.line[:0], rest[i+1:]
	}
}

// headlines are the lines of mmdebstrap that mark a new stage.
var headlines = map[string]string{
	"running apt-get update":           "reading Debian's package lists",
	"downloading packages with apt":    "downloading packages",
	"extracting archives":              "unpacking packages",
	"installing essential packages":    "installing the essential packages",
	"installing remaining packages":    "installing the other packages",
	"cleaning package lists and apt c": "cleaning up",
	"creating tarball":                 "writing the image",
}

func (t *transcript) headline(line []byte) {
	if t.progress == nil {
		return
	}
	text, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "I: ")
	if !ok {
		return
	}
	for prefix, words := range headlines {
		if strings.HasPrefix(text, prefix) {
			t.progress(words)
		}
	}
}

func (t *transcript) flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.headline(t.line)
	t.line = nil
}

func (t *transcript) tail() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.last)
}

// A symptom is a phrase in the output of apt or mmdebstrap, and its meaning. The first match
// applies.
type symptom struct {
	phrase *regexp.Regexp
	kind   turnstone.Kind
	hint   string
}

func symptoms() []symptom {
	return []symptom{
		{regexp.MustCompile(`No space left on device|You don't have enough free space`),
			turnstone.KindExhausted,
			"free some disk space; packages are unpacked in " + tempDir() +
				", which TMPDIR moves elsewhere"},
		{regexp.MustCompile(
			`Unable to locate package \S+|Package '?\S+'? has no installation candidate|Couldn't ` +
				`find any package by \S+ '[^']*'`), turnstone.KindInvalid,
			"check the name at https://packages.debian.org, and that it is in section main"},
		{regexp.MustCompile(
			`Temporary failure resolving[^\n]*|Could not resolve[^\n]*|Could not ` +
				`connect[^\n]*|Cannot initiate the connection[^\n]*|Unable to ` +
				`connect[^\n]*|Connection (?:timed out|refused|failed)[^\n]*|Network is ` +
				`unreachable`), turnstone.KindUnavailable,
			"check the network; behind a proxy set http_proxy, and TURN_DEBIAN_MIRROR names " +
				"another mirror"},
		{regexp.MustCompile(
			`NO_PUBKEY \S+|BADSIG[^\n]*|EXPKEYSIG[^\n]*|The repository '[^']*' is not ` +
				`signed|Hash Sum mismatch`), turnstone.KindIntegrity,
			"update Debian's archive keys (sudo apt install debian-archive-keyring), or try " +
				"another TURN_DEBIAN_MIRROR"},
		{regexp.MustCompile(`does not have a Release file|Failed to fetch[^\n]*|404 +Not Found`),
			turnstone.KindUnavailable,
			"try again later, or name another mirror with TURN_DEBIAN_MIRROR"},
		{regexp.MustCompile(`new[ug]idmap: (?:write to|open of) [ug]id_map failed[^\n]*`),
			turnstone.KindUnavailable,
			"let the setuid program newuidmap have its rights: systemd's NoNewPrivileges= and all " +
				"filters of system calls in a unit, and no-new-privileges of a container, take them"},
		{regexp.MustCompile(
			`failed to unshare[^\n]*|newuidmap[^\n]*|unshare[^\n]*Operation not permitted`),
			turnstone.KindUnavailable,
			"this machine forbids user namespaces: see sysctl kernel.unprivileged_userns_clone " +
				"and kernel.apparmor_restrict_unprivileged_userns, or build the template as root"},
		{regexp.MustCompile(`unmet dependencies|held broken packages`), turnstone.KindInvalid,
			"remove one of the packages from the spec: they conflict"},
	}
}

// explain turns mmdebstrap's failure into an error with a hint.
func explain(op turnstone.Op, req Request, runErr error, tail string) error {
	for _, s := range symptoms() {
		if found := s.phrase.FindString(tail); found != "" {
			return turnstone.Errorf(op, s.kind, "Debian "+req.Suite,
				"%s", strings.TrimSpace(found)).WithHint(s.hint)
		}
	}
	return turnstone.Errorf(op, turnstone.KindUnavailable, "mmdebstrap",
		"%w: %s", runErr, lastError(tail))
}

// lastError returns the last line that apt or mmdebstrap marked as an error.
func lastError(tail string) string {
	lines := strings.Split(strings.TrimSpace(tail), "\n")
	best := lines[len(lines)-1]
	for _, l := range lines {
		if strings.HasPrefix(l, "E: ") && !strings.Contains(l, "mmdebstrap failed to run") {
			best = strings.TrimPrefix(l, "E: ")
		}
	}
	return best
}

func tempDir() string { return os.TempDir() }

func canceled(op turnstone.Op, err error) error {
	kind := turnstone.KindCanceled
	if errors.Is(err, context.DeadlineExceeded) {
		kind = turnstone.KindTimeout
	}
	return turnstone.NewError(op, kind, "", err)
}

// checkSubordinateIDs reports a user without subordinate IDs, which mmdebstrap needs to own an
// image's files (subuid(5), subgid(5)).
func checkSubordinateIDs(files ...string) error {
	me, err := user.Current()
	if err != nil {
		return nil // mmdebstrap reports it
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err == nil && hasRange(string(b), me.Username) {
			continue
		}
		return turnstone.Errorf("debian.fetch", turnstone.KindUnavailable, file,
			"user %s has no range of subordinate IDs there", me.Username).
			WithHint(fmt.Sprintf(
				"give the user one: sudo usermod --add-subuids 100000-165535 --add-subgids "+
					"100000-165535 %s", me.Username))
	}
	return nil
}

// hasRange reports whether a subuid(5) file gives name a range. mmdebstrap looks names up as text
// and does not support numbers there.
func hasRange(content, name string) bool {
	for line := range strings.Lines(content) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) == 3 && fields[0] == name {
			return true
		}
	}
	return false
}
