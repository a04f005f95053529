package keyring_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/age"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/keyring"
	"turnstone.dev/turnstone/internal/keyring/agewrap"
	"turnstone.dev/turnstone/internal/statedir"
)

// names returns the wrappings of a domain as text.
func names(t *testing.T, r *keyring.Ring, id keyring.ID) string {
	t.Helper()
	rec, err := r.Table().Get(id)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, w := range rec.Wrappings {
		all = append(all, w.String())
	}
	return strings.Join(all, " ")
}

func TestRotate(t *testing.T) {
	dir := stateDir(t)
	r, other := open(t, dir), open(t, dir)
	id, key := create(t, r)
	before := names(t, r, id)
	if n := rewrap(t, r); n != 0 {
		t.Errorf("%d changed without a new wrapping key", n)
	}
	name, err := r.Rotate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	same(t, other, id, key)
	if _, err := r.Prune(t.Context()); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("a wrapping key in use is pruned: %v", err)
	}
	if n := rewrap(t, other); n != 1 || names(t, r, id) != "file "+name {
		t.Errorf("%d changed, from %s to %s", n, before, names(t, r, id))
	}
	gone, err := r.Prune(t.Context())
	if err != nil || len(gone) != 1 || "file "+gone[0] != before {
		t.Errorf("pruned %v, %v", gone, err)
	}
	same(t, open(t, dir), id, key)
	same(t, other, id, key)
}

