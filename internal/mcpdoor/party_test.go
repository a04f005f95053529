package mcpdoor_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/mcpdoor"
	"turnstone.dev/turnstone/sandboxes"
)

// parties are the parties of a test. They use the same sandboxes, each in its own place.
type parties struct {
	*place
	door *mcpdoor.Door

	mu      sync.Mutex
	now     mcpdoor.Party // who calls
	places  []string      // of parties that have one
	denied  string        // the party that may use no sandbox
	session *mcp.ClientSession
}

// A partyPlace is the place of a party.
type partyPlace struct {
	*place
	all *parties
	id  string
}

func (p partyPlace) Get(id turnstone.SandboxID) (sandboxes.Info, error) {
	p.all.mu.Lock()
	denied := p.all.denied
	p.all.mu.Unlock()
	if denied == p.id {
		return sandboxes.Info{}, turnstone.Errorf("get", turnstone.KindDenied, string(id), "is not yours")
	}
	return p.place.Get(id)
}

func (p partyPlace) Remove(ctx context.Context, id turnstone.SandboxID) error {
	p.note(p.id + " ends:")
	return p.place.Remove(ctx, id)
}

func newParties(t *testing.T) *parties {
	t.Helper()
	all := &parties{place: newPlace()}
	all.door = mcpdoor.New(mcpdoor.Options{Log: slog.New(slog.DiscardHandler), Idle: time.Hour,
		Party: func(*auth.TokenInfo) mcpdoor.Party {
			all.mu.Lock()
			defer all.mu.Unlock()
			return all.now
		},
		Open: func(context.Context, *auth.TokenInfo) (mcpdoor.Place, error) {
			all.mu.Lock()
			defer all.mu.Unlock()
			name := all.now.Caller + all.now.ID
			all.places = append(all.places, name)
			own := partyPlace{all.place, all, name}
			return mcpdoor.Place{Turns: own, Sandboxes: own,
				Extend: func(context.Context, turnstone.SandboxID, time.Duration) error {
					all.note(name + " extends")
					return nil
				},
				Close: func() error {
					all.mu.Lock()
					defer all.mu.Unlock()
					all.places = slices.DeleteFunc(all.places, func(s string) bool { return s == name })
					return nil
				}}, nil
		}})
	near, far := mcp.NewInMemoryTransports()
	if _, err := all.door.Server().Connect(t.Context(), far, nil); err != nil {
		t.Fatal(err)
	}
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	s, err := c.Connect(t.Context(), near, nil)
	if err != nil {
		t.Fatal(err)
	}
	all.session = s
	t.Cleanup(func() {
		_ = s.Close()
		all.close(t)
	})
	return all
}

func (p *parties) close(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := p.door.Close(ctx); err != nil {
		t.Error(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.places) != 0 {
		t.Errorf("the places of %v are open", p.places)
	}
}

// as makes a call as a party, and returns the session that it has begun and its errors.
func (p *parties) as(t *testing.T, caller, id, tool string, args map[string]any) (begun, failed string) {
	t.Helper()
	p.mu.Lock()
	p.now = mcpdoor.Party{Caller: caller, ID: id}
	p.mu.Unlock()
	r, err := p.session.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatal(err)
	}
	if r.IsError {
		failed = text(r)
		_, begun, _ = strings.Cut(failed, "session: ")
		return begun, failed
	}
	begun, _ = r.StructuredContent.(map[string]any)["session"].(string)
	return begun, ""
}

// waitFor waits until what the places note has a text, and returns it.
func (p *parties) waitFor(t *testing.T, text string) string {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		got := strings.Join(p.noted(), "; ")
		if strings.Contains(got, text) {
			return got
		}
		if time.Now().After(end) {
			t.Fatalf("%s, without %q", got, text)
		}
	}
}

