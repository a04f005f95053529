package key

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/crypto/ssh"

	"turnstone.dev/turnstone"
)

// Namespace is the namespace of statements in lists of trusted keys.
const Namespace = "turnstone"

// maxList bounds a list of keys, in bytes and in lines.
const (
	maxList  = 4 << 20
	maxLines = 20_000
)

// A Trust says which keys are trusted for which role. The zero value trusts none.
type Trust struct {
	entries []Entry
	revoked map[string]bool // by ID
}

// An Entry is a trusted key.
type Entry struct {
	Key     Public
	Role    Role   // empty: both
	Name    string // of the node or the user; may be empty
	Comment string
	// Host is the host by whose pin the key is trusted; empty: a list names the key.
	Host   string
	After  time.Time // zero: no bound
	Before time.Time // zero: no bound
	// Namespaces are patterns; empty: all.
	Namespaces []string
}

// Entries returns the trusted keys, including revoked ones.
func (t *Trust) Entries() []Entry { return slices.Clone(t.entries) }

// Add trusts another key.
func (t *Trust) Add(e Entry) { t.entries = append(t.entries, e) }

// Revoke removes trust from the key with this ID, whatever the entries are.
func (t *Trust) Revoke(id string) {
	if t.revoked == nil {
		t.revoked = map[string]bool{}
	}
	t.revoked[id] = true
}

// Revoked reports whether the key with this ID is revoked.
func (t *Trust) Revoked(id string) bool { return t.revoked[id] }

// AllRevoked returns the IDs of the revoked keys in order, also of those that no entry has.
func (t *Trust) AllRevoked() []string { return slices.Sorted(maps.Keys(t.revoked)) }

// ErrRevoked is in the chain of Vouch's error for a revoked key.
var ErrRevoked = errors.New("is revoked")

// Vouch returns the entry by which k is trusted as role for a statement of the time at. The error
// is of kind Integrity and says why there is none.
func (t *Trust) Vouch(k Public, role Role, at time.Time) (Entry, error) {
	refused := func(hint, format string, args ...any) (Entry, error) {
		return Entry{}, turnstone.Errorf("verify", turnstone.KindIntegrity,
			fmt.Sprintf("the %s's key %s", role, k.ID()), format, args...).WithHint(hint)
	}
	if t.revoked[k.ID()] {
		return refused("do not rely on anything that this key signed", "%w", ErrRevoked)
	}
	why, args := "is not trusted", []any(nil)
	for _, e := range t.entries {
		if !e.Key.Equal(k) {
			continue
		}
		switch {
		case e.Role != "" && e.Role != role:
			why, args = "is trusted as %s, not as %s", []any{e.Role, role}
		case !inNamespace(e.Namespaces):
			why, args = "is trusted in other namespaces only, not in %s", []any{Namespace}
		case !e.After.IsZero() && at.Before(e.After):
			why, args = "is trusted from %s only", []any{e.After.UTC().Format(time.RFC3339)}
		case !e.Before.IsZero() && !at.Before(e.Before):
			why, args = "is trusted until %s only", []any{e.Before.UTC().Format(time.RFC3339)}
		default:
			return e, nil
		}
	}
	return refused("turn key trust adds a key whose owner you know, and --trust names one", why,
		args...)
}

// inNamespace reports whether a list of patterns, as in PATTERNS of ssh_config(5), matches the
// namespace of statements: a pattern that begins with "!" takes away what the others match.
func inNamespace(patterns []string) bool {
	matched := len(patterns) == 0
	for _, p := range patterns {
		p, not := strings.CutPrefix(p, "!")
		ok, err := path.Match(p, Namespace)
		if err != nil || ok && not {
			return false
		}
		matched = matched || ok
	}
	return matched
}

// ReadTrust adds the keys of the file at path, in the format allowed_signers of ssh-keygen(1).
func (t *Trust) ReadTrust(path string) error {
	return eachLine(path, func(line string) error {
		all, err := parseSigner(line)
		t.entries = append(t.entries, all...)
		return err
	})
}

// ReadRevoked adds the revoked keys of the file at path: a public key, or a fingerprint, on each
// line.
func (t *Trust) ReadRevoked(path string) error {
	return eachLine(path, func(line string) error {
		id, err := parseID(line)
		if err == nil {
			t.Revoke(id)
		}
		return err
	})
}

