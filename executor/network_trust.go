package executor

import (
	"slices"
	"strings"

	"turnstone.dev/turnstone/internal/hostca"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/network/proxy"
	"turnstone.dev/turnstone/internal/sandbox"
)

// needsCA tells whether the guest has to trust an authority of ours.
func (n *networkPlan) needsCA() bool {
	return n.spec.Open || n.player != nil && n.playerOpens() ||
		slices.ContainsFunc(n.spec.Headers, func(h network.SecretHeader) bool { return h.Scheme == "https" })
}

// caVariables tell programs of hostca.GuestPath: OpenSSL's and Go's, curl, Python's requests, Node, git.
var caVariables = []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO"}

// hostCAFile remembers which authorities the host has of its own.
const hostCAFile = "host-ca.json"

// hostAuthorities are the certificates that the host trusts beyond the public ones.
func (x *Host) hostAuthorities() hostca.Host {
	h := hostca.Host{}
	if dir, err := x.home.MkdirAll("cache"); err == nil { // else each start looks for them
		h.Cache = dir + "/" + hostCAFile
	}
	return h
}

// trusted decides what the guest of n is to trust beside its image's certificates, and returns
// the variables with which programs find it. env is what the sandbox's would be without.
func (x *Host) trusted(n *networkPlan, env []string) ([]string, error) {
	if !n.spec.NoHostCA && n.player == nil { // a replay reaches nobody
		n.hostCA = x.hostAuthorities().Own()
	}
	return n.trust(env)
}

// trust makes the sandbox's own authority, where one is needed, and returns the variables.
func (n *networkPlan) trust(env []string) ([]string, error) {
	if !n.needsCA() && len(n.hostCA) == 0 {
		return nil, nil
	}
	n.outer, n.bundle = map[string]string{}, hostca.GuestBundle
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if slices.Contains(caVariables, name) && value != hostca.GuestPath {
			n.outer[name] = value
		}
	}
	if !n.needsCA() {
		return n.variables(n.outer), nil // who names certificates of its own means them
	}
	var err error
	if n.ca, err = proxy.NewCA(); err != nil {
		return nil, err
	}
	if b := n.outer["SSL_CERT_FILE"]; b != "" {
		n.bundle = b
	}
	return n.variables(nil), nil
}

// variables are those that name hostca.GuestPath, without those in but.
func (n *networkPlan) variables(but map[string]string) (env []string) {
	for _, name := range caVariables {
		if _, ok := but[name]; !ok {
			env = append(env, name+"="+hostca.GuestPath)
		}
	}
	return env
}

// giveWay takes out of env the variables that name the host's authorities where image, a
// template's environment, names certificates of its own.
func (n *networkPlan) giveWay(env, image []string) []string {
	if n.ca != nil || len(n.hostCA) == 0 {
		return env
	}
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, value, _ := strings.Cut(kv, "=")
		return value == hostca.GuestPath && slices.Contains(caVariables, name) &&
			slices.ContainsFunc(image, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	})
}

// inherited is env as later turns get it: without what is of use in this sandbox only.
func (n *networkPlan) inherited(env []string) []string {
	var kept []string
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if value != hostca.GuestPath || !slices.Contains(caVariables, name) {
			kept = append(kept, kv)
		} else if was, ok := n.outer[name]; ok {
			kept = append(kept, name+"="+was)
		}
	}
	return kept
}

// trusts is what the guest trusts beside its image's certificates.
func (n *networkPlan) trusts() sandbox.Trust {
	return sandbox.Trust{CA: n.ca, Host: n.hostCA, Bundle: n.bundle}
}
