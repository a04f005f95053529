package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lazyregexp"
	"turnstone.dev/turnstone/internal/server/auth"
)

// none is the value of a listener that is switched off.
const none = "off"

// checkText checks one text of a setting, by the tags kind and oneof. It never quotes the value of
// a file's setting: somebody may have put the secret itself there.
func (s setting) checkText(text string) error {
	if words := s.field.Tag.Get("oneof"); words != "" &&
		!slices.Contains(strings.Split(words, ","), text) {
		return fmt.Errorf("%.60q is not one of %s", text, strings.ReplaceAll(words, ",", ", "))
	}
	if text == "" {
		return nil
	}
	switch s.field.Tag.Get("kind") {
	case "file", "secret":
		if strings.ContainsAny(text, "\n\r\x00") || strings.Contains(text, "-----BEGIN") {
			return errors.New("is not a path: put the secret into a file that other users cannot " +
				"read, and name the file")
		}
	case "database":
		return checkDatabase(text)
	case "shared":
		if !isURL(text) {
			return errors.New("is not a URL such as postgres://USER@HOST:PORT/DATABASE")
		}
		return checkDatabase(text)
	case "bucket":
		if u, err := url.Parse(text); err != nil || u.Scheme != "s3" || u.Host == "" || u.User != nil {
			return errors.New("is not a bucket such as s3://BUCKET/PREFIX")
		}
	case "address":
		if text != none {
			return checkAddress(text)
		}
	case "peer":
		if path, ok := strings.CutPrefix(text, "unix:"); ok {
			if !filepath.IsAbs(path) {
				return errors.New("does not name an absolute path after unix:, such as unix:/run/turn.sock")
			}
			return nil
		}
		return checkAddress(text)
	case "node":
		if !nodeName(text) {
			return errors.New("is not 1 to 64 letters, digits, dots, underscores and hyphens")
		}
	case "domain":
		name, port, found := strings.Cut(text, ":")
		n, err := strconv.ParseUint(port, 10, 16)
		if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" ||
			strings.Trim(name, ".") != name || len(name) > 200 || found && (err != nil || n == 0) {
			return errors.New("is no domain in lower-case letters, such as sandboxes.example.org or localhost:7430")
		}
	case "host":
		if _, err := netip.ParseAddr(text); err != nil {
			return fmt.Errorf("%.60q is not an IP address, such as 127.0.0.1", text)
		}
	case "url":
		if u, err := url.Parse(text); err != nil || u.Host == "" || u.User != nil ||
			u.Scheme != "http" && u.Scheme != "https" {
			return errors.New("is not a URL without a user, such as http://127.0.0.1:4318")
		}
	case "origin":
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || u.Scheme+"://"+u.Host != text || text != strings.ToLower(text) ||
			u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("%.60q is not an origin as browsers send it, such as https://app.example.org", text)
		}
	case "network":
		if _, err := netip.ParsePrefix(text); err != nil {
			return fmt.Errorf("%.60q is not a network, such as 10.0.0.0/8", text)
		}
	}
	return nil
}

// checkDatabase reports what is neither a path nor a URL without a password. It quotes nothing of it.
func checkDatabase(text string) error {
	if strings.ContainsAny(text, "\n\r\x00") {
		return errors.New("is not a path")
	}
	if !isURL(text) {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" && !u.Query().Has("host") {
		return errors.New("is not a URL such as postgres://USER@HOST:PORT/DATABASE")
	}
	if _, has := u.User.Password(); has || u.Query().Has("password") || u.Query().Has("sslpassword") {
		return errors.New("has a password, which others could read: put it into a file " +
			"(records.passwords, or the URL's passfile), as HOST:PORT:DATABASE:USER:PASSWORD")
	}
	return nil
}

// isURL reports whether a database is one of PostgreSQL.
func isURL(text string) bool {
	return strings.HasPrefix(text, "postgres://") || strings.HasPrefix(text, "postgresql://")
}

// nodeName reports whether nodes can have the name.
func nodeName(text string) bool {
	const alphanumeric = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	return text != "" && len(text) <= 64 && strings.ContainsAny(text[:1], alphanumeric) &&
		strings.Trim(text, alphanumeric+"._-") == ""
}

// thisHost returns the name of this machine, as far as nodes can have it.
func thisHost() string {
	if name, err := os.Hostname(); err == nil && nodeName(name) {
		return name
	}
	return "node"
}

func checkAddress(text string) error {
	_, port, err := net.SplitHostPort(text)
	if err != nil || port == "" {
		return fmt.Errorf("%.80q is not HOST:PORT, such as 127.0.0.1:7420", text)
	}
	if n, err := net.LookupPort("tcp", port); err != nil || n < 0 {
		return fmt.Errorf("%.80q does not have a port between 0 and 65535", text)
	}
	return nil
}

