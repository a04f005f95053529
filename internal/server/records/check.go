package records

import (
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"turnstone.dev/turnstone"
)

// Bounds of what is stored, in bytes.
const (
	maxID     = 128
	maxText   = 512
	maxLabels = 32
	maxNode   = 256 << 10 // the detail of a node
	maxScopes = 64
	// maxAncestors bounds the tokens that a token descends from.
	maxAncestors = 16
	maxList      = 100 // IDs in a filter
)

func invalid(op turnstone.Op, subject, format string, args ...any) *turnstone.Error {
	return turnstone.Errorf("records."+op, turnstone.KindInvalid, subject, format, args...)
}

// IsObjectID reports whether id has the form of the ID of an object of a kind.
func IsObjectID(kind Kind, id string) bool {
	m := objectID.FindStringSubmatch(id)
	return m != nil && m[1] == idPrefixes[kind]
}

// IsSessionID reports whether s has the form of a session's ID. No name has it.
func IsSessionID(s string) bool { return IsObjectID(Session, s) }

var objectID = regexp.MustCompile(`^([a-z]+)_[0-9a-v]{18}$`)

var idPrefixes = map[Kind]string{Sandbox: "sb", Turn: "tk", Session: "s", Snapshot: "sn"}

// isID reports whether s can be the ID of an object, a token or a key. Tokens themselves are longer
// or begin with the encoding of `{"`.
func isID(s string) bool {
	return s != "" && len(s) <= maxID && !strings.HasPrefix(s, "eyJ") &&
		!strings.ContainsFunc(s, func(c rune) bool {
			return !(c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' ||
				strings.ContainsRune("._:-", c))
		})
}

// isLabel reports whether s can be the name of a label.
func isLabel(s string) bool { return isID(strings.ReplaceAll(s, "/", ".")) }

// isText reports whether s is a line of text.
func isText(s string) bool {
	return len(s) <= maxText && utf8.ValidString(s) &&
		!strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == 0x7f })
}

// isTime reports whether the database can hold t.
func isTime(t time.Time) bool {
	return t.IsZero() || t.Year() >= 1970 && t.Year() < 2262 && t.UnixNano() != 0
}

func checkTenant(op turnstone.Op, name string) error {
	if err := turnstone.CheckName(turnstone.NameOfSession, name); err != nil {
		return invalid(op, "tenant", "%.80q is not a valid name", name).
			WithHint(turnstone.HintOf(err))
	}
	return nil
}

// check reports an object that cannot be stored.
func (o *Object) check(op turnstone.Op) error {
	switch {
	case First(o.Kind) == "":
		return invalid(op, "the object", "%.40q is not a kind", string(o.Kind))
	case !isID(o.ID):
		return invalid(op, string(o.Kind), "%.140q is not an ID", o.ID)
	case !isID(o.Node):
		return invalid(op, o.ID, "%.140q is not the name of a node", o.Node)
	case len(o.Detail) > MaxDetail:
		return invalid(op, o.ID, "the detail has %d bytes; the limit is %d", len(o.Detail),
			MaxDetail)
	case len(o.Labels) > maxLabels:
		return invalid(op, o.ID, "there are %d labels; the limit is %d", len(o.Labels), maxLabels)
	case !isTime(o.Expires):
		return invalid(op, o.ID, "the time %v is out of range", o.Expires)
	}
	for _, s := range []string{o.Owner, o.Name, o.Session, o.Template, o.Result, o.Reason, o.ManagedBy} {
		if !isText(s) {
			return invalid(op, o.ID, "%.80q is no line of at most %d bytes", s, maxText)
		}
	}
	for name, value := range o.Labels {
		if !isLabel(name) || !isText(value) {
			return invalid(op, o.ID, "the label %.80q cannot be stored", name)
		}
	}
	return checkTenant(op, o.Tenant)
}

