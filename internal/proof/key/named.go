package key

import (
	"strings"

	"turnstone.dev/turnstone"
)

// ListOf returns the keys that named names: files in the format allowed_signers, lines of that
// format, and keys, "TYPE BASE64" or "ROLE=TYPE BASE64". Without any, it is List. The keys that are
// revoked in the ring are revoked in all cases. The state directory need not exist.
func (r Ring) ListOf(named []string) (*Trust, error) {
	t, err := r.List()
	if err != nil || len(named) == 0 {
		return t, err
	}
	t.Forget()
	for _, n := range named {
		if err := trustNamed(t, strings.TrimSpace(n)); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// trustNamed adds the keys that n names to t.
func trustNamed(t *Trust, n string) error {
	role, text, has := strings.Cut(n, "=")
	if r := Role(role); !has || r != Node && r != Caller {
		role, text = "", n
	}
	if IsPublic(text) && strings.Contains(text, " ") {
		k, comment, err := ParsePublic(text)
		if err != nil {
			return turnstone.NewError("verify", turnstone.KindInvalid, "--trust", err).
				WithHint(turnstone.HintOf(err))
		}
		t.Add(Entry{Key: k, Role: Role(role), Comment: comment})
		return nil
	}
	if all, err := ParseEntries(n); err == nil { // no path has a key in it
		for _, e := range all {
			t.Add(e)
		}
		return nil
	}
	err := t.ReadTrust(n)
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return turnstone.NewError("verify", turnstone.KindInvalid, n, err).
			WithHint("name a file in the format allowed_signers, a line of one, or a key")
	}
	return err
}
