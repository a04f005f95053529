package tenants_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/node/tenants"
	"turnstone.dev/turnstone/internal/server/node/turns"
	"turnstone.dev/turnstone/internal/store/blob/s3/s3test"
)

// forgetful returns the tenants of a state directory, which Forget forgets as soon as no call uses them.
func forgetful(t *testing.T, o tenants.Options) *tenants.Set {
	t.Helper()
	o.Idle = 1
	s, err := tenants.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// visit opens a tenant for as long as f takes.
func visit(t *testing.T, s *tenants.Set, name string, f func(ctx context.Context, st *tenants.State) error) {
	t.Helper()
	ctx, done := context.WithCancel(t.Context())
	defer done()
	st, err := s.Of(ctx, name)
	if err == nil && f != nil {
		err = f(ctx, st)
	}
	if err != nil {
		t.Error(name, err, turnstone.HintOf(err))
	}
}

func mkdir(path string) error { return os.MkdirAll(path, 0o700) }

// contents makes each kind of content in a state.
var contents = map[string]func(ctx context.Context, st *tenants.State) error{
	"session": func(ctx context.Context, st *tenants.State) error {
		_, err := st.Executor.CreateSession(ctx, turnstone.NewSessionID(), "work")
		return err
	},
	"ticket": func(_ context.Context, st *tenants.State) error {
		return st.Turns.Reserve(turns.Ticket{ID: "tk_00000000", Client: channel.NewKeyPair().Public,
			Expires: time.Now().Add(time.Hour)})
	},
	"sandbox": func(_ context.Context, st *tenants.State) error {
		return mkdir(st.Dir.Path("sandboxes", "gvisor-sb_1"))
	},
	"record of a sandbox": func(_ context.Context, st *tenants.State) error {
		dir, err := st.Folder("sandboxes")
		return errors.Join(err, os.WriteFile(filepath.Join(dir, "sb_1.json"), []byte("{}"), 0o600))
	},
	"snapshot": func(_ context.Context, st *tenants.State) error {
		dir, err := st.Folder("snapshots", "snap_1")
		return errors.Join(err, mkdir(dir))
	},
	"home":    func(_ context.Context, st *tenants.State) error { return mkdir(st.Dir.Path("homes", "h")) },
	"machine": func(_ context.Context, st *tenants.State) error { return mkdir(st.Dir.Path("machines", "m")) },
	"file of a later version": func(_ context.Context, st *tenants.State) error {
		return os.WriteFile(st.Dir.Path("novelties"), nil, 0o600)
	},
	"template": func(ctx context.Context, st *tenants.State) error {
		_, err := st.Templates.Tag(ctx, "base", "mine", false)
		return err
	},
}

// TestForget: a tenant without content is forgotten once no call uses it, also at the next start. One with content of
// any kind is not.
func TestForget(t *testing.T) {
	dir := t.TempDir()
	s := forgetful(t, tenants.Options{Executor: executor.Options{Dir: dir}})
	var names []string
	for kind, put := range contents {
		name := fmt.Sprintf("t%d", len(names))
		t.Logf("%s has a %s", name, kind)
		visit(t, s, name, put)
		names = append(names, name)
	}
	visit(t, s, "empty", func(_ context.Context, st *tenants.State) error { // a turn's ticket that is over
		return st.Turns.Reserve(turns.Ticket{ID: "tk_00000000", Client: channel.NewKeyPair().Public,
			Expires: time.Now().Add(-48 * time.Hour)})
	})
	busy, done := context.WithCancel(t.Context())
	if _, err := s.Of(busy, "busy"); err != nil {
		t.Fatal(err)
	}
	names = append(names, "busy", auth.OperatorTenant)
	known(t, s, "empty", names)
	done()
	names = slices.DeleteFunc(names, func(n string) bool { return n == "busy" })
	known(t, s, "busy", names)
	left, err := os.ReadDir(filepath.Join(dir, "tenants", "empty"))
	for _, e := range left {
		if e.Name() != "keys" && e.Name() != "store-id" {
			t.Errorf("%s is left of a tenant without content", e.Name())
		}
	}
	if err != nil {
		t.Error(err)
	}
	key := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(dir, "tenants", name, "keys", "node.pub"))
		return string(b)
	}
	before := key("empty")
	visit(t, s, "empty", contents["session"]) // it comes back, and stays
	if after := key("empty"); after != before || after == "" {
		t.Errorf("a tenant that came back has the key %q, it was %q", after, before)
	}
	visit(t, s, "idle", nil)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := forgetful(t, tenants.Options{Executor: executor.Options{Dir: dir}})
	known(t, again, "idle", append(names, "empty"))
}