// Loopback reports whether an address HOST:PORT is reached from this machine only.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip, _ := netip.ParseAddr(host)
	return err == nil && (host == "localhost" || ip.IsLoopback())
}

// complete makes the paths of the state directory's files absolute, and "off" empty.
func (l *loader) complete(c *Config) {
	for _, p := range []*string{&c.Listen.Socket, &c.Records.Database, &c.TLS.Certificate,
		&c.TLS.Key, &c.Peers.Authority, &c.Peers.Certificate, &c.Peers.Key,
		&c.Machine.Certificate, &c.Audit.Folder, &c.Telemetry.Headers, &c.Tokens.Key,
		&c.Records.Passwords} {
		if p == &c.Listen.Socket && *p == none {
			*p = ""
		} else if *p != "" && !filepath.IsAbs(*p) && !isURL(*p) {
			*p = filepath.Join(l.dir, *p)
		}
	}
	if c.Listen.Address == none {
		c.Listen.Address = ""
	}
	if c.E2B.Listen == none {
		c.E2B.Listen = ""
	}
	if c.Telemetry.Listen == none {
		c.Telemetry.Listen = ""
	}
	if c.MCP.Listen == none {
		c.MCP.Listen = ""
	}
	if c.Machine.Name == "" {
		c.Machine.Name = thisHost()
	}
	if c.Peers.Address == "" {
		c.Peers.Address = c.Peers.Listen
	}
}

// check reports settings that do not fit together.
func (l *loader) check(c *Config) {
	if c.Name == "" || len(c.Name) > 200 || strings.ContainsFunc(c.Name, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}) {
		l.problem("name", errors.New("is not a name of 1 to 200 characters without spaces"), "")
	}
	if len(c.Roles) == 0 {
		l.problem("roles", errors.New("is empty"), "use some of gateway, controller, node")
		return
	}
	l.pair(c.TLS.Certificate, c.TLS.Key, "tls.certificate", "tls.key")
	l.pair(c.Peers.Certificate, c.Peers.Key, "peers.certificate", "peers.key")
	if a := c.Listen.Address; a != "" && !Loopback(a) && c.TLS.Certificate == "" &&
		len(c.Listen.Proxies) == 0 {
		l.problem("listen.address", errors.New("is reached from other machines, without TLS"),
			"set tls.certificate and tls.key, or listen.proxies if a proxy in front ends TLS")
	}
	if c.Has(Gateway) && c.Listen.Address == "" && c.Listen.Socket == "" {
		l.problem("listen.address", errors.New("is off, and so is listen.socket"),
			"set one of them, or leave the role gateway out")
	}
	l.checkE2B(c)
	if c.Limits.Burst < c.Limits.Rate {
		l.problem(l.isSet("limits.burst", "limits.rate"),
			fmt.Errorf("burst is %d, less than rate, which is %d", c.Limits.Burst, c.Limits.Rate), "")
	}
	if f := c.Records.Forget; f > 0 && f < time.Minute {
		l.problem("records.forget", fmt.Errorf("is %s: a node that starts again would be forgotten", f),
			"use at least 1m, or 0s")
	}
	if c.Limits.Unused > 0 && !(c.Has(Gateway) && c.Has(Controller) && c.Has(Node)) {
		l.problem("limits.unused", errors.New("is set, and other processes have roles of this server"),
			"leave it out: they may need this process at any time")
	}
	l.checkTelemetry(&c.Telemetry)
	l.checkMCP(c)
	l.checkPeers(c)
	for n := range c.Issuers {
		l.checkIssuer(c, n)
	}
	for n := range c.Pools {
		l.checkPool(c, n)
	}
}

// checkMCP reports an endpoint that cannot be: its contents are in the clear where it ends, so that is
// a node, and it is a client of the gateway beside it.
func (l *loader) checkMCP(c *Config) {
	switch a := c.MCP.Listen; {
	case a == "":
	case !c.Has(Node) || !c.Has(Gateway):
		l.problem("mcp.listen", errors.New("is set, and this process is not both node and gateway"),
			"set it where both are, or let clients start turn mcp")
	case !Loopback(a) && c.TLS.Certificate == "" && len(c.Listen.Proxies) == 0:
		l.problem("mcp.listen", errors.New("is reached from other machines, without TLS"),
			"set tls.certificate and tls.key, or listen.proxies if a proxy in front ends TLS")
	}
}

