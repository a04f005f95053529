// Package oci pulls container images (https://github.com/opencontainers/image-spec)
// from registries (https://github.com/opencontainers/distribution-spec) and makes one
// root image of their layers. A registry, what it answers and what is in a layer are
// taken to be hostile: all of it is bounded, compared with its digests, and put into
// an image in memory before any of it is written; no file of the host is named by it.
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

// maxReference bounds a reference, in bytes. The longest that a registry has to take
// is shorter.
const maxReference = 512

// The names of repositories as the distribution spec has them, and hosts with a port.
var (
	nameRule = lazyregexp.New(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*$`)
	hostRule = lazyregexp.New(`^(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?$`)
)

// A Reference names an image in a registry, by a tag, a digest or both. The zero
// value is none.
type Reference struct {
	repo   name.Repository
	tag    string           // empty where only a digest was given
	digest turnstone.Digest // empty where only a tag was given
}

// LooksLikeReference reports whether s can only be meant as a reference to an image
// of a registry, and not as the name of a template: it has a ':', a '/' or a '@'.
func LooksLikeReference(s string) bool { return strings.ContainsAny(s, ":/@") }

// ParseReference reads a reference as docker writes it: "python:3.12",
// "ghcr.io/org/x@sha256:…", "localhost:5000/x:tag", "x:tag@sha256:…". Without a
// registry it is docker.io's, without a tag and a digest it is "latest". Errors are
// *turnstone.Error of kind Invalid.
func ParseReference(s string) (Reference, error) {
	refuse := func(err error) (Reference, error) {
		return Reference{}, turnstone.NewError("oci.reference", turnstone.KindInvalid, fmt.Sprintf("image %.200q", s),
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
			return refuse(errors.New("the part behind the @ is no digest sha256:…"))
		}
		r.digest = d
	}
	t, err := name.NewTag(base, name.WeakValidation)
	if err != nil {
		return refuse(errors.New("is no reference to an image"))
	}
	// One form for one repository: "python" and "library/python" are the same.
	r.repo, err = name.NewRepository(t.RegistryStr()+"/"+t.RepositoryStr(), name.WeakValidation)
	if err != nil || !nameRule.MatchString(r.repo.RepositoryStr()) || !hostRule.MatchString(r.repo.RegistryStr()) {
		return refuse(errors.New("is no reference to an image"))
	}
	// The library fills in "latest", which a digest makes meaningless.
	if rest := base[strings.LastIndexByte(base, '/')+1:]; strings.ContainsRune(rest, ':') || !pinned {
		r.tag = t.TagStr()
	}
	return r, nil
}

// String returns the reference as people write it, without what goes without saying.
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

// Repository returns the reference without tag and digest, as people write it.
func (r Reference) Repository() string {
	if r.repo.RegistryStr() == name.DefaultRegistry {
		return strings.TrimPrefix(r.repo.RepositoryStr(), "library/")
	}
	return r.repo.Name()
}

// Registry returns the host that is asked for the image, with its port if one is named.
func (r Reference) Registry() string { return r.repo.RegistryStr() }

// Closed says why the registry is not on the Internet, as far as its name tells; "" if it
// may be there.
func (r Reference) Closed() string { return closedHost(hostname(r.repo.RegistryStr())) }

// Digest returns the digest that pins the reference; empty where it has only a tag.
func (r Reference) Digest() turnstone.Digest { return r.digest }

// Tagged reports whether the reference has a tag, be it only for people to read.
func (r Reference) Tagged() bool { return r.tag != "" }

// WithDigest returns the reference pinned to d. Its tag stays, for people to read.
func (r Reference) WithDigest(d turnstone.Digest) Reference {
	r.digest = d
	return r
}

// asked returns what the registry is asked for: the digest, where there is one.
func (r Reference) asked() name.Reference {
	if r.digest != "" {
		return r.repo.Digest(string(r.digest))
	}
	return r.repo.Tag(r.tag)
}

// loopback reports whether the registry is on this machine by its name. Only such a
// one may be spoken to without TLS.
func (r Reference) loopback() bool { return loopbackHost(hostname(r.repo.RegistryStr())) }

func loopbackHost(host string) bool {
	host = strings.ToLower(host)
	if host == "localhost" || strings.HasSuffix(host, ".localhost") { // RFC 6761, 6.3
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// hostname is a host without its port and brackets.
func hostname(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return strings.Trim(hostport, "[]")
}
