package agewrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"filippo.io/age/plugin"

	"turnstone.dev/turnstone"
)

// testPlugin is the name of a plugin, which is the test's program under another name.
const testPlugin = "turntest"

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "age-plugin-"+testPlugin {
		os.Exit(runPlugin())
	}
	os.Exit(m.Run())
}

// runPlugin is a plugin whose identities hold one of X25519, or what the plugin does instead.
func runPlugin() int {
	p, err := plugin.New(testPlugin)
	if err != nil {
		return 1
	}
	id := func(data []byte) (*age.X25519Identity, error) {
		switch string(data) {
		case "hang": // as if it waited for a touch, until the test has ended
			_, _ = io.Copy(io.Discard, os.Stdin)
			return nil, errors.New("the test has ended")
		case "fail":
			return nil, errors.New("the token is locked, its secret is MARKERMARKERMARKERMARKERMARKER")
		case "die":
			os.Exit(3)
		}
		return age.ParseX25519Identity(string(data))
	}
	p.HandleIdentity(func(data []byte) (age.Identity, error) { return id(data) })
	p.HandleIdentityAsRecipient(func(data []byte) (age.Recipient, error) {
		one, err := id(data)
		if err != nil {
			return nil, err
		}
		return one.Recipient(), nil
	})
	p.HandleRecipient(func(data []byte) (age.Recipient, error) {
		return age.ParseX25519Recipient(string(data))
	})
	return p.Main()
}

// install puts the plugin into PATH.
func install(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(self, filepath.Join(dir, "age-plugin-"+testPlugin)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
	t.Setenv("AGEDEBUG", "")
}

// identities returns the wrapper of a file with an identity of the plugin.
func identities(t *testing.T, data, recipient string) *Identities {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ids")
	if err := os.WriteFile(path, []byte(plugin.EncodeIdentity(testPlugin, []byte(data))+"\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	w, err := LoadIdentities(path, recipient, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestPlugin(t *testing.T) {
	install(t)
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	w := identities(t, id.String(), "")
	one := wrap(t, w)
	if !strings.HasPrefix(one.Name, "age-plugin-turntest:") || strings.Contains(one.Name, "AGE-") {
		t.Errorf("the name is %s", one.Name)
	}
	unwraps(t, w, one)
	recipient := plugin.EncodeRecipient(testPlugin, []byte(id.Recipient().String()))
	named := identities(t, id.String(), recipient)
	two := wrap(t, named)
	if two.Name != recipient {
		t.Errorf("the name is %s", two.Name)
	}
	unwraps(t, w, two)
	recovery, err := NewRecipients([]string{recipient}, nil)
	if err != nil {
		t.Fatal(err)
	}
	unwraps(t, w, wrap(t, recovery))
	other, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := identities(t, other.String(), "").Unwrap(t.Context(), someID, one); turnstone.KindOf(err) !=
		turnstone.KindNotFound {
		t.Errorf("another identity: %v", err)
	}
}

func TestPluginFails(t *testing.T) {
	install(t)
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	one := wrap(t, identities(t, id.String(), ""))
	for data, want := range map[string]string{"fail": "failed: ", "die": "failed: "} {
		w := identities(t, data, "")
		_, wrapErr := w.Wrap(t.Context(), someID, marker)
		_, unwrapErr := w.Unwrap(t.Context(), someID, one)
		for _, err := range []error{wrapErr, unwrapErr} {
			if turnstone.KindOf(err) != turnstone.KindUnavailable || turnstone.HintOf(err) == "" ||
				!strings.Contains(err.Error(), "age-plugin-turntest: "+want) ||
				strings.Contains(err.Error(), "MARKER") {
				t.Errorf("%s: %v", data, err)
			}
		}
	}
	t.Run("AGEDEBUG", func(t *testing.T) {
		t.Setenv("AGEDEBUG", "plugin")
		if _, err := identities(t, id.String(), "").Unwrap(t.Context(), someID, one); turnstone.KindOf(err) !=
			turnstone.KindInvalid || !strings.Contains(err.Error(), "prints keys") {
			t.Errorf("%v", err)
		}
	})
	t.Setenv("PATH", t.TempDir())
	if _, err := identities(t, id.String(), "").Unwrap(t.Context(), someID, one); turnstone.KindOf(err) !=
		turnstone.KindUnavailable || !strings.Contains(err.Error(), "is not installed") {
		t.Errorf("no plugin: %v", err)
	}
}

// TestPluginHangs: callers wait as long as they want, and only a few plugins hang.
func TestPluginHangs(t *testing.T) {
	install(t)
	w := identities(t, "hang", "")
	// On a busy machine a caller's time may end before its plugin starts: as many call as it takes, and two more.
	for more, calls := 0, 0; more < 2; calls++ {
		if n := len(w.run.slots); n == maxRunning {
			more++
		} else if calls == 300 {
			t.Fatalf("%d plugins run after %d calls, want %d", n, calls, maxRunning)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond) //wait: it is meant to expire
		_, err := w.Wrap(ctx, someID, marker)
		cancel()
		if turnstone.KindOf(err) != turnstone.KindTimeout || turnstone.HintOf(err) == "" ||
			!strings.Contains(err.Error(), "does not answer") {
			t.Errorf("%v", err)
		}
	}
	if n := len(w.run.slots); n != maxRunning {
		t.Errorf("%d plugins run", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Wrap(ctx, someID, marker); turnstone.KindOf(err) != turnstone.KindCanceled {
		t.Errorf("a caller that gave up: %v", err)
	}
	if s := fmt.Sprintf("%+v", w.name); strings.Contains(s, "AGE-PLUGIN") {
		t.Errorf("prints %s", s)
	}
}