// IsID reports whether text has the form of a fingerprint: see Public.ID.
func IsID(text string) bool {
	id, err := parseID(text)
	return err == nil && id == text
}

// parseID returns the ID of a key that a line names: a fingerprint, or TYPE BASE64, each optionally
// followed by a comment. Each fingerprint has one spelling, so that no revocation is lost.
func parseID(line string) (string, error) {
	id, _, _ := strings.Cut(strings.Join(strings.Fields(line), " "), " ")
	if sum, is := strings.CutPrefix(id, "SHA256:"); is {
		raw, err := base64.RawStdEncoding.Strict().DecodeString(sum)
		if err != nil || len(raw) != sha256.Size {
			return "", fmt.Errorf("%.80q is not a fingerprint as turn key ls prints it", id)
		}
		return id, nil
	}
	p, _, err := ParsePublic(line)
	if err != nil {
		return "", err
	}
	return p.ID(), nil
}

// eachLine calls f for each line of a file except blank lines and comments.
func eachLine(path string, f func(line string) error) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return turnstone.NewError("key.trust", turnstone.KindNotFound, path, err)
	}
	if err != nil {
		return turnstone.NewError("key.trust", turnstone.KindUnavailable, path, err)
	}
	defer func() { _ = file.Close() }()
	b, err := io.ReadAll(io.LimitReader(file, maxList+1))
	if err != nil {
		return turnstone.NewError("key.trust", turnstone.KindUnavailable, path, err)
	}
	if len(b) > maxList {
		return turnstone.Errorf("key.trust", turnstone.KindInvalid, path,
			"has more than %d bytes", maxList)
	}
	in := bufio.NewScanner(bytes.NewReader(b))
	in.Buffer(nil, 2*maxKey)
	n := 0
	for in.Scan() {
		n++
		line := strings.TrimSpace(in.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		err := f(line)
		if err == nil && n > maxLines {
			err = fmt.Errorf("there are more than %d lines", maxLines)
		}
		if err != nil {
			return turnstone.Errorf("key.trust", turnstone.KindInvalid,
				fmt.Sprintf("%s:%d", path, n), "%w", err).WithHint(turnstone.HintOf(err))
		}
	}
	if err := in.Err(); err != nil {
		return turnstone.NewError("key.trust", turnstone.KindInvalid, path, err)
	}
	return nil
}

