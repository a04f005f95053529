package sessions

import (
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/node/owners"
)

// TestOwns: a client owns the sessions that it made, and none that it may only read or write.
func TestOwns(t *testing.T) {
	s := newScene(t)
	if err := s.remote(s.service, s.mine).Owns(t.Context(), string(s.research.ID)); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		who     owners.Caller
		session turnstone.SessionID
	}{
		"reader":          {s.reader, s.research.ID},
		"writer":          {s.writer, s.research.ID},
		"stranger":        {s.other, s.research.ID},
		"another session": {s.mine, s.private.ID},
	} {
		err := s.remote(s.service, x.who).Owns(t.Context(), string(x.session))
		if kind := turnstone.KindOf(err); kind != turnstone.KindNotFound && kind != turnstone.KindInvalid {
			t.Errorf("%s: %v (%s)", name, err, kind)
		}
	}
}