// known waits until a tenant is forgotten, and checks that the others are not.
func known(t *testing.T, s *tenants.Set, gone string, names []string) {
	t.Helper()
	for until := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		s.Forget()
		if _, err := s.Known(gone); turnstone.KindOf(err) == turnstone.KindNotFound {
			break
		} else if time.Now().After(until) {
			entries, _ := os.ReadDir(filepath.Join(s.Root(), "tenants", gone))
			t.Fatalf("%s is not forgotten: %v; it has %v", gone, err, entries)
		}
	}
	for _, name := range names {
		if _, err := s.Known(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestForgottenMakeRoom: a node has so many tenants at one time, not ever.
func TestForgottenMakeRoom(t *testing.T) {
	s := forgetful(t, tenants.Options{Executor: executor.Options{Dir: t.TempDir()}, Tenants: 3})
	visit(t, s, "kept", contents["session"])
	for i := range 10 {
		name := fmt.Sprintf("t%d", i)
		for until := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) { // until the last visit's end is seen
			ctx, done := context.WithCancel(t.Context())
			_, err := s.Of(ctx, name)
			done()
			if err == nil {
				break
			}
			if turnstone.KindOf(err) != turnstone.KindExhausted || time.Now().After(until) {
				t.Fatal(name, err)
			}
		}
	}
	if _, err := s.Known("kept"); err != nil {
		t.Error(err)
	}
}

// TestForgottenInABucket: a tenant that comes back has its place in the bucket again.
func TestForgottenInABucket(t *testing.T) {
	addr := s3test.Server(t, "../../../store/blob/s3/testserver")
	s3test.Bucket(t, addr, "turns")
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://"+addr)
	t.Setenv("AWS_REGION", "us-east-1")
	s := forgetful(t, tenants.Options{Executor: executor.Options{Dir: t.TempDir(), Store: "s3://turns/a/"}})
	for range 2 {
		visit(t, s, "ada", func(ctx context.Context, st *tenants.State) error {
			made, err := st.Executor.CreateSession(ctx, turnstone.NewSessionID(), "work")
			if err != nil {
				return err
			}
			_, err = st.Executor.RemoveSession(ctx, string(made.ID))
			return err
		})
		known(t, s, "ada", []string{auth.OperatorTenant})
	}
}

// TestForgetBesideCalls: what a call makes is there after it, however often tenants are forgotten meanwhile.
func TestForgetBesideCalls(t *testing.T) {
	s := forgetful(t, tenants.Options{Executor: executor.Options{Dir: t.TempDir()}})
	stop := make(chan struct{})
	var forgetting, calls sync.WaitGroup
	forgetting.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				s.Forget()
			}
		}
	})
	for i := range 3 {
		calls.Go(func() {
			name := fmt.Sprintf("t%d", i)
			for range 5 { // comes, makes nothing, and goes
				visit(t, s, name, func(ctx context.Context, st *tenants.State) error {
					_, err := st.Executor.Sessions(ctx)
					return err
				})
			}
			visit(t, s, name, contents["session"])
			visit(t, s, name, func(ctx context.Context, st *tenants.State) error {
				_, err := st.Executor.Session(ctx, "work")
				return err
			})
		})
	}
	calls.Wait()
	close(stop)
	forgetting.Wait()
}