// parseSigner parses a line of allowed_signers: principals, options, key, comment.
func parseSigner(line string) ([]Entry, error) {
	principals, rest, ok := cutPrincipals(line)
	if !ok {
		return nil, errors.New("the line does not have the form PRINCIPAL [OPTIONS] TYPE BASE64")
	}
	if IsPublic(line) {
		return nil, invalid("the key", "has no principal before it").
			WithHint(`write "node" or "caller" before the key`)
	}
	k, comment, options, _, err := ssh.ParseAuthorizedKey([]byte(rest))
	if err != nil {
		return nil, invalid("the key",
			"does not have the form PRINCIPAL [OPTIONS] TYPE BASE64: %w", err)
	}
	e := Entry{Comment: comment}
	if e.Key, err = NewPublic(k); err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, o := range options {
		name, _, _ := strings.Cut(strings.ToLower(o), "=")
		if seen[name] {
			return nil, fmt.Errorf("the option %.60q is there twice", name)
		}
		seen[name] = true
		if err := e.option(o); err != nil {
			return nil, err
		}
	}
	var all []Entry
	for p := range strings.SplitSeq(principals, ",") {
		one := e
		if one.Role, one.Name, err = principal(p); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// cutPrincipals cuts the first field of a line, which may be quoted.
func cutPrincipals(line string) (principals, rest string, ok bool) {
	if quoted, is := strings.CutPrefix(line, `"`); is {
		principals, rest, ok = strings.Cut(quoted, `"`)
		return principals, strings.TrimSpace(rest), ok
	}
	i := strings.IndexAny(line, " \t")
	if i <= 0 {
		return "", "", false
	}
	return line[:i], strings.TrimSpace(line[i:]), true
}

// principal parses "node", "node:NAME", "caller", "caller:NAME", or the name of a user such as
// alice@example.org, who is a caller.
func principal(p string) (Role, string, error) {
	if p == "" || strings.ContainsAny(p, "*?!") {
		return "", "", fmt.Errorf("the principal %.80q is a pattern, which is not supported", p)
	}
	if strings.ContainsFunc(p, func(r rune) bool {
		return r == utf8.RuneError || r == '"' || r == '#' || r == ' ' || !unicode.IsPrint(r)
	}) {
		return "", "", fmt.Errorf("the principal %.80q has a character that no name has", p)
	}
	role, name, named := strings.Cut(p, ":")
	switch {
	case role == string(Node), role == string(Caller):
		return Role(role), name, nil
	case named:
		return "", "", fmt.Errorf("the principal %.80q has a role other than node and caller", p)
	}
	return Caller, p, nil
}

// option parses one option of a line.
func (e *Entry) option(o string) (err error) {
	name, value, has := strings.Cut(o, "=")
	value = strings.TrimSuffix(strings.TrimPrefix(value, `"`), `"`)
	switch strings.ToLower(name) {
	case "namespaces":
		if e.Namespaces = strings.Split(value, ","); !has || value == "" {
			err = errors.New("the option namespaces has no value")
		}
		if strings.ContainsAny(value, `[]\`) {
			err = fmt.Errorf("the pattern %.80q of namespaces is not supported", value)
		}
	case "valid-after":
		e.After, err = moment(value)
	case "valid-before":
		e.Before, err = moment(value)
	case "cert-authority":
		err = errors.New("certificates are not supported")
	default:
		err = fmt.Errorf("the option %.60q is not known", name)
	}
	return err
}

// moment parses YYYYMMDD or YYYYMMDDHHMM[SS], in the local time zone or, with Z at the end, in UTC.
func moment(s string) (time.Time, error) {
	digits, utc := strings.CutSuffix(s, "Z")
	zone := time.Local
	if utc {
		zone = time.UTC
	}
	for _, layout := range []string{"20060102", "200601021504", "20060102150405"} {
		if len(digits) == len(layout) {
			t, err := time.ParseInLocation(layout, digits, zone)
			if err != nil {
				return t, fmt.Errorf("the time %.40q is not valid", s)
			}
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("the time %.40q is not YYYYMMDD or YYYYMMDDHHMMSS", s)
}

// check reports an entry that is another one as a line, such as one whose name has a blank.
func (e Entry) check() error {
	all, err := ParseEntries(e.Line())
	unseen := strings.ContainsFunc(e.Comment, func(r rune) bool { return !unicode.IsPrint(r) })
	if err != nil || unseen || len(all) != 1 || !all[0].Key.Equal(e.Key) || all[0].Role != e.Role ||
		all[0].Name != e.Name || all[0].Comment != e.Comment {
		return invalid("the key", "has a name or a comment that cannot be written into a list")
	}
	return nil
}

// principal returns the role and, if there is one, the name: "node:build1".
func (e Entry) principal() string {
	if e.Name == "" {
		return string(e.Role)
	}
	return string(e.Role) + ":" + e.Name
}

// Line returns e as a line of allowed_signers.
func (e Entry) Line() string {
	who := e.principal()
	options := []string{`namespaces="` + Namespace + `"`}
	for _, b := range []struct {
		name string
		at   time.Time
	}{{"valid-after", e.After}, {"valid-before", e.Before}} {
		if !b.at.IsZero() {
			options = append(options, fmt.Sprintf(`%s="%s"`, b.name,
				b.at.UTC().Format("20060102150405Z")))
		}
	}
	line := who + " " + strings.Join(options, ",") + " " + e.Key.String()
	if e.Comment != "" {
		line += " " + e.Comment
	}
	return line
}

// Forget removes all trusted keys. Revoked keys stay revoked.
func (t *Trust) Forget() { t.entries = nil }

// ParseEntries parses a line of a list of trusted keys, in the format allowed_signers.
func ParseEntries(line string) ([]Entry, error) {
	if strings.ContainsAny(line, "\r\n") {
		return nil, severalLines()
	}
	return parseSigner(line)
}