// recoverable adds a recovery recipient to options.
func recoverable(t *testing.T, id *age.X25519Identity) func(*keyring.Options) {
	t.Helper()
	by, err := agewrap.NewRecipients([]string{id.Recipient().String()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return func(o *keyring.Options) { o.Recovery = by }
}

func identity(t *testing.T) *age.X25519Identity {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestRecovery: a recovery recipient is added and removed by Rewrap, and its identity recovers what
// a lost keyring wrapped.
func TestRecovery(t *testing.T) {
	dir := stateDir(t)
	id, key := create(t, open(t, dir))
	one := identity(t)
	r := open(t, dir, recoverable(t, one))
	if n := rewrap(t, r); n != 1 || !strings.HasSuffix(names(t, r, id), " recovery "+one.Recipient().String()) {
		t.Fatalf("%d changed: %s", n, names(t, r, id))
	}
	if _, err := r.Rotate(t.Context()); err != nil { // keeps the recovery wrapping
		t.Fatal(err)
	}
	if n := rewrap(t, r); n != 1 || !strings.Contains(names(t, r, id), " recovery ") {
		t.Fatalf("%d changed: %s", n, names(t, r, id))
	}
	other, otherKey := create(t, r)

	if err := os.Remove(dir.Path("keys", "rest")); err != nil {
		t.Fatal(err)
	}
	r = open(t, dir, recoverable(t, one))
	_, err := r.Open(t.Context(), id)
	if turnstone.KindOf(err) != turnstone.KindNotFound || !strings.Contains(err.Error(), "lost") ||
		!strings.Contains(turnstone.HintOf(err), "turn domain recover") {
		t.Errorf("a lost keyring: %v", err)
	}
	file := dir.Path("recovery")
	if err := os.WriteFile(file, []byte(identity(t).String()), 0o600); err != nil {
		t.Fatal(err)
	}
	by, err := agewrap.LoadIdentities(file, "", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Recover(t.Context(), id, by); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Errorf("another identity: %v", err)
	}
	if err := os.WriteFile(file, []byte(one.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if by, err = agewrap.LoadIdentities(file, "", nil, nil); err != nil {
		t.Fatal(err)
	}
	for id, key := range map[keyring.ID][]byte{id: key, other: otherKey} {
		if err := r.Recover(t.Context(), id, by); err != nil {
			t.Fatal(err)
		}
		same(t, open(t, dir), id, key)
	}
	if n := rewrap(t, open(t, dir)); n != 2 || strings.Contains(names(t, r, id), "recovery") {
		t.Errorf("%d changed: %s", n, names(t, r, id))
	}
	if err := r.Recover(t.Context(), id, by); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Errorf("without a recovery wrapping: %v", err)
	}
}

// TestRewrapGoesOn: a domain whose key cannot be unwrapped does not stop the others.
func TestRewrapGoesOn(t *testing.T) {
	dir := stateDir(t)
	r := open(t, dir)
	bad, _ := create(t, r)
	good, key := create(t, r)
	if err := os.WriteFile(dir.Path(keyring.Folder, bad.String()+".json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	results := map[keyring.ID]string{}
	err := r.Rewrap(t.Context(), func(id keyring.ID, changed bool, err error) error {
		results[id] = fmt.Sprint(changed, " ", turnstone.KindOf(err))
		return nil
	})
	if err != nil || results[bad] != "false integrity" || results[good] != "true internal" {
		t.Errorf("%v, %v", results, err)
	}
	same(t, r, good, key)
	var listed []string
	if err := r.List(t.Context(), func(s keyring.Status) error {
		listed = append(listed, fmt.Sprint(s.ID == bad, s.Current, s.Err != nil))
		return nil
	}); err != nil || len(listed) != 2 {
		t.Errorf("%v, %v", listed, err)
	}
}

// TestAtTheSameTime: keys are made, opened, rotated, wrapped again, pruned and shredded by several
// processes at one time, and none is lost.
func TestAtTheSameTime(t *testing.T) {
	dir := stateDir(t)
	const each = 12
	var mu sync.Mutex
	all := map[keyring.ID][]byte{}
	var makers, rotators sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for range 2 {
		r := open(t, dir)
		makers.Go(func() {
			for n := range each {
				id, key := create(t, r)
				same(t, open(t, dir), id, key)
				if n%3 == 0 {
					if err := r.Shred(t.Context(), id); err != nil {
						t.Error(err)
					}
					continue
				}
				mu.Lock()
				all[id] = key
				mu.Unlock()
			}
		})
		rotator := open(t, dir)
		rotators.Go(func() {
			for ctx.Err() == nil {
				if _, err := rotator.Rotate(t.Context()); err != nil {
					t.Error(err)
				}
				_ = rotator.Rewrap(t.Context(), func(_ keyring.ID, _ bool, err error) error {
					if err != nil {
						t.Error(err)
					}
					return nil
				})
				// refused if a key was wrapped with an older one meanwhile
				if _, err := rotator.Prune(t.Context()); err != nil &&
					turnstone.KindOf(err) != turnstone.KindInvalid {
					t.Error(err)
				}
			}
		})
	}
	makers.Wait()
	stop()
	rotators.Wait()
	r := open(t, dir)
	for id, key := range all {
		same(t, r, id, key)
	}
	if ids, err := r.Table().List(); err != nil || len(ids) != len(all) {
		t.Errorf("%d domains instead of %d: %v", len(ids), len(all), err)
	}
}

// TestMain is also the process that TestKilled kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv("KEYRING_TEST_ROTATE"); dir != "" {
		os.Exit(rotateForever(dir))
	}
	os.Exit(m.Run())
}

// rotateForever rotates and prunes until its process is killed.
func rotateForever(root string) int {
	dir, err := statedir.Open(root)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	r, err := keyring.New(keyring.Options{Dir: dir, Primary: keyring.KindFile,
		Wrappers: map[keyring.Kind]keyring.Wrapper{
			keyring.KindFile: agewrap.NewFile(dir, nil, nil)}})
	for err == nil {
		fmt.Println("round")
		if _, err = r.Rotate(context.Background()); err != nil {
			break
		}
		err = r.Rewrap(context.Background(), func(_ keyring.ID, _ bool, err error) error { return err })
		if err == nil {
			_, err = r.Prune(context.Background())
		}
		if turnstone.KindOf(err) == turnstone.KindInvalid {
			err = nil // pruned too early: impossible, because this process is alone
			fmt.Println("not pruned")
			return 1
		}
	}
	fmt.Println(err)
	return 1
}

// TestKilled: a rotation that is killed at any step leaves every key readable, and the next one
// completes it.
func TestKilled(t *testing.T) {
	dir := stateDir(t)
	r := open(t, dir)
	all := map[keyring.ID][]byte{}
	for range 5 {
		id, key := create(t, r)
		all[id] = key
	}
	for n := range 15 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "KEYRING_TEST_ROTATE="+dir.Root)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		if !lines.Scan() || lines.Text() != "round" {
			t.Fatalf("printed %q", lines.Text())
		}
		time.Sleep(time.Duration(n) * 3 * time.Millisecond) // any moment will do
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() {
			if lines.Text() != "round" {
				t.Errorf("printed %q", lines.Text())
			}
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != -1 {
			t.Fatalf("was not killed: %v", err)
		}
		fresh := open(t, dir)
		for id, key := range all {
			same(t, fresh, id, key)
		}
	}
	rewrap(t, r)
	if _, err := r.Prune(t.Context()); err != nil {
		t.Error(err)
	}
	for id, key := range all {
		same(t, open(t, dir), id, key)
		if err := r.Check(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
}

// TestUnknownKind: a record that is wrapped by what the settings do not have says so.
func TestUnknownKind(t *testing.T) {
	dir := stateDir(t)
	file := agewrap.NewFile(dir, nil, nil)
	r := open(t, dir, func(o *keyring.Options) { o.Wrappers[keyring.KindVault] = file })
	o, err := r.CreateBy(t.Context(), keyring.KindVault, file)
	if err != nil {
		t.Fatal(err)
	}
	o.Close()
	_, err = open(t, dir).Open(t.Context(), o.ID())
	if turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(err.Error(), "wrapped by vault age1") || turnstone.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	// the settings changed from the one kind to the other, and have both
	if n := rewrap(t, r); n != 1 || !strings.HasPrefix(names(t, r, o.ID()), "file ") {
		t.Errorf("%d changed: %s", n, names(t, r, o.ID()))
	}
}
