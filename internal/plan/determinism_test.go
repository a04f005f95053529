package plan

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/template"
)

// deterministicOf plans a deterministic turn of a document with these lines of front matter.
func deterministicOf(t *testing.T, front string, change func(*Request)) (*Plan, error) {
	t.Helper()
	req := Request{Document: parse(t, "---\ndeterministic: true\n"+front+"---\n"), Session: "s"}
	if change != nil {
		change(&req)
	}
	p, err := Make(&Authority{Request: req}, "base", "/workspace")
	if p != nil {
		t.Cleanup(p.Close)
	}
	return p, err
}

func TestDeterministicDefaults(t *testing.T) {
	p, err := deterministicOf(t, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	want := turnstone.Determinism{Tier: turnstone.TierSeeded, Clock: turnstone.DefaultClock()}
	if *p.Determinism != want || p.Shape.CPUs != 1 || p.Shape.Network ||
		p.Needs().Tier != turnstone.TierSeeded {
		t.Errorf("%+v, %+v, %+v", p.Determinism, p.Shape, p.Needs())
	}
	off, seed := false, uint64(7)
	p, err = deterministicOf(t, "seed: 1\nclock: 1980-01-01\ntier: seeded\n", func(r *Request) {
		r.Seed, r.Tier, r.Clock = &seed, turnstone.TierStrict, time.Unix(86400, 0)
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Determinism.String(); got != "strict, seed 7, clock 1970-01-02T00:00:00Z" {
		t.Errorf("the caller's values do not win: %s", got)
	}
	p, err = deterministicOf(t, "seed: 1\n", func(r *Request) { r.Deterministic = &off })
	if err != nil || p.Determinism != nil || p.Needs().Tier != "" || !p.Shape.Network {
		t.Errorf("the caller does not switch it off: %+v, %v", p, err)
	}
}

// TestDeterministicRefusals checks the messages.
func TestDeterministicRefusals(t *testing.T) {
	on, seed := true, uint64(turnstone.MaxSeed+1)
	for name, c := range map[string]struct {
		front      string
		change     func(*Request)
		says, hint string
	}{
		"network":          {"network: on\n", nil, "network: on: a deterministic turn has no network", "use --network off, or"},
		"network by flag":  {"", func(r *Request) { r.Network = &on }, "network: on", "--network off"},
		"network rules":    {"network: {allow: [a.example]}\n", nil, "network: on", "--network off"},
		"recorded network": {"network: record\n", nil, "network: record", "--network off"},
		"replay in strict": {"network: replay\ntier: strict\n", nil, "network: replay: the tier strict",
			"--tier seeded"},
		"home":     {"home: me\n", nil, "home me: a deterministic turn has no home", "leave out the home"},
		"lifetime": {"lifetime: session\n", nil, "lifetime: session: a deterministic turn has a new", "--lifetime turn"},
		"snapshot": {"snapshot: vm\n", nil, "snapshot: vm: the machine of", "--snapshot none"},
		"cpus":     {"cpus: 2\n", nil, "cpus: a deterministic turn has one CPU", "--cpus 1"},
		"secret": {"", func(r *Request) { r.Secrets = []string{"A=tok-5f3a"} }, "--secret: a deterministic",
			"leave out --secret,"},
		"secret header": {"", func(r *Request) { r.SecretHeaders = []string{"a.example=A: b"} },
			"--secret-header: ", "leave out --secret-header,"},
		"firecracker": {"", func(r *Request) { r.Substrate = driver.Firecracker },
			"substrate firecracker: runs guests under KVM", "--substrate gvisor or"},
		"strict gvisor": {"tier: strict\n", func(r *Request) { r.Substrate = driver.GVisor },
			"--tier strict: needs QEMU, and the substrate is gvisor", "--substrate qemu, or --tier"},
		"seeded qemu": {"tier: seeded\n", func(r *Request) { r.Substrate = driver.QEMU },
			"--tier seeded: needs gVisor, and the substrate is qemu", "--substrate gvisor, or"},
		"seeded microvm": {"tier: seeded\nisolation: microvm\n", nil, "which is not a microVM",
			"use --tier strict"},
		"microvm gvisor": {"isolation: microvm\n", func(r *Request) { r.Substrate = driver.GVisor },
			"gvisor is not a microVM", "--substrate qemu or auto"},
		"clock": {"", func(r *Request) { r.Clock = time.Unix(-1, 0) }, "is before 1970", "--clock"},
		"clock of strict": {"tier: strict\nclock: 1970-01-01T00:00:59Z\n", nil, "first minute of 1970",
			"later clock"},
		"seed": {"", func(r *Request) { r.Seed = &seed }, "is greater than", "--seed"},
		"tier": {"", func(r *Request) { r.Tier = "fast" }, `"fast" is not a tier`, "--help"},
	} {
		_, err := deterministicOf(t, c.front, c.change)
		if turnstone.KindOf(err) != turnstone.KindInvalid || !strings.Contains(err.Error(), c.says) ||
			!strings.Contains(turnstone.HintOf(err), c.hint) {
			t.Errorf("%s: %v; %s", name, err, turnstone.HintOf(err))
		}
	}
	seed = 1
	for flag, req := range map[string]Request{"--tier": {Tier: turnstone.TierStrict},
		"--seed": {Seed: &seed}, "--clock": {Clock: turnstone.DefaultClock()}} {
		req.Document = parse(t, "")
		_, err := Make(&Authority{Request: req}, "base", "/workspace")
		if turnstone.KindOf(err) != turnstone.KindInvalid ||
			!strings.Contains(err.Error(), flag+": is only for deterministic turns") ||
			!strings.Contains(turnstone.HintOf(err), "add --deterministic") {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

// A choice is one value of a setting, with the tiers that it allows.
type choice struct {
	name   string
	tiers  []turnstone.Tier
	change func(*Request)
}

// TestDeterministicCombinations checks every combination of the settings: a turn is planned exactly
// if one tier allows all of them, and then for that tier.
func TestDeterministicCombinations(t *testing.T) {
	both := turnstone.Tiers()
	seeded, strict, none := both[:1], both[1:], both[:0]
	yes, no := true, false
	rules := func(r *Request, n *bool, rules *document.NetworkRules) {
		r.Network, r.NetworkRules = n, rules
	}
	settings := [][]choice{
		{{"", both, nil}, {"tier seeded", seeded, func(r *Request) { r.Tier = turnstone.TierSeeded }},
			{"tier strict", strict, func(r *Request) { r.Tier = turnstone.TierStrict }}},
		{{"", both, nil}, {"gvisor", seeded, func(r *Request) { r.Substrate = driver.GVisor }},
			{"qemu", strict, func(r *Request) { r.Substrate = driver.QEMU }},
			{"firecracker", none, func(r *Request) { r.Substrate = driver.Firecracker }}},
		{{"", both, nil}, {"microvm", strict, func(r *Request) {
			r.Document.Front.Isolation = document.IsolationMicroVM
		}}},
		{{"", both, nil}, {"network off", both, func(r *Request) { rules(r, &no, nil) }},
			{"network on", none, func(r *Request) { rules(r, &yes, nil) }},
			{"record", none, func(r *Request) { rules(r, &yes, &document.NetworkRules{Record: true}) }},
			{"replay", seeded, func(r *Request) {
				rules(r, &yes, &document.NetworkRules{Replay: true, ReplayOf: "s@1"})
			}}},
		{{"", both, nil}, {"home", none, func(r *Request) { r.Home = "me" }}},
		{{"", both, nil}, {"lifetime", none, func(r *Request) {
			r.Lifetime = turnstone.LifetimeSession
		}}},
		{{"", both, nil}, {"snapshot", none, func(r *Request) { r.Snapshot = document.SnapshotVM }}},
		{{"", both, nil}, {"cpus 1", both, func(r *Request) { r.CPUs = 1 }},
			{"cpus 2", none, func(r *Request) { r.CPUs = 2 }}},
		{{"", both, nil}, {"secret", none, func(r *Request) { r.Secrets = []string{"A=tok-5f3a"} }}},
	}
	doc, planned := parse(t, "---\ndeterministic: true\n---\n"), 0
	var try func(at int, names []string, tiers []turnstone.Tier, made []choice)
	try = func(at int, names []string, tiers []turnstone.Tier, made []choice) {
		if at < len(settings) {
			for _, c := range settings[at] {
				left := slices.DeleteFunc(slices.Clone(tiers),
					func(tier turnstone.Tier) bool { return !slices.Contains(c.tiers, tier) })
				try(at+1, append(slices.Clip(names), c.name), left, append(slices.Clip(made), c))
			}
			return
		}
		front := *doc
		req := Request{Document: &front, Session: "s"}
		for _, c := range made {
			if c.change != nil {
				c.change(&req)
			}
		}
		p, err := Make(&Authority{Request: req}, "base", "/workspace")
		// Without a choice of a tier the turn is seeded, unless its machine is one of QEMU.
		what := strings.Join(names, ", ")
		switch {
		case len(tiers) == 0 && (turnstone.KindOf(err) != turnstone.KindInvalid ||
			turnstone.HintOf(err) == ""):
			t.Errorf("%s: %v; %s", what, err, turnstone.HintOf(err))
		case len(tiers) > 0 && (err != nil || p.Determinism.Tier != tiers[0]):
			t.Errorf("%s: %+v, %v; want %s", what, p, err, tiers[0])
		case len(tiers) > 0:
			planned++
			p.Close()
		}
	}
	try(0, nil, both, nil)
	if planned < 40 {
		t.Errorf("only %d combinations were planned", planned)
	}
}

// TestSeed checks that the same input has the same seed, and any other input another.
func TestSeed(t *testing.T) {
	ts := template.NewStore(t.TempDir())
	below := func(change func(*Below)) *Below {
		b := &Below{Session: "s", Image: "base", Cwd: "/workspace", Env: []string{"A=1"},
			FSHash: turnstone.DigestBytes([]byte("a"))}
		if change != nil {
			change(b)
		}
		return b
	}
	seed := func(src string, change func(*Request), b *Below) uint64 {
		req := Request{Document: parse(t, src), Session: "s"}
		if change != nil {
			change(&req)
		}
		made, err := Make(&Authority{Request: req}, cmp.Or(req.Image, "base"), "/workspace")
		if err != nil {
			t.Fatal(err)
		}
		defer made.Close()
		p, err := made.On(b, ts)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Determinism.Validate(); err != nil {
			t.Errorf("%v, %+v", err, made.Determinism)
		}
		return p.Determinism.Seed
	}
	const src = "---\ndeterministic: true\n---\n# A\n\n```bash\necho $RANDOM\n```\n"
	doc := parse(t, src)
	receipt := string(doc.Receipt(document.TurnInfo{ID: "t_1"}, nil))
	first := seed(src, nil, nil)
	for name, other := range map[string]uint64{"again": seed(src, nil, nil),
		"its receipt":  seed(receipt, nil, nil),
		"another tier": seed(src, func(r *Request) { r.Tier = turnstone.TierStrict }, nil)} {
		if other != first {
			t.Errorf("%s: seed %d, not %d", name, other, first)
		}
	}
	seen := map[uint64]string{first: "the document"}
	for name, other := range map[string]uint64{
		"another document": seed(src+"\n", nil, nil),
		"environment":      seed(src, func(r *Request) { r.Env = []string{"A=2"} }, nil),
		"a state":          seed(src, nil, below(nil)),
		"other files": seed(src, nil, below(func(b *Below) {
			b.FSHash = turnstone.DigestBytes([]byte("b"))
		})),
		"other variables":   seed(src, nil, below(func(b *Below) { b.Env = []string{"A=2"} })),
		"another directory": seed(src, nil, below(func(b *Below) { b.Cwd = "/srv" })),
		"another template":  seed(src, func(r *Request) { r.Image = "python" }, nil),
	} {
		if was, twice := seen[other]; twice {
			t.Errorf("%s and %s have the same seed", name, was)
		}
		seen[other] = name
	}
	want := uint64(7)
	if got := seed(src, func(r *Request) { r.Seed = &want }, below(nil)); got != want {
		t.Errorf("the requested seed 7 became %d", got)
	}
}
