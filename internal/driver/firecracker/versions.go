package firecracker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

// A release is a Firecracker's version as numbers.
type release struct{ major, minor, patch int }

func (r release) atLeast(major, minor int) bool {
	return r.major > major || r.major == major && r.minor >= minor
}

func (r release) String() string { return fmt.Sprintf("%d.%d.%d", r.major, r.minor, r.patch) }

// losesVsock reports whether a guest of this release cannot be reached by its vsock after a pause
// and a resume. 1.16.0 blocked the host's way to the guest until the guest acknowledges an event
// ("gate RX delivery on TRANSPORT_RESET ack to fix snapshot race"), and also blocks it for a resume
// without a snapshot, which has no such event. 1.17 does not ("do not arm the TRANSPORT_RESET RX
// gate on bare resume"). No release of 1.16 has that fix so far.
func (r release) losesVsock() bool { return r.major == 1 && r.minor == 16 && r.patch <= 1 }

// The releases in messages, here and in docs/firecracker.md.
const (
	minMajor, minMinor = 1, 12 // the oldest supported release
	wholeReleases      = "1.12 to 1.15, 1.17 and newer"
	losingReleases     = "1.16.0, 1.16.1" // losesVsock
)

// Standstill returns the error that is Abilities.Live for the version that Find returns, before any
// guest was started.
func Standstill(version string) error {
	r, err := parseRelease(version)
	if err != nil {
		return err
	}
	return r.standstill()
}

// standstill returns an error of kind Unavailable, which names the working versions, if machines of
// r may not be paused and cloned while running; nil otherwise.
func (r release) standstill() error {
	if !r.losesVsock() {
		return nil
	}
	return turnstone.Errorf("firecracker.pause", turnstone.KindUnavailable,
		"Firecracker "+r.String(),
		"it loses the connection to a guest that is paused and resumed, so its "+
			"running sandboxes are neither paused nor cloned; "+
			"Firecracker "+wholeReleases+" can do that").
		WithHint("use Firecracker " + wholeReleases + ", or another substrate")
}

var (
	releaseText = lazyregexp.New(`^Firecracker v(\d{1,4})\.(\d{1,4})\.(\d{1,4})`)
	jailerText  = lazyregexp.New(`^Jailer v(\S{1,60})$`)
)

// parseRelease parses the first output of `firecracker --version`.
func parseRelease(version string) (release, error) {
	m := releaseText.FindStringSubmatch(version)
	if m == nil {
		return release{}, fmt.Errorf("it calls itself %.80q, which is not a version of Firecracker",
			version)
	}
	major, err1 := strconv.Atoi(m[1])
	minor, err2 := strconv.Atoi(m[2])
	patch, err3 := strconv.Atoi(m[3])
	return release{major, minor, patch}, errors.Join(err1, err2, err3)
}

// A JailerError means that no jailer matches Firecracker.
type JailerError struct {
	// path, and the release that it reports; empty: no jailer, or no release
	Jailer, JailerRelease string
	Binary, Release       string // the same for Firecracker
	Err                   error  // the cause, unless the releases differ
}

// Error implements error.
func (e *JailerError) Error() string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return fmt.Sprintf("it is the jailer of Firecracker %s, and %s is Firecracker %s",
		e.JailerRelease, e.Binary, e.Release)
}

// Unwrap returns the cause.
func (e *JailerError) Unwrap() error { return e.Err }

// releaseText returns Firecracker's text of its release.
func (s *Substrate) releaseText() string {
	return console.Clip(strings.TrimPrefix(s.version, "Firecracker v"), 60)
}

// checkJailer checks that the jailer has Firecracker's release, because the interface between the
// two is not stable. Errors are *JailerError.
func (s *Substrate) checkJailer(ctx context.Context) error {
	e := &JailerError{Jailer: s.jailer, Binary: s.binary, Release: s.releaseText()}
	p, err := host.Versioned(ctx, s.home, "firecracker-jailer-version.json", s.jailer)
	if e.Err = err; err != nil {
		return e
	}
	m := jailerText.FindStringSubmatch(p.Version)
	if m == nil {
		e.Err = fmt.Errorf("it calls itself %.80q, which is not a version of Firecracker's jailer",
			p.Version)
		return e
	}
	if e.JailerRelease = m[1]; m[1] != strings.TrimPrefix(s.version, "Firecracker v") {
		return e
	}
	return nil
}

func (s *Substrate) readVersion(ctx context.Context) (string, error) {
	p, err := host.Versioned(ctx, s.home, "firecracker-version.json", s.binary)
	s.digest = p.Binary.Digest
	return p.Version, err
}