func (k *Key) check(objects []Object) error {
	if !isID(k.Key) || !isText(k.Method) || k.Method == "" {
		return invalid("create", "the key", "%.80q of %.80q is not an idempotency key", k.Key,
			k.Method)
	}
	if _, err := turnstone.ParseDigest(string(k.Request)); err != nil {
		return invalid("create", "the key", "%w", err)
	}
	for _, o := range objects {
		if o.Tenant != k.Tenant {
			return invalid("create", "the key", "is of another tenant than %s", o.ID)
		}
	}
	return nil
}

func (f *Filter) check() error {
	if First(f.Kind) == "" {
		return invalid("list", "the filter", "%.40q is not a kind", string(f.Kind))
	}
	if len(f.IDs) > maxList || len(f.Labels) > maxLabels || len(f.States) > maxLabels ||
		len(f.Sessions) > maxLabels {
		return invalid("list", "the filter", "has too many values").
			WithHint("list in several parts")
	}
	for name := range f.Labels {
		if !isLabel(name) {
			return invalid("list", "the filter", "no object has the label %.80q", name)
		}
	}
	if !isTime(f.Since) || !isTime(f.Until) {
		return invalid("list", "the filter", "a time is out of range")
	}
	return nil
}

func (t *Token) check() error {
	switch {
	case !isID(t.ID), !isID(t.Key):
		// The value is not repeated: it may be a token.
		return invalid("token", "the token", "the ID of a token or of its key is malformed").
			WithHint("store the token's ID, never the token")
	case !isText(t.Name), !isText(t.Subject), len(t.Scopes) > maxScopes:
		return invalid("token", t.ID, "the name, the subject or the scopes are too long")
	case t.Expires.IsZero(), !isTime(t.Expires), !isTime(t.Issued):
		return invalid("token", t.ID, "a time is missing or out of range")
	}
	for _, s := range t.Scopes {
		if !isText(s) {
			return invalid("token", t.ID, "%.80q is not a scope", s)
		}
	}
	if len(t.Ancestors) > maxAncestors {
		return invalid("token", t.ID, "descends from more than %d others", maxAncestors)
	}
	for _, a := range t.Ancestors {
		if a.Issuer == "" || !isText(a.Issuer) || !isText(a.Key) || a.TokenID == "" ||
			!isText(a.TokenID) || strings.HasPrefix(a.TokenID, "eyJ") {
			return invalid("token", t.ID, "the name of an ancestor is malformed")
		}
	}
	return checkTenant("token", t.Tenant)
}

func (r *Revocation) check() error {
	if r.Issuer == "" || !isText(r.Issuer) || (r.TokenID == "") == (r.Key == "") ||
		!isText(r.TokenID) || !isText(r.Key) || !isTime(r.Until) ||
		strings.HasPrefix(r.TokenID, "eyJ") {
		return invalid("revoke", "the revocation",
			"does not name an issuer, and either a token's ID or a key").
			WithHint("revoke the token's ID, never the token")
	}
	return nil
}

func (u *Usage) check() error {
	switch {
	case u.Kind != Sandbox && u.Kind != Turn, !isID(u.Object), !isID(u.Node), u.Part < 0:
		return invalid("usage", "the span", "names no sandbox or turn on a node")
	case u.From.IsZero(), !isTime(u.From), !isTime(u.To), u.To.Before(u.From):
		return invalid("usage", u.Object, "the span ends before it begins").
			WithHint("compare the clocks of the nodes")
	case u.CPUs < 0 || u.CPUs > 1<<12, u.Memory < 0 || u.Memory > 1<<46:
		return invalid("usage", u.Object, "the machine's size is out of range")
	case u.Session != "" && !isID(u.Session), u.Used.CPU < 0, u.Used.Sent < 0, u.Used.Received < 0,
		u.Used.CPU > 1<<60, u.Used.Sent > 1<<60, u.Used.Received > 1<<60:
		return invalid("usage", u.Object, "what it used is out of range")
	}
	return checkTenant("usage", u.Tenant)
}
