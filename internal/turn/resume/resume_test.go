package resume

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/statedir"
)

// TestResumedNetwork checks that a resumed machine reaches what its turn's rules open today, and
// that a record, which may be imported, grants nothing.
func TestResumedNetwork(t *testing.T) {
	const quiet, on = "```bash\ntrue\n```\n", "---\nnetwork: on\n---\n```bash\ntrue\n```\n"
	const some, closed = "---\nnetwork: {allow: [8.8.8.8]}\n---\n" + quiet,
		"---\nnetwork: {allow: [\"10.1.2.3\"]}\n---\n" + quiet
	const off = "[network]\ndefault = \"off\""
	open, yes, no := turnstone.NetworkSpec{}, true, false
	for name, c := range map[string]struct {
		config, document string
		kept             *turnstone.NetworkSpec
		reaches, not     []string // NAME ADDRESS
		refused          bool
		req              Request
	}{
		"nothing said": {kept: nil, reaches: []string{"8.8.8.8"},
			not: []string{"10.1.2.3", "127.0.0.1"}},
		"its rules": {kept: &turnstone.NetworkSpec{Allow: []string{"8.8.8.8"},
			Only: true}, reaches: []string{"8.8.8.8"}, not: []string{"9.9.9.9"}},
		"its denials": {kept: &turnstone.NetworkSpec{Deny: []string{"9.9.9.9"}},
			reaches: []string{"8.8.8.8"}, not: []string{"9.9.9.9"}},
		"a record grants nothing": {kept: &turnstone.NetworkSpec{Allow: []string{"0.0.0.0/0",
			"10.1.2.3", "127.0.0.1:443"}, Only: true}, reaches: []string{"8.8.8.8"},
			not: []string{"10.1.2.3", "127.0.0.1"}},
		"what documents may": {config: "[documents]\nallow = [\"10.1.0.0/16\"]",
			kept:    &turnstone.NetworkSpec{Allow: []string{"10.1.2.3"}, Only: true},
			reaches: []string{"10.1.2.3"}, not: []string{"8.8.8.8"}},
		"the host denies today": {config: "[network]\ndeny = [\"8.8.8.8\"]", kept: &open,
			reaches: []string{"9.9.9.9"}, not: []string{"8.8.8.8"}},
		"off by default": {config: "[network]\ndefault = \"off\"",
			not: []string{"8.8.8.8", "10.1.2.3"}},
		"off by default, but asked": {config: off, document: on, refused: true},
		"granted by a key": {config: off, document: on,
			req: Request{Grant: []string{"network"}}, reaches: []string{"8.8.8.8"},
			not: []string{"10.1.2.3"}},
		"granted by the host": {config: off + "\n[documents]\ngrant = [\"network\"]",
			document: on, reaches: []string{"8.8.8.8"}, not: []string{"10.1.2.3"}},
		"granted by a flag": {config: off, req: Request{Network: &yes},
			reaches: []string{"8.8.8.8"}, not: []string{"10.1.2.3"}},
		"a key alone": {config: off, req: Request{Grant: []string{"network"}},
			not: []string{"8.8.8.8"}},
		"asked with rules": {config: off, document: some,
			kept: &turnstone.NetworkSpec{Allow: []string{"8.8.8.8"}, Only: true}, refused: true},
		"asked by a replay": {config: off, document: "---\nnetwork: replay\n---\n" + quiet,
			not: []string{"8.8.8.8"}},
		"off by default, and rules": {config: off,
			kept: &turnstone.NetworkSpec{Allow: []string{"8.8.8.8"}, Only: true},
			not:  []string{"8.8.8.8", "9.9.9.9"}},
		"off, and locked": {config: off + "\nlocked = true", document: on, refused: true},
		"closed, asked": {document: closed,
			kept: &turnstone.NetworkSpec{Allow: []string{"10.1.2.3"}, Only: true}, refused: true},
		"closed, granted": {document: closed,
			kept: &turnstone.NetworkSpec{Allow: []string{"10.1.2.3"}, Only: true},
			req:  Request{Grant: []string{"network"}}, reaches: []string{"10.1.2.3"},
			not: []string{"8.8.8.8"}},
		"a record beyond what is granted": {document: closed,
			kept: &turnstone.NetworkSpec{Allow: []string{"10.9.9.9"}, Only: true},
			req:  Request{Grant: []string{"network"}}, not: []string{"10.1.2.3", "10.9.9.9",
				"8.8.8.8"}},
		"narrowed": {kept: &open,
			req:     Request{NetworkRules: &document.NetworkRules{Deny: []string{"9.9.9.9"}}},
			reaches: []string{"8.8.8.8"}, not: []string{"9.9.9.9"}},
		"taken away": {kept: &open, req: Request{Network: &no},
			not: []string{"8.8.8.8"}},
		"other rules": {document: closed, kept: &open, req: Request{Network: &yes,
			NetworkRules: &document.NetworkRules{HasAllow: true, Allow: []string{"127.0.0.1:443"}}},
			reaches: []string{"127.0.0.1"}, not: []string{"8.8.8.8", "10.1.2.3"}},
		"the document says off": {document: "---\nnetwork: off\n---\n" + quiet, kept: &open,
			not: []string{"8.8.8.8"}},
	} {
		x := host.New(&statedir.Dir{Root: t.TempDir()}, host.Options{}, nil)
		if err := os.WriteFile(x.Dir.Path("config.toml"), []byte(c.config), 0o600); err != nil {
			t.Fatal(err)
		}
		rec := &turnstone.TurnRecord{}
		if c.kept != nil {
			rec.Network = &turnstone.RecordNetwork{Spec: c.kept}
		}
		if c.document == "" {
			c.document = quiet
		}
		var p *plan.Plan
		facts := repotest.OK[plan.Host](t)(x.Facts())
		asked, err := resumedNetwork(facts, rec, []byte(c.document), c.req)
		if err == nil {
			p, err = plan.ForSandbox(plan.Sandbox{Shape: turnstone.DefaultShape(), Network: asked},
				facts)
		}
		if err != nil && (turnstone.HintOf(err) == "" ||
			!strings.Contains(err.Error(), "only its caller can grant: network: ")) {
			t.Errorf("%s: %v", name, err)
		}
		if c.refused != (err != nil) {
			t.Errorf("%s: %v", name, err)
		}
		for _, to := range append(c.reaches, c.not...) {
			want := slices.Contains(c.reaches, to)
			if v := p.Net.Policy.Decide("", netip.MustParseAddr(to), 443); v.Allowed != want {
				t.Errorf("%s: %s: %+v", name, to, v)
			}
		}
	}
}

