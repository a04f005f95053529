package chain

import (
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/statedir"
)

// Trust returns the keys that named names: files in the format allowed_signers, lines of that format,
// and keys, "TYPE BASE64" or "ROLE=TYPE BASE64". Without any, it returns the list of the state
// directory dir. The keys that are revoked in dir are revoked in all cases. dir need not exist.
func Trust(dir *statedir.Dir, named []string) (*key.Trust, error) {
	t, err := Ring(dir, nil).List()
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
func trustNamed(t *key.Trust, n string) error {
	role, text, has := strings.Cut(n, "=")
	if r := key.Role(role); !has || r != key.Node && r != key.Caller {
		role, text = "", n
	}
	if key.IsPublic(text) && strings.Contains(text, " ") {
		k, comment, err := key.ParsePublic(text)
		if err != nil {
			return turnstone.NewError("verify", turnstone.KindInvalid, "--trust", err).
				WithHint(turnstone.HintOf(err))
		}
		t.Add(key.Entry{Key: k, Role: key.Role(role), Comment: comment})
		return nil
	}
	if all, err := key.ParseEntries(n); err == nil { // no path has a key in it
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
