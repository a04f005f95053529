package turns_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/kube/control"
	"turnstone.dev/turnstone/internal/kube/kubetest"
	"turnstone.dev/turnstone/internal/kube/turns"
	"turnstone.dev/turnstone/internal/kube/v1alpha1"
)

// inside is set in the process of a test that scripts/test-server started.
const inside = "TURN_TEST_KUBE_TURNS"

// TestMachineTurns runs this test again with a server of its own, whose sandboxes are real.
func TestMachineTurns(t *testing.T) {
	kubetest.Inside(t, "../../..", inside, "[limits]\nrate = 1000\nburst = 1000\n[telemetry]\nlisten = \"127.0.0.1:0\"\n"+
		"[[pools]]\ntenant = \"default\"\ntemplate = \"base\"\nmemory = \"256MiB\"\nmin = 1\nmax = 1\n")
}

// turn runs the program turn as a client of the server.
func (w *world) turn(home, host string, args ...string) string {
	w.Helper()
	cmd := exec.CommandContext(w.Context(), "turn", args...)
	cmd.Env = append(os.Environ(), "TURN_HOME="+home, "TURN_HOST="+host)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		w.Fatalf("turn %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// file writes a file of the test, and returns its path.
func (w *world) file(name, text string) string {
	w.Helper()
	path := filepath.Join(w.TempDir(), name)
	w.must(os.WriteFile(path, []byte(text), 0o600))
	return path
}

// real connects to the server with an operator's token, and makes a user of the tenant default, whose
// session docs has documents that the operator may read.
func (w *world) real() turns.Server {
	server, socket := os.Getenv("TURN_TEST_SERVER_HOME"), "unix:"+os.Getenv("TURN_TEST_SOCKET")
	args := []string{"token", "create", "--name", "operator", "--ttl", "2h"}
	for _, s := range append(control.Turns(), "tokens:issue", "tokens:read", "tenants:issue") {
		args = append(args, "--scope", s)
	}
	token := w.file("token", w.turn(server, socket, args...))
	home := os.Getenv("TURN_HOME")
	c, err := control.New(w.Context(), control.Options{Host: "test", Dir: home, TokenFile: token, Scopes: control.Turns()})
	w.must(err)
	w.Cleanup(func() { _ = c.Close() })

	user := w.TempDir()
	w.turn(user, "", "host", "add", "--use", "test", w.address(home), "--pin", os.Getenv("TURN_TEST_NODE_KEY"))
	w.Setenv("TURN_TOKEN", w.turn(server, socket, "token", "create", "--name", "user", "--tenant", "default", "--ttl", "2h"))
	w.turn(user, "test", "run", "--quiet", "--session", "docs", w.file("put.md", documents))
	w.turn(user, "test", "session", "allow", "docs", w.turn(home, "test", "host", "key"))
	w.turn(user, "test", "run", "--quiet", "--session", "private", w.file("secret.md", documents))
	w.turn(user, "test", "run", "--quiet", "--session", "lent", w.file("lent.md", documents))
	w.turn(user, "test", "session", "allow", "--write", "lent", w.turn(home, "test", "host", "key"))
	w.user = user
	return c
}

// example creates the objects of an example.
func (w *world) example(name string) {
	w.Helper()
	text, err := os.ReadFile("../../../examples/kubernetes/" + name)
	w.must(err)
	all, err := kubetest.Objects(text)
	w.must(err)
	for _, o := range all {
		o.SetNamespace("default")
		w.must(w.admin.Create(w.Context(), o))
	}
}

// address returns the address of the server in the list of hosts.
func (w *world) address(home string) string {
	w.Helper()
	b, err := os.ReadFile(filepath.Join(home, "hosts.toml"))
	w.must(err)
	_, rest, _ := strings.Cut(string(b), `url = "`)
	if rest == "" {
		_, rest, _ = strings.Cut(string(b), `url = '`)
	}
	address, _, ok := strings.Cut(strings.ReplaceAll(rest, "'", `"`), `"`)
	if !ok {
		w.Fatalf("no address in %s", b)
	}
	return address
}

// documents writes the documents of the test into /docs.
const documents = "```bash\nmkdir -p /docs && cd /docs\n" +
	"printf '```bash\\nmkdir -p /data && echo one >> /data/n\\n```\\n' > write.md\n" +
	"printf '```bash\\ntest \"$(cat /data/n)\" = one\\n```\\n\\n```bash\\ntrue\\n```\\n' > read.md\n" +
	"printf '```bash\\ntrue\\n```\\n\\n```bash\\nexit 3\\n```\\n' > fail.md\n" +
	"printf '```bash\\nmkdir -p /data && echo one >> /data/slow; while ! [ -e /data/never ]; do sleep 0.1; done\\n```\\n' > slow.md\n" +
	"printf '```bash\\nmkdir -p /data && echo x >> /data/some; sleep 5\\n```\\n' > some.md\n" +
	"printf -- '---\\nimgae: 1\\n---\\n' > bad.md\n```\n"

// TestInside runs Turns in real sandboxes: see TestMachineTurns.
func TestInside(t *testing.T) {
	if os.Getenv(inside) == "" {
		t.Skip("TestMachineTurns starts it")
	}
	w := newWorld(t)
	server := w.real()
	w.grace = patience // a busy machine builds and makes what Turns wait for in more than the default
	stop := w.operator(server, nil)
	from := func(file, more string) string {
		return `{"document":{"session":"docs","path":"/docs/` + file + `.md"}` + more + `}`
	}
	// All at once: the Turns wait for the Session, and the second one for the first, whose file it sees.
	w.example("turns.yaml")
	w.example("session.yaml")
	w.example("inline.yaml")
	one, two := w.ends("a-write"), w.ends("b-read")
	if one.Status.Phase != v1alpha1.PhasePassed || two.Status.Phase != v1alpha1.PhasePassed || two.Status.Number != 2 ||
		two.Status.Steps.Summary != "2/2" || *two.Status.ExitCode != 0 || two.Status.Session != "work" {
		t.Errorf("the turns ended as %+v\n%+v", one.Status, two.Status)
	}
	for name, text := range map[string]string{"receipt": one.Status.Receipt, "state": one.Status.State,
		"record": one.Status.Record, "document": one.Status.Document, "template": one.Status.Template} {
		if len(text) != 71 {
			t.Errorf("%s is %q", name, text)
		}
	}
	for _, name := range []string{"a-write", "b-read"} {
		if n := w.writes(name); n != 2 {
			t.Errorf("the operator wrote %d times about %s, not 2", n, name)
		}
	}
	if x := w.ends("hello"); x.Status.Phase != v1alpha1.PhasePassed || x.Status.Steps.Summary != "2/2" {
		t.Errorf("the turn of the document in the object ended as %+v", x.Status)
	}
	w.refusals(from)
	stop = w.again(server, stop, from)
	stop()
	w.outage(server, from)
	w.operator(server, nil)
	w.ofSessions(from)
	w.lent()
	w.replaced(from)
}

// lent has a Session whose name a user has taken before, for a session to which the operator's key was
// admitted. No Turn runs where that user reads it; when the session is gone, the object has its own.
func (w *world) lent() {
	w.must(w.admin.Create(w.Context(), object(w.T, "Session", "lent", `{}`)))
	ready := func() string { return reason(w.session("lent").Status.Conditions, v1alpha1.Ready) }
	w.until("the lent session is refused", func() bool { return ready() == v1alpha1.ReasonDenied })
	w.turn(w.user, "test", "session", "rm", "lent")
	w.until("the object has a session of its own", func() bool { return ready() == v1alpha1.ReasonReady })
	if n := *w.session("lent").Status.Turns; n != 0 {
		w.Errorf("it has %d turns", n)
	}
}

// replaced removes the session of an object at the server, as its owner, and then a user makes one with its
// name, which the operator's key may write. Turns of the object do not run there, and the object does not
// take it for its own.
func (w *world) replaced(from func(file, more string) string) {
	home := os.Getenv("TURN_HOME")
	w.turn(home, "test", "session", "rm", "lent")
	w.turn(w.user, "test", "run", "--quiet", "--session", "lent", w.file("taken.md", documents))
	w.turn(w.user, "test", "session", "allow", "--write", "lent", w.turn(home, "test", "host", "key"))
	w.must(w.admin.Create(w.Context(), object(w.T, "Turn", "astray", from("write", `,"session":"lent"`))))
	if s := w.ends("astray").Status; s.Phase != v1alpha1.PhaseRefused {
		w.Errorf("the turn ended as %+v", s)
	}
	w.until("the session is no longer ready", func() bool {
		return reason(w.session("lent").Status.Conditions, v1alpha1.Ready) == v1alpha1.ReasonFailed
	})
	if text := w.turn(w.user, "test", "log", "--json", "lent"); strings.Count(text, `"number"`) != 1 {
		w.Errorf("the user's session has turns of others: %s", text)
	}
}

// refusals runs Turns that cannot.
func (w *world) refusals(from func(file, more string) string) {
	ctx := w.Context()
	w.must(w.admin.Create(ctx, object(w.T, "Turn", "fail", from("fail", ``))))
	if s := w.ends("fail").Status; s.Phase != v1alpha1.PhaseFailed || *s.ExitCode != 1 || s.Steps.Summary != "1/2" ||
		reason(s.Conditions, v1alpha1.Completed) != v1alpha1.ReasonStep {
		w.Errorf("a failed step: %+v", s)
	}
	for _, one := range []struct{ name, spec, reason string }{
		{"no-file", from("nowhere", ``), v1alpha1.ReasonDocumentNotFound},
		{"no-session", `{"document":{"session":"nowhere","path":"/a.md"}}`, v1alpha1.ReasonDocumentNotFound},
		{"folder", `{"document":{"session":"docs","path":"/docs"}}`, ""},
		{"not-mine", `{"document":{"session":"private","path":"/docs/write.md"}}`, ""},
		{"not-mine-turn", `{"document":{"session":"private"}}`, ""},
		{"bad", from("bad", ``), v1alpha1.ReasonDocumentInvalid},
		{"other-digest", `{"document":{"session":"docs","path":"/docs/write.md","digest":"` + sum + `"}}`,
			v1alpha1.ReasonDigestMismatch},
		{"no-image", from("write", `,"image":"no-such-template"`), ""},
	} {
		w.must(w.admin.Create(ctx, object(w.T, "Turn", one.name, one.spec)))
		s := w.ends(one.name).Status
		if got := reason(s.Conditions, v1alpha1.Accepted); one.reason != "" && got != one.reason || s.Phase == v1alpha1.PhasePassed {
			w.Errorf("%s is %s %s: %+v", one.name, s.Phase, got, s.Conditions)
		}
	}
	// Another namespace is another tenant: it has no session docs, and no turn of this one.
	w.namespace("other")
	other := object(w.T, "Turn", "thief", from("write", ``))
	other.SetNamespace("other")
	w.must(w.admin.Create(ctx, other))
	if s := w.endsIn("other", "thief").Status; reason(s.Conditions, v1alpha1.Accepted) != v1alpha1.ReasonDocumentNotFound {
		w.Errorf("the document of another tenant: %+v", s)
	}
}

// again ends the operator while a turn runs, and deletes another one that runs. It returns what ends the
// operator that runs then.
func (w *world) again(server turns.Server, stop func(), from func(file, more string) string) func() {
	ctx := w.Context()
	w.must(w.admin.Create(ctx, object(w.T, "Turn", "some", from("some", `,"session":"work"`))))
	w.becomes("some", v1alpha1.PhaseRunning)
	stop()
	stop = w.operator(server, nil)
	if s := w.ends("some").Status; s.Phase != v1alpha1.PhasePassed || s.Number != 3 {
		w.Errorf("after a restart: %+v", s)
	}
	w.must(w.admin.Create(ctx, object(w.T, "Turn", "slow", from("slow", `,"session":"work"`))))
	w.becomes("slow", v1alpha1.PhaseRunning)
	w.must(w.admin.Delete(ctx, object(w.T, "Turn", "slow", `{}`)))
	// Its end frees the session.
	w.must(w.admin.Create(ctx, object(w.T, "Turn", "next", from("write", `,"session":"work"`))))
	if s := w.ends("next").Status; s.Phase != v1alpha1.PhasePassed {
		w.Errorf("after a canceled turn: %+v", s)
	}
	return stop
}

// ofSessions forks a session, runs a turn on each branch, and removes both.
func (w *world) ofSessions(from func(file, more string) string) {
	ctx := w.Context()
	w.must(w.admin.Create(ctx, object(w.T, "Turn", "on-fork", from("read", `,"session":"fork"`))))
	if s := w.ends("on-fork").Status; s.Phase != v1alpha1.PhasePassed || s.Branch != "fork" || s.Session != "work" {
		w.Errorf("a turn of a fork: %+v", s)
	}
	w.must(w.admin.Create(ctx, object(w.T, "Turn", "rerun", `{"document":{"session":"work","turn":"1"}}`)))
	if s := w.ends("rerun").Status; s.Phase != v1alpha1.PhasePassed {
		w.Errorf("a turn's document again: %+v", s)
	}
	w.must(w.admin.Create(ctx, object(w.T, "Session", "private", `{}`)))
	w.until("the session of another key is refused", func() bool {
		s := w.session("private")
		return s != nil && reason(s.Status.Conditions, v1alpha1.Ready) != ""
	})
	for _, name := range []string{"fork", "work"} {
		w.must(w.admin.Delete(ctx, object(w.T, "Session", name, `{}`)))
		w.until("session "+name+" is gone", func() bool { return w.session(name) == nil })
	}
	w.must(w.admin.Create(ctx, object(w.T, "Turn", "late", `{"document":{"session":"work"}}`)))
	if s := w.ends("late").Status; reason(s.Conditions, v1alpha1.Accepted) != v1alpha1.ReasonDocumentNotFound {
		w.Errorf("the session was not removed: %+v", s)
	}
}