// checkE2B reports a door that cannot work.
func (l *loader) checkE2B(c *Config) {
	a := c.E2B.Listen
	switch {
	case a == "":
	case !c.Has(Node) || !c.Has(Controller) || !c.Has(Gateway):
		l.problem("e2b.listen", errors.New("is set, and this process is not gateway, controller and node"),
			"give one process all roles: E2B's clients speak in the clear to the node")
	case !Loopback(a) && c.TLS.Certificate == "" && len(c.Listen.Proxies) == 0:
		l.problem("e2b.listen", errors.New("is reached from other machines, without TLS"),
			"set tls.certificate and tls.key, or listen.proxies if a proxy in front ends TLS")
	case c.Listen.Address == "" && c.TLS.Certificate != "":
		l.problem("e2b.listen", errors.New("is set with tls.certificate, and listen.address is off"),
			"set listen.address, which has the same certificate")
	}
}

// checkPool reports a pool that cannot work.
func (l *loader) checkPool(c *Config, n int) {
	p, key := &c.Pools[n], fmt.Sprintf("pools.%d", n+1)
	switch {
	case p.Target == AtNode && !c.Has(Node):
		l.problem(key, errors.New("is set, and this process is no node"),
			"set it at the node, or set target to fleet at the controller")
	case p.Target == AtFleet && !c.Has(Controller):
		l.problem(key, errors.New("is of all nodes, and this process is no controller"),
			"set it at the controller")
	case p.Min > p.Max:
		l.problem(key+".min", fmt.Errorf("is %d, more than max, which is %d", p.Min, p.Max), "")
	case !validTenant.MatchString(p.Tenant):
		l.problem(key+".tenant", errors.New("is no tenant's name"),
			"use 1 to 64 letters, digits, dots, underscores and hyphens")
	case p.Memory != 0 && p.Memory < turnstone.MinMemory:
		l.problem(key+".memory", fmt.Errorf("is less than %s, with which no machine starts",
			turnstone.MinMemory), "")
	}
}

var validTenant = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// pair reports one of two files that belong together.
func (l *loader) pair(one, two, keyOne, keyTwo string) {
	if one != "" && two == "" {
		l.problem(keyOne, errors.New("needs "+keyTwo), "set both, or none of them")
	}
	if one == "" && two != "" {
		l.problem(keyTwo, errors.New("needs "+keyOne), "set both, or none of them")
	}
}

// maxTenants bounds the tenants that metrics name.
const maxTenants = 100

// checkTelemetry reports a page that everybody could read, and headers that everybody could hear.
func (l *loader) checkTelemetry(t *Telemetry) {
	if a := t.Listen; a != "" && !Loopback(a) && t.Network != "on" {
		l.problem("telemetry.listen", errors.New("is reached from other machines, and the page "+
			"needs no token"), "use an address of 127.0.0.1, or set telemetry.network to on")
	}
	if len(t.Tenants) > maxTenants {
		l.problem("telemetry.tenants", fmt.Errorf("has more than %d tenants", maxTenants), "")
	}
	if t.Headers == "" {
		return
	}
	switch u, err := url.Parse(t.Endpoint); {
	case t.Endpoint == "":
		l.problem("telemetry.headers", errors.New("needs telemetry.endpoint"), "set both, or none of them")
	case err == nil && u.Scheme == "http" && !Loopback(net.JoinHostPort(u.Hostname(), "0")):
		l.problem("telemetry.endpoint", errors.New("is not encrypted, and telemetry.headers has secrets"),
			"use https, or a collector on this machine")
	}
}

// checkPeers reports roles that cannot reach each other.
func (l *loader) checkPeers(c *Config) {
	alone := !(c.Has(Gateway) && c.Has(Controller) && c.Has(Node))
	if alone && !c.Has(Controller) && len(c.Peers.Controller) == 0 {
		l.problem("peers.controller", errors.New("is missing: this process is no controller"),
			"set it to the controller's peers.listen")
	}
	if c.Has(Controller) && len(c.Peers.Controller) > 0 {
		l.problem("peers.controller", errors.New("is set, and this process is a controller"),
			"leave it out, or take the controller out of roles")
	}
	if alone && (c.Has(Controller) || c.Has(Node)) && c.Peers.Listen == "" {
		l.problem("peers.listen", errors.New("is missing: other processes connect to this one"),
			"set it to unix:PATH, or to HOST:PORT with mutual TLS")
	}
	if c.Has(Node) && alone && unspecified(c.Peers.Address) {
		l.problem(l.isSet("peers.address", "peers.listen"), errors.New("is no address that other "+
			"processes can connect to"), "set peers.address to where they reach this node")
	}
	all := []struct{ key, value string }{{"peers.listen", c.Peers.Listen}}
	for _, at := range c.Peers.Controller {
		all = append(all, struct{ key, value string }{"peers.controller", at})
	}
	for _, one := range all {
		if one.value != "" && !strings.HasPrefix(one.value, "unix:") &&
			(c.Peers.Authority == "" || c.Peers.Certificate == "") {
			l.problem(one.key, errors.New("is TCP, which needs mutual TLS between roles"),
				"set peers.authority, peers.certificate and peers.key, or use unix:PATH")
		}
	}
}

