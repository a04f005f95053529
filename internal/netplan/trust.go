package netplan

import (
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/hostca"
	"turnstone.dev/turnstone/internal/network/proxy"
	"turnstone.dev/turnstone/internal/statedir"
)

// needsCA reports whether the guest must trust one of Turnstone's certificate authorities.
func (l *Link) needsCA() bool {
	return l.rules.Spec.Open || l.player != nil && l.player.Opened() ||
		slices.ContainsFunc(l.rules.Spec.Headers,
			func(h turnstone.SecretHeader) bool { return h.Scheme == "https" })
}

// caVariables point programs to hostca.GuestPath: OpenSSL's and Go's, curl, Python's requests,
// Node, git.
var caVariables = []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE",
	"NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO"}

// hostCAFile caches the host's additional certificate authorities.
const hostCAFile = "host-ca.json"

// Authorities returns the certificates that the host trusts in addition to the public ones. They
// are cached in the state directory dir.
func Authorities(dir *statedir.Dir) hostca.Host {
	h := hostca.Host{}
	// without the cache each start looks for them
	if cache, err := dir.MkdirAll("cache"); err == nil {
		h.Cache = cache + "/" + hostCAFile
	}
	return h
}

// Trust decides which certificates the guest trusts in addition to its image's, creates the link's
// own authority if it needs one, and returns the variables that point programs to all certificates.
// env is the sandbox's environment without these variables.
func (l *Link) Trust(host hostca.Host, env []string) ([]string, error) {
	if !l.rules.Spec.NoHostCA && l.player == nil { // a replay reaches no server
		l.HostCA = host.Own()
	}
	if !l.needsCA() && len(l.HostCA) == 0 {
		return nil, nil
	}
	l.outer, l.Bundle = map[string]string{}, hostca.GuestBundle
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if slices.Contains(caVariables, name) && value != hostca.GuestPath {
			l.outer[name] = value
		}
	}
	if !l.needsCA() {
		return l.variables(l.outer), nil // a user who names certificates wants exactly these
	}
	var err error
	var clocks []time.Time
	if !l.Clock.IsZero() {
		clocks = []time.Time{l.Clock}
	}
	if l.CA, err = proxy.NewCA(clocks...); err != nil {
		return nil, err
	}
	if b := l.outer["SSL_CERT_FILE"]; b != "" {
		l.Bundle = b
	}
	return l.variables(nil), nil
}

// variables returns the variables that name hostca.GuestPath, without those in but.
func (l *Link) variables(but map[string]string) (env []string) {
	for _, name := range caVariables {
		if _, ok := but[name]; !ok {
			env = append(env, name+"="+hostca.GuestPath)
		}
	}
	return env
}

// GiveWay removes the variables that name the host's authorities from env if image, a template's
// environment, names its own certificates.
func (l *Link) GiveWay(env, image []string) []string {
	if l == nil || l.CA != nil || len(l.HostCA) == 0 {
		return env
	}
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, value, _ := strings.Cut(kv, "=")
		return value == hostca.GuestPath && slices.Contains(caVariables, name) &&
			slices.ContainsFunc(image,
				func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	})
}

// Inherited returns env for later turns, without the variables that are useful in this sandbox
// only.
func (l *Link) Inherited(env []string) []string {
	var kept []string
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if value != hostca.GuestPath || !slices.Contains(caVariables, name) {
			kept = append(kept, kv)
		} else if l == nil {
			continue
		} else if was, ok := l.outer[name]; ok {
			kept = append(kept, name+"="+was)
		}
	}
	return kept
}

// Opens reports whether the guest trusts the link's own authority.
func (l *Link) Opens() bool { return l != nil && l.CA != nil }
