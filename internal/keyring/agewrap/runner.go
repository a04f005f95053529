package agewrap

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"time"
	"unicode"

	"filippo.io/age"
	"filippo.io/age/plugin"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/keyring"
)

// maxRunning bounds the plugins that run at one time for one wrapper.
const maxRunning = 4

// longest bounds how long a caller waits for a plugin, whose user may have to find a token.
const longest = 2 * time.Minute

// A runner runs age for identities and recipients that may be those of plugins. A plugin is a
// program of its own that may wait for its user and that age does not end: a caller whose context
// ends leaves it running, and no more than maxRunning run.
type runner struct{ slots chan struct{} }

func newRunner() *runner { return &runner{make(chan struct{}, maxRunning)} }

func (r *runner) encrypt(ctx context.Context, to []age.Recipient, s keyring.Secret) ([]byte,
	error) {
	if name := pluginOf(to); name != "" {
		mine := keyring.Secret(bytes.Clone(s)) // the caller erases s when its context ends
		return r.run(ctx, name, func() ([]byte, error) {
			defer mine.Erase()
			return encrypt(to, mine)
		})
	}
	data, err := encrypt(to, s)
	if err != nil {
		return nil, turnstone.NewError("keyring.wrap", turnstone.KindInternal, "", err)
	}
	return data, nil
}

func (r *runner) decrypt(ctx context.Context, by []age.Identity, data []byte) (keyring.Secret,
	error) {
	if name := pluginOf(by); name != "" {
		return r.run(ctx, name, func() ([]byte, error) { return decrypt(by, data) })
	}
	return decrypt(by, data)
}

// pluginOf returns the name of the first plugin in a list; empty: there is none.
func pluginOf[T any](list []T) string {
	for _, one := range list {
		if p, ok := any(one).(interface{ Name() string }); ok {
			return p.Name()
		}
	}
	return ""
}

// run calls f, which runs the plugin called name.
func (r *runner) run(ctx context.Context, name string, f func() ([]byte, error)) ([]byte, error) {
	subject := "age-plugin-" + name
	if os.Getenv("AGEDEBUG") != "" {
		return nil, turnstone.Errorf("keyring.age", turnstone.KindInvalid, subject,
			"AGEDEBUG is set, which prints keys on standard error").WithHint("unset AGEDEBUG")
	}
	late := func() ([]byte, error) {
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil, turnstone.NewError("keyring.age", turnstone.KindCanceled, subject, ctx.Err())
		}
		return nil, turnstone.Errorf("keyring.age", turnstone.KindTimeout, subject, "does not answer").
			WithHint("the plugin may wait for a touch or a PIN: see whether its device is there")
	}
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	select {
	case r.slots <- struct{}{}:
	case <-ctx.Done():
		return late()
	}
	type result struct {
		b   []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		defer func() { <-r.slots }()
		b, err := f()
		done <- result{b, err}
	}()
	select {
	case res := <-done:
		return res.b, pluginError(subject, res.err)
	case <-ctx.Done():
		go func() { clear((<-done).b) }()
		return late()
	}
}

// pluginError types the error of a plugin. An error that age has a type for stays.
func pluginError(subject string, err error) error {
	var none *age.NoIdentityMatchError
	var missing *plugin.NotFoundError
	switch {
	case err == nil, errors.As(err, &none):
		return err
	case errors.As(err, &missing):
		return turnstone.Errorf("keyring.age", turnstone.KindUnavailable, subject,
			"is not installed").WithHint("install the program " + subject + " in PATH")
	}
	return turnstone.Errorf("keyring.age", turnstone.KindUnavailable, subject, "failed: %s",
		harmless(err.Error())).WithHint("try the plugin with age -d -i on a file of your own")
}

// harmless returns the beginning of a plugin's message, without words that may be a key.
func harmless(message string) string {
	const most, longest = 200, 24
	message = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, message)
	words := strings.Fields(message)
	for i, w := range words {
		if len(w) > longest {
			words[i] = "[…]"
		}
	}
	message = strings.Join(words, " ")
	if len(message) > most {
		message = strings.ToValidUTF8(message[:most], "")
	}
	return message
}
