// Package clientkey wraps the keys of domains with keys that clients send for a while. A Holder keeps
// such a key in memory alone, as long as something uses it and for an idle time after, and then
// forgets it: until the client sends the key again, nobody can open its domains here.
//
// Wrapping is AES-256-GCM with a random nonce, under a key that HKDF-SHA-256 (RFC 5869) derives from
// the client's key and the domain's ID, with the ID as additional data.
package clientkey

import (
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/keyring"
	"turnstone.dev/turnstone/internal/store/seal"
)

// Options are the settings of a Holder. A zero value selects its default.
type Options struct {
	// Idle is how long a key that nothing uses stays. It is measured with a clock that nobody sets,
	// and that stands still while the machine is suspended. Default: 10 min.
	Idle time.Duration
	// Keys bounds the keys in memory. Default: 10,000.
	Keys int
}

const (
	defaultIdle = 10 * time.Minute
	defaultKeys = 10_000
)

// A Holder has the keys that clients have sent. It is a keyring.Wrapper that unwraps what any of
// these keys has wrapped. Its methods are safe for concurrent use.
type Holder struct {
	idle time.Duration
	most int

	mu     sync.Mutex
	keys   map[string]*held
	forget []func(name string)
}

// held is a key of a client.
type held struct {
	key   keyring.Key
	uses  int
	gone  bool        // forgotten; erased at the end of the last use
	timer *time.Timer // forgets the key; runs while uses is 0
}

// New returns a Holder without keys.
func New(o Options) *Holder {
	if o.Idle == 0 {
		o.Idle = defaultIdle
	}
	if o.Keys == 0 {
		o.Keys = defaultKeys
	}
	return &Holder{idle: o.Idle, most: o.Keys, keys: make(map[string]*held)}
}

// Format implements fmt.Formatter.
func (h *Holder) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "[keys of clients]") }

// Idle returns how long a key that nothing uses stays.
func (h *Holder) Idle() time.Duration { return h.idle }

// Name returns the name of a client's key, which does not show the key.
func Name(key keyring.Key) (string, error) {
	secret := key.Bytes()
	defer clear(secret)
	b, err := hkdf.Key(sha256.New, secret, nil, "turnstone client key: name v1", 16)
	if err != nil {
		return "", turnstone.NewError("keyring.client", turnstone.KindInternal, "", err)
	}
	return "client:" + hex.EncodeToString(b), nil
}

// Give takes a copy of a client's key and returns its name. A key that is there already stays for
// another idle time. The caller erases its own copy.
func (h *Holder) Give(key keyring.Key) (string, error) {
	name, err := Name(key)
	if err != nil {
		return "", err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.keys[name]
	if k == nil {
		if len(h.keys) >= h.most {
			return "", turnstone.Errorf("keyring.client", turnstone.KindExhausted, "keys of clients",
				"%d of them are in use", len(h.keys)).WithHint("try again later")
		}
		k = &held{}
		b := key.Bytes()
		k.key, err = seal.ParseKey(b)
		clear(b)
		if err != nil {
			return "", err
		}
		h.keys[name] = k
	}
	if k.uses == 0 {
		h.wait(name, k)
	}
	return name, nil
}

// wait forgets a key after the idle time, unless it is used before. The caller holds mu.
func (h *Holder) wait(name string, k *held) {
	if k.timer != nil {
		k.timer.Stop()
	}
	var t *time.Timer
	t = time.AfterFunc(h.idle, func() {
		h.mu.Lock()
		late := h.keys[name] != k || k.uses > 0 || k.timer != t
		if !late {
			h.drop(name, k)
		}
		tell := h.forget
		h.mu.Unlock()
		if !late {
			for _, f := range tell {
				f(name)
			}
		}
	})
	k.timer = t
}

// drop forgets a key. The caller holds mu, and then tells those that asked.
func (h *Holder) drop(name string, k *held) {
	delete(h.keys, name)
	k.gone = true
	if k.timer != nil {
		k.timer.Stop()
	}
	if k.uses == 0 {
		k.key.Erase()
	}
}

// Forget forgets a key at once. Those who use it keep it until their end.
func (h *Holder) Forget(name string) {
	h.mu.Lock()
	k := h.keys[name]
	if k != nil {
		h.drop(name, k)
	}
	tell := h.forget
	h.mu.Unlock()
	if k == nil {
		return
	}
	for _, f := range tell {
		f(name)
	}
}

// OnForget implements keyring.Lender.
func (h *Holder) OnForget(f func(name string)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget = append(h.forget[:len(h.forget):len(h.forget)], f)
}

// Hold implements keyring.Lender.
func (h *Holder) Hold(name string) (release func(), err error) {
	_, release, err = h.take(name)
	return release, err
}

// take returns a key, which stays until release. Later calls of release do nothing.
func (h *Holder) take(name string) (key keyring.Key, release func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.keys[name]
	if k == nil {
		return keyring.Key{}, nil, turnstone.Errorf("keyring.client", turnstone.KindUnavailable, name,
			"%w: its client's key is not here", keyring.ErrLocked).
			WithHint("use the client that has the key of this session: turn host seal says which " +
				"key a client sends")
	}
	k.uses++
	if k.timer != nil {
		k.timer.Stop()
		k.timer = nil
	}
	var once sync.Once
	return k.key, func() { once.Do(func() { h.release(name, k) }) }, nil
}

func (h *Holder) release(name string, k *held) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k.uses--
	switch {
	case k.uses > 0:
	case k.gone:
		k.key.Erase()
	default:
		h.wait(name, k)
	}
}

