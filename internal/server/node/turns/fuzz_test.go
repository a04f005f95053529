package turns

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
)

// FuzzTicket reads the files of a ticket: whatever they hold, a ticket is about the ID of its
// folder and serves no client but its own.
func FuzzTicket(f *testing.F) {
	const id = "k_12345678"
	own, other := channel.NewKeyPair().Public, channel.NewKeyPair().Public
	ticket, err := json.Marshal(Ticket{ID: id, Client: own, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		f.Fatal(err)
	}
	outcome, err := json.Marshal(Outcome{Turn: "t_1", Result: turnstone.ResultPassed})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(ticket, outcome)
	f.Add(ticket, []byte(`{`))
	f.Add([]byte(`{"id":"k_87654321"}`), []byte(`{"number":-1}`))
	s, err := Open(f.TempDir(), newPlayer(), 2)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Close() })
	dir := filepath.Join(s.dir, id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, ticket, outcome []byte) {
		for name, text := range map[string][]byte{ticketFile: ticket, outcomeFile: outcome,
			begunFile: nil} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		i, err := s.Get(id)
		if err == nil && (i.ID != id || i.State != Done) {
			t.Fatalf("%+v", i)
		}
		if err != nil && turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Fatal(err)
		}
		if got, _, err := s.of(other, id); err == nil {
			t.Fatalf("another client got %+v", got)
		}
		all, err := s.List()
		if err != nil || len(all) > 1 {
			t.Fatal(all, err)
		}
	})
}
