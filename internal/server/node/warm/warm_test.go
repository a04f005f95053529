package warm

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/pool"
	"turnstone.dev/turnstone/internal/server/node/tenants"
	"turnstone.dev/turnstone/sandboxes"
)

// TestTargetsOfTenants checks that pools of two tenants do not replace each other: only the template
// and the machine are the same.
func TestTargetsOfTenants(t *testing.T) {
	set, err := tenants.Open(t.Context(), tenants.Options{Executor: executor.Options{Dir: t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = set.Close() })
	targets := []Target{{Min: 1, Max: 1}, {Tenant: "other", Min: 1, Max: 1}}
	s := &Service{o: Options{Tenants: set, Targets: targets, Log: slog.New(slog.DiscardHandler)},
		specs: make(map[pool.Key]sandboxes.Spec)}
	s.pool = pool.New(pool.Options[*machine]{Make: func(context.Context, pool.Key, string) (*machine,
		error) {
		return nil, turnstone.Errorf("warm.make", turnstone.KindUnavailable, "", "is not made")
	}})
	t.Cleanup(func() { _ = s.pool.Close() })
	for range 2 {
		for _, one := range targets {
			// that the template is not built does not matter
			if err := s.look(t.Context(), one); turnstone.KindOf(err) != turnstone.KindUnavailable {
				t.Fatal(err)
			}
		}
	}
	if len(s.specs) != len(targets) {
		t.Errorf("%d of %d targets are kept: %v", len(s.specs), len(targets), s.specs)
	}
}

// TestSaysWhatToDo checks that the log's line about a pool that stays empty has the error's hint.
func TestSaysWhatToDo(t *testing.T) {
	set, err := tenants.Open(t.Context(), tenants.Options{Executor: executor.Options{Dir: t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = set.Close() })
	log := &bytes.Buffer{}
	s := &Service{o: Options{Tenants: set, Targets: []Target{{Min: 1, Max: 1}},
		Log: slog.New(slog.NewTextHandler(log, nil))}, specs: make(map[pool.Key]sandboxes.Spec)}
	s.pool = pool.New(pool.Options[*machine]{})
	t.Cleanup(func() { _ = s.pool.Close() })
	said := make(map[string]string)
	for range 2 {
		s.lookAll(t.Context(), said)
	}
	s.event(pool.Event{Kind: "failed", Err: turnstone.Errorf("x", turnstone.KindUnavailable, "y", "z").
		WithHint("raise disk")})
	if text := log.String(); strings.Count(text, "no sandbox is kept warm") != 1 ||
		!strings.Contains(text, `hint="build it with`) || !strings.Contains(text, `hint="raise disk"`) {
		t.Errorf("the log has %s", text)
	}
}
