package doctor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/driver/firecracker"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

// An fcScene is the state of Firecracker.
type fcScene struct {
	path, version string
	findErr       error // why its programs are unusable; nil: path and version are set
	err           error // why guests do not run; nil: they run
	restricted    error // what this version cannot do with a running guest; nil: no restriction
	jail          firecracker.Jail
}

// missing reports whether Firecracker is not installed.
func (s fcScene) missing() bool {
	var e *turnstone.Error
	return errors.As(s.findErr, &e) && e.Subject == "firecracker"
}

func (c *checker) lookAtFirecracker(ctx context.Context) (s fcScene) {
	o := firecracker.Options{Binary: c.opt.Firecracker, Jailer: c.opt.Jailer, Kernel: c.guest}
	if s.path, s.version, s.findErr = firecracker.Find(ctx, c.home, o); s.findErr != nil {
		return s
	}
	s.restricted = firecracker.Standstill(s.version)
	fc, err := firecracker.New(ctx, c.home, o)
	if s.err = err; err == nil {
		s.jail = fc.Jail()
	}
	return s
}

// releases is the address of Firecracker's releases.
const releases = "https://github.com/firecracker-microvm/firecracker/releases"

// getFirecracker tells where to get Firecracker.
const getFirecracker = "the release for x86_64 is at " + releases +
	", with checksums; put firecracker into PATH, or set TURN_FIRECRACKER"

// firecracker reports whether a guest runs under Firecracker.
func (c *checker) firecracker(s scene) Finding {
	f := Finding{Name: "firecracker", Status: StatusOK}
	found := fmt.Sprintf("%s (%s)", s.fc.version, s.fc.path)
	switch {
	case s.fc.findErr != nil:
		return c.noFirecracker(s)
	case s.guestErr != nil:
		f.Status, f.Detail = StatusWarn, found+" cannot be used: the guest kernel is not available"
	case s.fc.err == nil && s.fc.restricted != nil:
		f.Status, f.Detail = StatusWarn, found+": a guest runs under it, but "+
			unnamed(s.fc.restricted)
	case s.fc.err == nil && !s.fc.jail.Confined():
		return c.notJailed(found, s.fc.jail)
	case s.fc.err == nil:
		f.Detail = found + ": a guest runs under it, in a jail"
	case errors.Is(s.fc.err, firecracker.ErrUnproven):
		who, _ := s.firstTurn(driver.Firecracker, "KVM")
		f.Detail = found + ": no guest was started yet, " + who
		if s.fc.restricted != nil {
			f.Status, f.Detail = StatusWarn, f.Detail+"; "+unnamed(s.fc.restricted)
		}
	default:
		f.Status, f.Detail = StatusWarn, found+" cannot be used: "+brief.Line(s.fc.err.Error())
	}
	return f
}

// notJailed explains why Firecracker has no jail. Turns run without a jail, and machines are not
// kept.
func (c *checker) notJailed(found string, j firecracker.Jail) Finding {
	return Finding{Name: "firecracker", Status: StatusWarn, Fix: host.AllowUserNamespaces(),
		Detail: found + ": a guest runs under it without a jail, confined only by its system " +
			"call filters, and machines are neither kept nor resumed: " +
			brief.Line(j.Reason)}
}

// noFirecracker is not a problem because other substrates can replace it, unless the environment
// names a Firecracker that is missing or unusable.
func (c *checker) noFirecracker(s scene) Finding {
	err := s.fc.findErr
	f := Finding{Name: "firecracker", Status: StatusWarn,
		Detail: brief.Line(err.Error()) + "; " + turnstone.HintOf(err)}
	var jailer *firecracker.JailerError
	switch errors.As(err, &jailer); {
	case jailer != nil && c.opt.Jailer != "":
		return f.names("TURN_JAILER", c.opt.Jailer, err)
	case jailer != nil:
		f.Fix = installJailer(jailer.Release, filepath.Dir(jailer.Binary))
		return f
	case c.opt.Firecracker != "":
		return f.names("TURN_FIRECRACKER", c.opt.Firecracker, err)
	case !s.fc.missing(): // an old version
		return f
	case c.noKVM():
		return Finding{Name: "firecracker", Status: StatusOK,
			Detail: "not installed, and not useful without KVM"}
	}
	return Finding{Name: "firecracker", Status: StatusOK,
		Detail: "not installed, and not needed: " + getFirecracker}
}

// unnamed is err's text without its subject, which the finding already names.
func unnamed(err error) string {
	var e *turnstone.Error
	if errors.As(err, &e) && e.Err != nil {
		err = e.Err
	}
	return brief.Line(err.Error())
}

// names sets f's fix for a program that an environment variable names.
func (f Finding) names(variable, value string, err error) Finding {
	detail := brief.Line(err.Error())
	var e *turnstone.Error
	if errors.As(err, &e) && e.Subject == value {
		detail = unnamed(err)
	}
	f.Detail = fmt.Sprintf("%s=%s: %s", variable, value, detail)
	f.Fix = "unset " + variable
	return f
}

// released matches the version of a Firecracker release, as opposed to a custom build.
var released = lazyregexp.New(`^[0-9]+\.[0-9]+\.[0-9]+$`)

// installJailer returns a command that installs the jailer of this release in dir, verified against
// the release's checksum; empty if there is no such release.
func installJailer(release, dir string) string {
	if !released.MatchString(release) {
		return ""
	}
	const script = `v=v%s && d=$(mktemp -d) && cd "$d" && ` +
		`curl -fsSLO %s/download/$v/firecracker-$v-x86_64.tgz ` +
		`-O %[2]s/download/$v/firecracker-$v-x86_64.tgz.sha256.txt && ` +
		`sha256sum -c firecracker-$v-x86_64.tgz.sha256.txt && ` +
		`tar xf firecracker-$v-x86_64.tgz && ` +
		`install release-$v-x86_64/jailer-$v-x86_64 %s`
	return "(" + fmt.Sprintf(script, release, releases, quote(filepath.Join(dir, "jailer"))) + ")"
}