// TestSessionsOfCalls: a call without a session begins one, and says so also if it fails; later ones
// continue it, with another token too.
func TestSessionsOfCalls(t *testing.T) {
	p := newParties(t)
	one, _ := p.as(t, "a", "1", "exec", map[string]any{"command": "one"})
	two, _ := p.as(t, "a", "1", "exec", map[string]any{"command": "two"})
	if one == "" || two == "" || one == two {
		t.Fatalf("the sessions %q and %q", one, two)
	}
	if again, failed := p.as(t, "a", "1", "exec", map[string]any{"command": "three", "session": one}); again != "" || failed != "" {
		t.Errorf("a session is begun again: %q %s", again, failed)
	}
	if _, failed := p.as(t, "a", "2", "exec", map[string]any{"command": "four", "session": one}); failed != "" {
		t.Error(failed)
	}
	three, failed := p.as(t, "a", "1", "read_file", map[string]any{"path": "x"})
	if failed == "" || !strings.HasPrefix(three, "mcp-") {
		t.Errorf("a failed call begins %q: %s", three, failed)
	}
	want := fmt.Sprintf("create %s main; exec one; create %s main; exec two; exec three; exec four; "+
		"create %s main", one, two, three)
	if got := strings.Join(p.noted(), "; "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for tool, args := range map[string]map[string]any{"log": {}, "snapshot": {}, "merge": {"from": "t_1"},
		"diff": {"from": "@1"}, "fork": {"branch": "x"}, "replay": {"turn": "3"}, "verify": {}} {
		if _, failed := p.as(t, "a", "1", tool, args); !strings.Contains(failed, "session: is missing") {
			t.Errorf("%s without a session: %s", tool, failed)
		}
	}
	for tool, args := range map[string]map[string]any{"diff": {"from": "t_1"}, "fork": {"branch": "x", "turn": "s@1"},
		"verify": {"turn": "t_1"}, "log": {"session": one}, "compare": {"turns": []string{"t_1", "t_2"}}} {
		if _, failed := p.as(t, "a", "1", tool, args); failed != "" {
			t.Errorf("%s: %s", tool, failed)
		}
	}
}

// TestTokensOfCalls: a call uses a sandbox with its own token, and others' outputs are not read.
func TestTokensOfCalls(t *testing.T) {
	p := newParties(t)
	p.output = strings.Repeat("secret ", 10_000)
	s, _ := p.as(t, "a", "1", "exec", map[string]any{"command": "one"})
	const uri = "turn://outputs/1"
	if _, err := p.session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err != nil {
		t.Error(err)
	}
	p.mu.Lock()
	p.denied = "a2"
	p.mu.Unlock()
	if _, failed := p.as(t, "a", "2", "exec", map[string]any{"command": "two", "session": s}); !strings.Contains(failed, "is not yours") {
		t.Errorf("a token that may not: %q", failed)
	}
	if _, err := p.session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err == nil {
		t.Error("an output of another token was read")
	}
	// the session of another caller is another one
	if _, failed := p.as(t, "b", "1", "exec", map[string]any{"command": "three", "session": s}); failed != "" {
		t.Error(failed)
	}
	if got := strings.Join(p.noted(), "; "); strings.Count(got, "create "+s) != 2 || strings.Contains(got, "exec two") {
		t.Error(got)
	}
}

// TestSilence: what no call uses ends with the token that used it last, and the rest is extended.
func TestSilence(t *testing.T) {
	p := newParties(t)
	s, _ := p.as(t, "a", "1", "exec", map[string]any{"command": "one"})
	p.as(t, "a", "2", "exec", map[string]any{"command": "two", "session": s})
	p.door.Sweep(time.Now().Add(-time.Hour))
	p.waitFor(t, "exec two; a2 extends")
	p.door.Sweep(time.Now().Add(time.Hour)) // no party has a call, but the second one has a sandbox
	p.waitFor(t, "a2 ends:; remove")
	p.as(t, "a", "2", "exec", map[string]any{"command": "three", "session": s})
	p.waitFor(t, "a2 ends:; remove; create "+s+" main; exec three")
}

// TestEndParty: a token that is no longer admitted ends its calls, and its sandboxes are nobody's until
// another token uses them.
func TestEndParty(t *testing.T) {
	p := newParties(t)
	s, _ := p.as(t, "a", "1", "exec", map[string]any{"command": "one"})
	failed := make(chan string, 1)
	go func() {
		_, text := p.as(t, "a", "1", "run_turn", map[string]any{"session": "long",
			"document": "```bash name=long\ntrue\n```\n"})
		failed <- text
	}()
	<-p.begun
	p.door.EndParty(mcpdoor.Party{Caller: "a", ID: "2"}) // of nobody
	p.door.EndParty(mcpdoor.Party{Caller: "a", ID: "1"})
	<-failed
	p.waitFor(t, "cancelled")
	p.door.Sweep(time.Now().Add(-time.Hour))
	p.as(t, "a", "2", "exec", map[string]any{"command": "two", "session": s})
	got := p.waitFor(t, "exec two")
	if strings.Contains(got, "a1 extends") || strings.Contains(got, "ends:") || strings.Count(got, "create") != 1 {
		t.Error(got)
	}
}

// TestManyParties: a caller's tokens and sandboxes have a bound, and one that is silent makes room.
func TestManyParties(t *testing.T) {
	p := newParties(t)
	for n := range 100 {
		if _, failed := p.as(t, "a", fmt.Sprint(n), "log", map[string]any{"session": "s"}); failed != "" {
			t.Fatal(failed)
		}
	}
	for n := range 32 {
		if _, failed := p.as(t, "a", fmt.Sprint("x", n), "exec", map[string]any{"command": "x"}); failed != "" {
			t.Fatalf("%d: %s", n, failed)
		}
	}
	_, failed := p.as(t, "a", "x1", "exec", map[string]any{"command": "x"})
	if !strings.Contains(failed, "has 32 sandboxes") || !strings.Contains(failed, "name the session") {
		t.Errorf("one more sandbox: %q", failed)
	}
	if _, failed := p.as(t, "a", "new", "log", map[string]any{"session": "s"}); !strings.Contains(failed, "too many tokens") {
		t.Errorf("one more token, while all have sandboxes: %q", failed)
	}
	if _, failed := p.as(t, "b", "1", "exec", map[string]any{"command": "x"}); failed != "" {
		t.Errorf("another caller: %s", failed)
	}
}