// TestResumeHugeMachine checks that a record, which may be imported, cannot create a machine that
// this host would not give a turn, and that nothing of such a machine is written.
func TestResumeHugeMachine(t *testing.T) {
	h := host.New(&statedir.Dir{Root: t.TempDir()}, host.Options{}, nil)
	t.Cleanup(func() { _ = h.Repo.Close() })
	p := repotest.On(t, h.Repo)
	for what, c := range map[string]struct {
		change func(*turnstone.Shape)
		kind   turnstone.Kind
	}{
		"memory": {func(s *turnstone.Shape) { s.Memory = turnstone.MaxMemory },
			turnstone.KindInvalid},
		"disk": {func(s *turnstone.Shape) { s.Disk = turnstone.MaxDisk },
			turnstone.KindInvalid},
		"negative memory": {func(s *turnstone.Shape) { s.Memory = -1 }, turnstone.KindIntegrity},
		"too many CPUs": {func(s *turnstone.Shape) { s.CPUs = turnstone.MaxCPUs + 1 },
			turnstone.KindIntegrity},
	} {
		rec := &turnstone.TurnRecord{Image: "base", Shape: turnstone.DefaultShape(),
			VM: &turnstone.VMRef{}}
		c.change(&rec.Shape)
		if _, _, err := unpack(t.Context(), h, repotest.OK[plan.Host](t)(h.Facts()), p.CS, rec, nil,
			func(string) { t.Errorf("%s: something is prepared", what) }); turnstone.KindOf(
			err) != c.kind || turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
}
