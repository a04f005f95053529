package envd

import (
	"context"
	"encoding/base64"
	"net/http"
	"path"
	"strconv"
	"strings"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// rootName is the user whose number is 0.
const rootName = "root"

// userOf returns the user that a request names: as that of a basic authorization without a password.
func userOf(h http.Header) (string, error) {
	value, ok := strings.CutPrefix(h.Get("Authorization"), "Basic ")
	if !ok {
		return "", nil
	}
	b, err := base64.StdEncoding.DecodeString(value)
	if err != nil {
		return "", fail(connect.CodeUnauthenticated, "the name of the user is not in base64")
	}
	name, _, _ := strings.Cut(string(b), ":")
	return name, checkUser(name)
}

// maxUser bounds the name of a user in bytes.
const maxUser = 64

func checkUser(name string) error {
	if len(name) > maxUser || strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r == ':' || r == '/' || r == 0x7f
	}) {
		return fail(connect.CodeUnauthenticated, "invalid username")
	}
	return nil
}

// An account is a line of a sandbox's passwd file, which is untrusted.
type account struct {
	name     string
	uid, gid int64
	home     string
}

// maxPasswd bounds what is read of the passwd file.
const maxPasswd = 256 << 10

// accounts reads the users of a sandbox, and the groups if names of them are needed.
func accounts(ctx context.Context, c *wire.Conn) []account {
	r, err := c.FileSystemRead(ctx, &wire.FileSystemReadParams{Path: "/etc/passwd", Length: maxPasswd})
	if err != nil {
		return nil
	}
	return parsePasswd(string(r.Data))
}

// parsePasswd returns the well-formed lines of a passwd file.
func parsePasswd(text string) (all []account) {
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if len(f) < 6 || checkUser(f[0]) != nil || f[0] == "" || !path.IsAbs(f[5]) ||
			strings.ContainsRune(f[5], 0) {
			continue
		}
		uid, err := strconv.ParseUint(f[2], 10, 32)
		gid, bad := strconv.ParseUint(f[3], 10, 32)
		if err == nil && bad == nil {
			all = append(all, account{f[0], int64(uid), int64(gid), path.Clean(f[5])})
		}
	}
	return all
}

// parseGroups returns the names of groups by their numbers.
func parseGroups(text string) map[int64]string {
	all := map[int64]string{}
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if len(f) < 3 || f[0] == "" || checkUser(f[0]) != nil {
			continue
		}
		if gid, err := strconv.ParseUint(f[2], 10, 32); err == nil {
			all[int64(gid)] = f[0]
		}
	}
	return all
}

// A visitor is the user in whose name a request is made.
type visitor struct {
	named bool   // the request names the user
	name  string // empty: the sandbox's own
	home  string // where relative paths begin
}

// visit returns the user that a request names. The error is E2B's for an unknown one.
func visit(ctx context.Context, c *wire.Conn, b *Box, name string) (visitor, error) {
	if name == "" {
		home := b.Workdir
		if home == "" {
			home = defaultWorkdir
		}
		return visitor{name: b.User, home: home}, nil
	}
	for _, a := range accounts(ctx, c) {
		if a.name == name {
			return visitor{true, name, a.home}, nil
		}
	}
	return visitor{}, fail(connect.CodeUnauthenticated, "invalid username: '"+name+
		"': the sandbox has no such user")
}

// defaultWorkdir is where an agent runs commands that name no directory.
const defaultWorkdir = "/workspace"

// maxPath is Linux's bound of a path.
const maxPath = 4096

// resolve returns the absolute path that a request means.
func (v visitor) resolve(name string) (string, error) {
	switch {
	case strings.ContainsRune(name, 0):
		return "", fail(connect.CodeInvalidArgument, "the path has a zero byte")
	case len(name) >= maxPath:
		return "", fail(connect.CodeInvalidArgument, "the path is too long")
	case name == "~" || strings.HasPrefix(name, "~/"):
		name = v.home + strings.TrimPrefix(name, "~")
	case strings.HasPrefix(name, "~"):
		return "", fail(connect.CodeInvalidArgument, "the path names the home of another user")
	case !path.IsAbs(name):
		name = v.home + "/" + name
	}
	return path.Clean(name), nil
}

// kindOf is turnstone.KindOf, for brevity.
func kindOf(err error) turnstone.Kind { return turnstone.KindOf(err) }
