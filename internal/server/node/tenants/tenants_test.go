package tenants_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/remote/atnode"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/node"
	"turnstone.dev/turnstone/internal/server/node/rights"
	"turnstone.dev/turnstone/internal/server/node/tenants"
	"turnstone.dev/turnstone/internal/server/node/turns"
	"turnstone.dev/turnstone/internal/store/blob/s3/s3test"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/wire"
)

func open(t *testing.T, dir string, most int) *tenants.Set {
	t.Helper()
	s, err := tenants.Open(t.Context(), tenants.Options{Executor: executor.Options{Dir: dir},
		Tenants: most})
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

// TestTenantsInABucket: each tenant's objects have a place of their own in the bucket of the
// operator's, whose garbage collection does not know the turns of others.
func TestTenantsInABucket(t *testing.T) {
	addr := s3test.Server(t, "../../../store/blob/s3/testserver")
	s3test.Bucket(t, addr, "turns")
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://"+addr)
	t.Setenv("AWS_REGION", "us-east-1")
	s, err := tenants.Open(t.Context(), tenants.Options{Executor: executor.Options{Dir: t.TempDir(),
		Store: "s3://turns/a/"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{auth.OperatorTenant, "ada", "bob"} {
		st := state(t, s, name)
		if _, err := st.Executor.CreateSession(t.Context(), turnstone.NewSessionID(),
			"work"); err != nil {
			t.Fatal(name, err, turnstone.HintOf(err))
		}
		if r, err := st.Executor.Fsck(t.Context()); err != nil || !r.OK() {
			t.Fatal(name, r, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, place := range []string{"s3://turns/a", "s3://turns/a/tenants/ada",
		"s3://turns/a/tenants/bob"} { // another state directory: each place has an owner
		x, err := executor.Open(t.Context(), executor.Options{Dir: t.TempDir(), Store: place})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := x.Sessions(t.Context()); turnstone.KindOf(err) != turnstone.KindUnavailable {
			t.Errorf("%s belongs to nobody: %v", place, err)
		}
		_ = x.Close()
	}
}

func state(t *testing.T, s *tenants.Set, name string) *tenants.State {
	t.Helper()
	st, err := s.Of(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// TestState: each tenant has state of its own, which is found again.
func TestState(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 3)
	local, ada := state(t, s, auth.OperatorTenant), state(t, s, "ada")
	if local.Dir.Root != dir || !local.Operator() || ada.Operator() ||
		ada.Dir.Root != filepath.Join(dir, "tenants", "ada") {
		t.Fatal(local.Dir.Root, ada.Dir.Root)
	}
	if state(t, s, "ada") != ada {
		t.Fatal("the state was opened twice")
	}
	if _, err := s.Known("bob"); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Fatal(err)
	}
	ticket := turns.Ticket{ID: "tk_00000000", Client: channel.NewKeyPair().Public,
		Expires: time.Now().Add(time.Hour)}
	if err := ada.Turns.Reserve(ticket); err != nil {
		t.Fatal(err)
	}
	made, err := ada.Executor.CreateSession(t.Context(), turnstone.NewSessionID(), "work")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, dir, 3)
	ada, err = again.Known("ada")
	if err != nil {
		t.Fatal(err)
	}
	if i, err := ada.Turns.Get(ticket.ID); err != nil || i.Client != ticket.Client {
		t.Fatalf("%+v %v", i, err)
	}
	if g, err := ada.Executor.Session(t.Context(), "work"); err != nil || g.Session.ID != made.ID {
		t.Fatalf("%+v %v", g, err)
	}
	local = state(t, again, auth.OperatorTenant)
	if _, err := local.Turns.Get(ticket.ID); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Fatal(err)
	}
	if _, err := local.Executor.Session(t.Context(), string(made.ID)); turnstone.KindOf(err) !=
		turnstone.KindNotFound {
		t.Fatal(err)
	}
	state(t, again, "bob")
	if _, err := again.Of(t.Context(), "eve"); turnstone.KindOf(err) != turnstone.KindExhausted {
		t.Fatal(err)
	}
}

// TestNames: a tenant's name is no path.
func TestNames(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	for _, name := range []string{"", ".", "..", "../x", "a/b", ".hidden", "a\x00b", "ä",
		"0123456789012345678901234567890123456789012345678901234567890123456789"} {
		if _, err := s.Of(t.Context(), name); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "tenants")); !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
}

// TestNobodyReadsImages: a tenant that comes changes nothing for those who have the image of a template:
// each finds its stamp fresh. Here a reader would find the image damaged.
func TestNobodyReadsImages(t *testing.T) {
	dir := t.TempDir()
	built := template.NewStore(filepath.Join(dir, "templates"))
	spec, err := built.Spec("base")
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(dir, "templates", spec.Digest().Hex())
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(folder, "root.erofs")
	if err := os.WriteFile(image, []byte("an image"), 0o600); err != nil {
		t.Fatal(err)
	}
	stamp, err := filestamp.Quick(image)
	if err != nil {
		t.Fatal(err)
	}
	stamp.Digest = turnstone.DigestBytes([]byte("other content"))
	manifest, err := json.Marshal(map[string]any{"format": 1, "digest": spec.Digest(), "root": stamp})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "manifest.json"), manifest, 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir, 0)
	names := []string{auth.OperatorTenant, "ada", "bob", "eve"}
	for i := range names {
		state(t, s, names[i])
		for _, name := range names[:i+1] {
			if err := state(t, s, name).Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got, err := state(t, s, name).Templates.Image(t.Context(), stamp.Digest); err != nil {
				t.Errorf("%s came: %s has %q, %v", names[i], name, got, err)
			}
		}
	}
}

// TestShared: all tenants sign with the node's key, and follow the operator's configuration, also
// when it changes.
func TestShared(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	ada := state(t, s, "ada")
	for _, file := range []string{"keys/node", "keys/node.pub"} {
		a, err := os.Stat(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.Stat(ada.Dir.Path(file)); err != nil || !os.SameFile(a, b) {
			t.Errorf("%s: %v", file, err)
		}
	}
	if on, err := ada.Executor.DefaultNetwork(); err != nil || !on {
		t.Fatal(on, err)
	}
	config := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(config, []byte("[network]\ndefault = \"off\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ada.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if on, err := ada.Executor.DefaultNetwork(); err != nil || on {
		t.Fatal(on, err)
	}
	if granted, err := ada.OpensNetwork(); err != nil || granted {
		t.Fatal(granted, err)
	}
	if err := os.WriteFile(config, []byte("no TOML ["), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ada.Refresh(t.Context()); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Fatal("a configuration that cannot be read", err)
	}
	if err := os.Remove(config); err != nil {
		t.Fatal(err)
	}
	if err := ada.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if on, err := ada.Executor.DefaultNetwork(); err != nil || !on {
		t.Fatal(on, err)
	}
}

// TestCommands: a channel works in the state of the tenant that its statement was made for.
func TestCommands(t *testing.T) {
	s := open(t, t.TempDir(), 0)
	if err := s.Commands(t.Context(), wire.NewDispatcher(), node.Peer{Tenant: "../x"}); turnstone.KindOf(err) !=
		turnstone.KindInvalid {
		t.Fatal(err)
	}
	if err := s.Commands(t.Context(), wire.NewDispatcher(), node.Peer{Tenant: "ada"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Known("ada"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Holding(turnstone.NewSandboxID()); turnstone.KindOf(err) !=
		turnstone.KindNotFound {
		t.Fatal(err)
	}
}

// TestDrain: a node that is about to end starts no turn and no command that may run one.
func TestDrain(t *testing.T) {
	s := open(t, t.TempDir(), 0)
	d := wire.NewDispatcher()
	operator := auth.Operator("0")
	if err := s.Commands(t.Context(), d, node.Peer{Tenant: operator.Tenant, Operator: true,
		Rights: rights.Of(operator.Tenant, operator)}); err != nil {
		t.Fatal(err)
	}
	near, far := net.Pipe()
	conn := wire.NewConn(far, wire.Options{Dispatcher: d})
	defer func() { _ = conn.Close(); conn.Wait() }()
	c := wire.NewClient(near)
	defer func() { _ = c.Close(); c.Wait() }()
	x := &atnode.Executor{Last: filepath.Join(t.TempDir(), "last"),
		Dial: func(context.Context) (*wire.Client, error) { return c, nil }}
	if _, err := x.Fsck(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Fsck(t.Context()); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("%s: %v", turnstone.KindOf(err), err)
	}
	if _, err := x.Sessions(t.Context()); err != nil {
		t.Errorf("what is read is refused: %v", err)
	}
	if _, err := s.Of(t.Context(), "new"); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("a new tenant: %v", err)
	}
}

// TestFull: the disk of a server is full when it has less room than its configuration keeps free.
func TestFull(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	for _, text := range []string{"0", "1000T", "1"} {
		want := text == "1000T"
		conf := "[limits]\nfree_space = \"" + text + "\"\n"
		if err := os.WriteFile(filepath.Join(dir, config.File), []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := s.Full(); got != want {
			t.Errorf("with %s to keep free: %t", text, got)
		}
	}
}
