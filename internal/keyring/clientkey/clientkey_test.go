package clientkey_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/keyring"
	"turnstone.dev/turnstone/internal/keyring/clientkey"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/seal"
)

func ring(t *testing.T, root string, h *clientkey.Holder) *keyring.Ring {
	t.Helper()
	r, err := keyring.New(keyring.Options{Dir: &statedir.Dir{Root: root}, Primary: keyring.KindClient,
		Wrappers: map[keyring.Kind]keyring.Wrapper{keyring.KindClient: h}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func give(t *testing.T, h *clientkey.Holder, key keyring.Key) string {
	t.Helper()
	name, err := h.Give(key)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func create(t *testing.T, r *keyring.Ring, h *clientkey.Holder, name string) *keyring.Opened {
	t.Helper()
	o, err := r.CreateBy(t.Context(), keyring.KindClient, h.By(name))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// locked reports a domain that opens, or whose error does not say what is missing.
func locked(t *testing.T, r *keyring.Ring, id keyring.ID) {
	t.Helper()
	o, err := r.Open(t.Context(), id)
	if !errors.Is(err, keyring.ErrLocked) || turnstone.KindOf(err) != turnstone.KindUnavailable ||
		turnstone.HintOf(err) == "" {
		t.Errorf("a locked domain: %v, %v", o, err)
	}
}

func TestForgottenWhenIdle(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := clientkey.New(clientkey.Options{Idle: 10 * time.Minute})
		r := ring(t, root, h)
		defer r.Close()
		key := seal.NewKey()
		name := give(t, h, key)
		if strings.Contains(name, fmt.Sprintf("%x", key.Bytes()[:4])) {
			t.Errorf("the name %s shows the key", name)
		}
		o := create(t, r, h, name)
		secret := o.Key()
		want := secret.Bytes()

		time.Sleep(24 * time.Hour) // a turn that runs for a day keeps the key
		again, err := r.Open(t.Context(), o.ID())
		if err != nil {
			t.Fatal(err)
		}
		again.Close()
		o.Close()
		time.Sleep(9 * time.Minute)
		if again, err = r.Open(t.Context(), o.ID()); err != nil { // idle for 9 min
			t.Fatal(err)
		}
		again.Close()
		time.Sleep(9 * time.Minute)
		give(t, h, key) // sending the key again is a use
		time.Sleep(9 * time.Minute)
		if again, err = r.Open(t.Context(), o.ID()); err != nil {
			t.Fatal(err)
		}
		again.Close()
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		if !bytes.Equal(secret.Bytes(), make([]byte, seal.KeySize)) {
			t.Error("the domain's key is in memory after the client's key was forgotten")
		}
		locked(t, r, o.ID())
		if _, err := r.CreateBy(t.Context(), keyring.KindClient, h.By(name)); !errors.Is(err,
			keyring.ErrLocked) {
			t.Errorf("a new domain with a forgotten key: %v", err)
		}
		give(t, h, seal.NewKey()) // another client's
		locked(t, r, o.ID())
		if give(t, h, key) != name {
			t.Error("the name changed")
		}
		if again, err = r.Open(t.Context(), o.ID()); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again.Key().Bytes(), want) {
			t.Error("another key")
		}
		again.Close()
	})
}

// TestForget: a client ends the loan at once, and a turn that runs goes on.
func TestForget(t *testing.T) {
	h := clientkey.New(clientkey.Options{})
	r := ring(t, t.TempDir(), h)
	key := seal.NewKey()
	name := give(t, h, key)
	o := create(t, r, h, name)
	secret := o.Key()
	h.Forget(name)
	h.Forget(name)
	zero := make([]byte, seal.KeySize)
	if bytes.Equal(secret.Bytes(), zero) {
		t.Error("the key of a running turn was erased")
	}
	locked(t, r, o.ID())
	o.Close()
	if !bytes.Equal(secret.Bytes(), zero) {
		t.Error("the key is in memory after its last use")
	}
	if bytes.Equal(key.Bytes(), zero) {
		t.Error("the caller's key was erased")
	}
	if _, err := r.Create(t.Context()); !errors.Is(err, keyring.ErrLocked) {
		t.Errorf("a new domain without a client: %v", err)
	}
}

// TestChosen: new keys are wrapped with the key that the context names, and with no other.
func TestChosen(t *testing.T) {
	h := clientkey.New(clientkey.Options{})
	r := ring(t, t.TempDir(), h)
	one := give(t, h, seal.NewKey())
	give(t, h, seal.NewKey())
	o, err := r.Create(clientkey.With(t.Context(), one))
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	rec, err := r.Table().Get(o.ID())
	if err != nil || len(rec.Wrappings) != 1 || rec.Wrappings[0].Name != one {
		t.Errorf("%+v %v", rec, err)
	}
	if _, err := r.Create(t.Context()); !errors.Is(err, keyring.ErrLocked) ||
		turnstone.HintOf(err) == "" {
		t.Errorf("without a client: %v", err)
	}
	h.Forget(one)
	if _, err := r.Create(clientkey.With(t.Context(), one)); !errors.Is(err, keyring.ErrLocked) {
		t.Errorf("with a key that was forgotten: %v", err)
	}
}

// TestAnotherKey: what one client's key wraps, no other one unwraps.
func TestAnotherKey(t *testing.T) {
	h := clientkey.New(clientkey.Options{})
	one := give(t, h, seal.NewKey())
	two := give(t, h, seal.NewKey())
	id := keyring.ID{1}
	secret := []byte("MARKERMARKERMARKERMARKERMARKER!!")
	w, err := h.By(one).Wrap(t.Context(), id, bytes.Clone(secret))
	if err != nil || bytes.Contains(w.Data, secret[:6]) {
		t.Fatalf("%v, %q", err, w.Data)
	}
	if s, err := h.Unwrap(t.Context(), id, w); err != nil || !bytes.Equal(s, secret) {
		t.Fatalf("%v", err)
	}
	bad := map[string]func(*keyring.Wrapping, *keyring.ID){
		"another key":    func(w *keyring.Wrapping, _ *keyring.ID) { w.Name = two },
		"another domain": func(_ *keyring.Wrapping, id *keyring.ID) { id[0]++ },
		"cut":            func(w *keyring.Wrapping, _ *keyring.ID) { w.Data = w.Data[:10] },
		"changed": func(w *keyring.Wrapping, _ *keyring.ID) {
			w.Data = bytes.Clone(w.Data)
			w.Data[len(w.Data)-1] ^= 1
		},
	}
	for name, change := range bad {
		w, id := w, id
		change(&w, &id)
		if _, err := h.Unwrap(t.Context(), id, w); turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := h.Give(keyring.Key{}); err == nil {
		t.Error("an empty key is taken")
	}
}

// TestBound: more keys than the bound are refused, and the others stay.
func TestBound(t *testing.T) {
	h := clientkey.New(clientkey.Options{Keys: 2})
	key := seal.NewKey()
	name := give(t, h, key)
	give(t, h, seal.NewKey())
	if _, err := h.Give(seal.NewKey()); turnstone.KindOf(err) != turnstone.KindExhausted {
		t.Errorf("%v", err)
	}
	if give(t, h, key) != name {
		t.Error("a key that is there was refused")
	}
	h.Forget(name)
	give(t, h, seal.NewKey())
	if s := fmt.Sprintf("%+v %#v %s", h, h, h.By(name)); strings.Contains(s, "0x") {
		t.Errorf("prints %s", s)
	}
}

// TestManyUses: keys are given, used and forgotten at the same time.
func TestManyUses(t *testing.T) {
	h := clientkey.New(clientkey.Options{Idle: time.Millisecond})
	r := ring(t, t.TempDir(), h)
	key := seal.NewKey()
	var name string
	var release func()
	for release == nil { // the idle time may end before the key is held
		name = give(t, h, key)
		release, _ = h.Hold(name)
	}
	o := create(t, r, h, name)
	want := o.Key().Bytes()
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for range 50 {
				if n == 0 {
					h.Forget(name)
				}
				if _, err := h.Give(key); err != nil {
					t.Error(err)
				}
				got, err := r.Open(t.Context(), o.ID())
				if err != nil {
					if !errors.Is(err, keyring.ErrLocked) {
						t.Error(err)
					}
					continue
				}
				if !bytes.Equal(got.Key().Bytes(), want) {
					t.Error("another key")
				}
				got.Close()
			}
		})
	}
	all.Wait()
	release()
	release()
	o.Close()
}