// By returns the wrapper that wraps with the key called name, while the Holder has the key.
func (h *Holder) By(name string) keyring.Wrapper { return borrowed{h, name} }

// borrowed wraps with one key of a Holder.
type borrowed struct {
	*Holder
	name string
}

// Newest implements keyring.Wrapper.
func (b borrowed) Newest(context.Context) (string, error) { return b.name, nil }

// Wrap implements keyring.Wrapper.
func (b borrowed) Wrap(_ context.Context, id keyring.ID, s keyring.Secret) (keyring.Wrapping,
	error) {
	key, release, err := b.take(b.name)
	if err != nil {
		return keyring.Wrapping{}, err
	}
	defer release()
	a, err := sealer(key, id)
	if err != nil {
		return keyring.Wrapping{}, err
	}
	return keyring.Wrapping{Name: b.name, Data: a.Seal(nil, nil, s, id[:])}, nil
}

// chosen is the key of a context with the name of the client's key that wraps new keys.
type chosen struct{}

// With returns a context in which a Holder wraps new keys with the key called name.
func With(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, chosen{}, name)
}

// Chosen returns the name that With put into ctx; empty: none.
func Chosen(ctx context.Context) string {
	name, _ := ctx.Value(chosen{}).(string)
	return name
}

// Newest implements keyring.Wrapper.
func (h *Holder) Newest(ctx context.Context) (string, error) {
	return cmp.Or(Chosen(ctx), "client"), nil
}

// Wrap implements keyring.Wrapper, with the key that With chose. Without one the error is of kind
// Invalid.
func (h *Holder) Wrap(ctx context.Context, id keyring.ID, s keyring.Secret) (keyring.Wrapping,
	error) {
	if name := Chosen(ctx); name != "" {
		return h.By(name).Wrap(ctx, id, s)
	}
	return keyring.Wrapping{}, turnstone.Errorf("keyring.client", turnstone.KindInvalid, "",
		"%w: no client has sent a key that could seal a new session", keyring.ErrLocked).
		WithHint("let each client of the server make one: turn host seal NAME")
}

// Unwrap implements keyring.Wrapper.
func (h *Holder) Unwrap(_ context.Context, id keyring.ID, w keyring.Wrapping) (keyring.Secret,
	error) {
	key, release, err := h.take(w.Name)
	if err != nil {
		return nil, err
	}
	defer release()
	a, err := sealer(key, id)
	if err != nil {
		return nil, err
	}
	s, err := a.Open(nil, nil, w.Data, id[:])
	if err != nil {
		return nil, turnstone.Errorf("keyring.client", turnstone.KindIntegrity, w.Name,
			"what it should unwrap is damaged").
			WithHint("restore the file of the domain below domains/ from a backup")
	}
	return s, nil
}

// sealer returns the AEAD for the key of a domain. It puts its random nonce before the ciphertext.
func sealer(key keyring.Key, id keyring.ID) (cipher.AEAD, error) {
	secret := key.Bytes()
	defer clear(secret)
	b, err := hkdf.Key(sha256.New, secret, id[:], "turnstone client key: wrap v1", seal.KeySize)
	if err != nil {
		return nil, turnstone.NewError("keyring.client", turnstone.KindInternal, "", err)
	}
	defer clear(b)
	block, err := aes.NewCipher(b)
	if err == nil {
		var a cipher.AEAD
		if a, err = cipher.NewGCMWithRandomNonce(block); err == nil {
			return a, nil
		}
	}
	return nil, turnstone.NewError("keyring.client", turnstone.KindInternal, "", err)
}