// unspecified reports an address that is only good for listening.
func unspecified(address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return false // a path, or missing, which is another problem
	}
	ip, _ := netip.ParseAddr(host)
	return host == "" || ip.IsUnspecified() || port == "0"
}

func (l *loader) checkIssuer(c *Config, n int) {
	if err := c.Issuers[n].OIDC().Check(c.Name); err != nil {
		l.problem(fmt.Sprintf("issuers.%d", n+1), err, turnstone.HintOf(err))
	}
}

// OIDC returns the issuer for package auth.
func (i Issuer) OIDC() auth.OIDC {
	o := auth.OIDC{Issuer: i.Issuer, Audiences: i.Audiences, Algorithms: i.Algorithms,
		Tenant: i.Tenant, Tenants: as[auth.Pattern](i.Tenants), Scopes: as[auth.Scope](i.Scopes),
		Grant: auth.Grant{Scopes: as[auth.Scope](i.GrantScopes),
			Sessions:  as[auth.Pattern](i.GrantSessions),
			Templates: as[auth.Pattern](i.GrantTemplates)},
		Require: i.Require, MaxTTL: i.Longest, Fresh: i.Fresh, Outage: i.Outage}
	if i.Outage == 0 {
		o.Outage = -1 // 0 is auth's default
	}
	return o
}

func as[T ~string](words []string) (list []T) {
	for _, w := range words {
		list = append(list, T(w))
	}
	return list
}

// CheckFiles reports files that the settings name and that cannot be used: turn serve
// --check-config calls it after Load, and the server when it starts. The error is of kind Invalid
// and has Problems. It holds nothing of the files.
func (c *Config) CheckFiles() error {
	var all Problems
	add := func(key, path string, err error) {
		if err != nil {
			all = append(all, &Problem{Source: path, Key: key, Err: err, Hint: fileHint(key, err)})
		}
	}
	for _, one := range []struct{ key, certificate, secret string }{
		{"tls", c.TLS.Certificate, c.TLS.Key}, {"peers", c.Peers.Certificate, c.Peers.Key}} {
		if one.certificate == "" {
			continue
		}
		if err := checkSecret(one.secret); err != nil {
			add(one.key+".key", one.secret, err)
			continue
		}
		if _, err := os.ReadFile(one.secret); err != nil {
			add(one.key+".key", one.secret, err)
			continue
		}
		if _, err := os.ReadFile(one.certificate); err != nil {
			add(one.key+".certificate", one.certificate, err)
			continue
		}
		if _, err := tls.LoadX509KeyPair(one.certificate, one.secret); err != nil {
			add(one.key+".certificate", one.certificate,
				fmt.Errorf("does not fit to its key, or is not PEM: %w", err))
		}
	}
	if c.Peers.Authority != "" {
		b, err := os.ReadFile(c.Peers.Authority)
		if err == nil && !x509.NewCertPool().AppendCertsFromPEM(b) {
			err = errors.New("has no certificate as PEM")
		}
		add("peers.authority", c.Peers.Authority, err)
	}
	if path := c.Records.Passwords; path != "" {
		add("records.passwords", path, checkSecret(path))
	}
	if path := c.Telemetry.Headers; path != "" {
		err := checkSecret(path)
		if err == nil {
			_, err = c.Telemetry.ReadHeaders()
		}
		add("telemetry.headers", path, err)
	}
	if len(all) == 0 {
		return nil
	}
	return turnstone.NewError("server.config", turnstone.KindInvalid, "", all)
}

// fileHint says what to do about a file that a setting names.
func fileHint(key string, err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "make the file, or name another one in " + key
	case errors.Is(err, fs.ErrPermission):
		return "let the user of turn serve read the file, and no other: chgrp and chmod 640"
	case strings.HasSuffix(key, ".certificate"):
		return "name the certificate as PEM, and the private key that it was made for"
	}
	return ""
}

// checkSecret reports a file that every user of the machine can read. A group may read it, as
// Debian's group ssl-cert and mounted secrets do.
func checkSecret(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("is not a regular file")
	case info.Mode().Perm()&0o007 != 0:
		return fmt.Errorf("has mode %04o: all users can read or write it; chmod 600 it",
			info.Mode().Perm())
	}
	return nil
}
