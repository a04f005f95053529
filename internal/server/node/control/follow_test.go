package control

import (
	"context"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/server/node/tenants"
)

// TestDetach: a forgotten tenant leaves no notes and no sizes, and a look at its sessions finds none.
func TestDetach(t *testing.T) {
	set, err := tenants.Open(t.Context(), tenants.Options{Executor: executor.Options{Dir: t.TempDir()}, Idle: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = set.Close() }()
	ctx, done := context.WithCancel(t.Context())
	st, err := set.Of(ctx, "ada")
	if err != nil {
		t.Fatal(err)
	}
	operator := set.Shared()
	s := &Service{o: Options{Tenants: set}, board: newBoard(), tenants: map[*tenants.State]*tenant{operator: {}, st: {}}}
	s.sizes.stored = map[string]int64{operator.Tenant: 1, "ada": 2}
	s.sizes.of = map[sizeName]int64{{operator.Tenant, "s"}: 1, {"ada", "s"}: 2}
	set.Forget()
	s.detach()
	if len(s.tenants) != 2 || s.sizes.sum() != 3 || s.sizes.get("ada", "s") != 2 {
		t.Errorf("a tenant in use is detached: %v, %v", s.tenants, s.sizes.stored)
	}
	done()
	for until := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		set.Forget()
		if _, err := set.Known("ada"); turnstone.KindOf(err) == turnstone.KindNotFound {
			break
		} else if time.Now().After(until) {
			t.Fatalf("ada is not forgotten: %v", err)
		}
	}
	s.detach()
	if s.tenants[operator] == nil || len(s.tenants) != 1 {
		t.Errorf("notes of %v", s.tenants)
	}
	if s.sizes.sum() != 1 || s.sizes.get("ada", "s") != 0 || s.sizes.get(operator.Tenant, "s") != 1 {
		t.Errorf("sizes %v, %v", s.sizes.stored, s.sizes.of)
	}
	s.lookSessions(t.Context(), st, true)
}
