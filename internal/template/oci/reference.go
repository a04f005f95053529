// Package oci pulls container images (https://github.com/opencontainers/image-spec) from registries
// (https://github.com/opencontainers/distribution-spec) and creates one root image from their
// layers. A registry, its responses and the content of layers are untrusted: they are bounded,
// compared with their digests, and assembled in memory before anything is written; they cannot name
// a file of the host.
package oci

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

// maxReference bounds a reference, in bytes. It exceeds the length that a registry must support.
const maxReference = 512

// The names of repositories in the distribution specification, and hosts with a port.
var (
	nameRule = lazyregexp.New(
		`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*$`)
	hostRule = lazyregexp.New(
		`^(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?$`)
)

// A Reference names an image in a registry, by a tag, a digest or both. The zero value names none.
type Reference struct {
	repo   name.Repository
	tag    string           // empty if only a digest was given
	digest turnstone.Digest // empty if only a tag was given
}

// LooksLikeReference reports whether s can only be a reference to an image of a registry, and not
// the name of a template: it contains a ':', a '/' or a '@'.
func LooksLikeReference(s string) bool { return strings.ContainsAny(s, ":/@") }

// ParseReference reads a reference as docker writes it: "python:3.12", "ghcr.io/org/x@sha256:…",
// "localhost:5000/x:tag", "x:tag@sha256:…". The default registry is docker.io, and without a digest
// the default tag is "latest". Errors are *turnstone.Error of kind Invalid.
func ParseReference(s string) (Reference, error) {
	refuse := func(err error) (Reference, error) {
		return Reference{}, turnstone.NewError("oci.reference", turnstone.KindInvalid,
			fmt.Sprintf("image %.200q", s),
			err).WithHint("write REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:DIGEST, in lower case")
	}
	if len(s) > maxReference {
		return refuse(fmt.Errorf("a reference has at most %d bytes", maxReference))
	}
	var r Reference
	base, digest, pinned := strings.Cut(s, "@")
	if pinned {
		d, err := turnstone.ParseDigest(digest)
		if err != nil {
			return refuse(errors.New("the part after the @ is not a digest sha256:…"))
		}
		r.digest = d
	}
	t, err := name.NewTag(base, name.WeakValidation)
	if err != nil {
		return refuse(errors.New("is not a reference to an image"))
	}
	// One form for each repository: "python" and "library/python" are the same.
	r.repo, err = name.NewRepository(t.RegistryStr()+"/"+t.RepositoryStr(), name.WeakValidation)
	if err != nil || !nameRule.MatchString(r.repo.RepositoryStr()) ||
		!hostRule.MatchString(r.repo.RegistryStr()) {
		return refuse(errors.New("is not a reference to an image"))
	}
	// The library adds "latest", which is meaningless with a digest.
	if rest := base[strings.LastIndexByte(base, '/')+1:]; strings.ContainsRune(rest,
		':') || !pinned {
		r.tag = t.TagStr()
	}
	return r, nil
}

// String returns the reference in its usual short form, without defaults.
func (r Reference) String() string {
	s := r.Repository()
	if r.tag != "" {
		s += ":" + r.tag
	}
	if r.digest != "" {
		s += "@" + string(r.digest)
	}
	return s
}

// Repository returns the reference in its usual short form, without tag and digest.
func (r Reference) Repository() string {
	if r.repo.RegistryStr() == name.DefaultRegistry {
		return strings.TrimPrefix(r.repo.RepositoryStr(), "library/")
	}
	return r.repo.Name()
}

// Registry returns the host of the image's registry, with its port if the reference names one.
func (r Reference) Registry() string { return r.repo.RegistryStr() }

// Closed returns the reason why the registry's name cannot be on the Internet; "" if it may be.
func (r Reference) Closed() string { return closedHost(hostname(r.repo.RegistryStr())) }

// Digest returns the digest that pins the reference; empty if there is only a tag.
func (r Reference) Digest() turnstone.Digest { return r.digest }

// Tagged reports whether the reference has a tag, even if a digest makes the tag informational.
func (r Reference) Tagged() bool { return r.tag != "" }

// WithDigest returns the reference pinned to d. Its tag stays, as information for users.
func (r Reference) WithDigest(d turnstone.Digest) Reference {
	r.digest = d
	return r
}

// asked returns the identifier that is requested from the registry: the digest, if there is one.
func (r Reference) asked() name.Reference {
	if r.digest != "" {
		return r.repo.Digest(string(r.digest))
	}
	return r.repo.Tag(r.tag)
}

// loopback reports whether the registry's name is on this machine. Only such a registry may be used
// without TLS.
func (r Reference) loopback() bool { return loopbackHost(hostname(r.repo.RegistryStr())) }

func loopbackHost(host string) bool {
	host = strings.ToLower(host)
	if host == "localhost" || strings.HasSuffix(host, ".localhost") { // RFC 6761, 6.3
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// hostname returns a host without its port and brackets.
func hostname(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return strings.Trim(hostport, "[]")
}
