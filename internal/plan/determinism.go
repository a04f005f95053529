package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/template"
)

// deterministic reports whether the request, or else its document, asks for a deterministic turn.
func (r *Request) deterministic() bool {
	if r.Deterministic != nil {
		return *r.Deterministic
	}
	return r.Document.Front.Deterministic
}

// bootTime bounds the boot of a machine of the tier strict, in seconds of its own time.
const bootTime = 60

// determine sets what p runs with if req is deterministic, and rejects what no tier guarantees.
func (p *Plan) determine(req Request) error {
	if !req.deterministic() {
		return notDeterministic(req)
	}
	front := req.Document.Front
	tier, err := p.tier(cmp.Or(req.Tier, front.Tier))
	if err != nil {
		return err
	}
	d := &turnstone.Determinism{Tier: tier, Clock: turnstone.DefaultClock()}
	switch {
	case !req.Clock.IsZero():
		d.Clock = req.Clock.UTC()
	case !front.Clock.IsZero():
		d.Clock = front.Clock.UTC()
	}
	if p.seed = cmp.Or(req.Seed, front.Seed); p.seed != nil {
		d.Seed = *p.seed
	}
	if err := d.Validate(); err != nil {
		return turnstone.NewError(op, turnstone.KindInvalid, "--deterministic", err).
			WithHint("see `turn run --help` for --seed and --clock")
	}
	if tier == turnstone.TierStrict && d.Clock.Unix() < bootTime {
		return invalid("clock", "%s is in the first minute of 1970, and Linux sets no time before "+
			"its own start", d.Clock.Format(time.RFC3339)).
			WithHint("use a later clock, or --tier seeded")
	}
	p.Determinism = d
	if _, mode := mergeRules(req, front); p.Wants.Network == nil && !mode.Replay {
		p.Shape.Network = false
	}
	p.oneCPU()
	return p.guaranteed(req)
}

// notDeterministic rejects values that have an effect only in deterministic turns.
func notDeterministic(req Request) error {
	for _, c := range []struct {
		given bool
		flag  string
	}{{req.Tier != "", "--tier"}, {req.Seed != nil, "--seed"}, {!req.Clock.IsZero(), "--clock"}} {
		if c.given {
			return invalid(c.flag, "is only for deterministic turns").
				WithHint("add --deterministic, or leave out " + c.flag)
		}
	}
	return nil
}

// tier returns the requested tier, or else the tier that p's substrate has.
func (p *Plan) tier(asked turnstone.Tier) (turnstone.Tier, error) {
	microVM := p.Isolation == document.IsolationMicroVM
	switch {
	case p.Driver == driver.Firecracker:
		return "", invalid("substrate firecracker", "runs guests under KVM, which cannot run a "+
			"deterministic turn").WithHint("use --substrate gvisor or --substrate qemu")
	case asked == "" && (p.Driver == driver.QEMU || microVM):
		return turnstone.TierStrict, nil
	case asked == "":
		return turnstone.TierSeeded, nil
	case asked == turnstone.TierStrict && p.Driver == driver.GVisor:
		return "", invalid("--tier strict", "needs QEMU, and the substrate is gvisor").
			WithHint("use --substrate qemu, or --tier seeded")
	case asked == turnstone.TierSeeded && p.Driver == driver.QEMU:
		return "", invalid("--tier seeded", "needs gVisor, and the substrate is qemu").
			WithHint("use --substrate gvisor, or --tier strict")
	case asked == turnstone.TierSeeded && microVM:
		return "", invalid("--tier seeded", "needs gVisor, which is not a microVM, and the "+
			"document has isolation: microvm").WithHint("use --tier strict")
	}
	return asked, nil
}

// withTier returns a's request with the tier that the host has for it, if it is deterministic and
// names neither a tier nor what implies one. without is why that is not the tier seeded.
func (a *Authority) withTier() (req Request, without, err error) {
	req = a.Request
	front := req.Document.Front
	if !req.deterministic() || a.Host.Tier == nil || cmp.Or(req.Tier, front.Tier) != "" ||
		cmp.Or(req.Substrate, driver.Auto) != driver.Auto ||
		front.Isolation == document.IsolationMicroVM {
		return req, nil, nil
	}
	tier, without, err := a.Host.Tier()
	if err == nil && without != nil {
		req.Tier = tier
	}
	return req, without, err
}

// onlyStrict returns err, which makes no plan of a. If the tier seeded would allow the request, the
// error says why this host does not have it.
func onlyStrict(a *Authority, without, err error) error {
	if without == nil {
		return err
	}
	seeded := *a
	seeded.Host.Tier = nil
	p, other := Make(&seeded, "", "/")
	if other != nil {
		return err
	}
	p.Close()
	return turnstone.Errorf(op, turnstone.KindUnavailable, "deterministic", "the tier seeded allows "+
		"this request and is not available here: %w; the tier strict is, and does not: %w", without,
		err).WithHint("run `turn doctor`, which says how to get gVisor; or " + turnstone.HintOf(err))
}

// guaranteed rejects what the tier of p cannot guarantee.
func (p *Plan) guaranteed(req Request) error {
	_, mode := mergeRules(req, req.Document.Front)
	replays, network := p.Shape.Network && mode.Replay, "network: on"
	if mode.Record {
		network = "network: record"
	}
	strict := p.Determinism.Tier == turnstone.TierStrict
	for _, c := range []struct {
		asked              bool
		subject, why, hint string
	}{
		{p.Shape.Network && !replays, network,
			"a deterministic turn has no network, because answers differ between runs",
			"use --network off, or --network replay=TURN to serve a recording"},
		{replays && strict, "network: replay",
			"the tier strict serves no recording, because input arrives at times that differ " +
				"between runs", "use --tier seeded, or --network off"},
		{p.Home != "", "home " + p.Home,
			"a deterministic turn has no home, because a home changes between runs",
			"leave out the home, or use --no-deterministic"},
		{p.Lifetime == turnstone.LifetimeSession, "lifetime: session",
			"a deterministic turn has a new machine, because a resumed machine has a past",
			"use --lifetime turn"},
		{p.Snapshot == document.SnapshotVM, "snapshot: vm",
			"the machine of a deterministic turn is not kept", "use --snapshot none"},
		{p.Wants.CPUs > 1, "cpus",
			"a deterministic turn has one CPU, because several run threads in any order",
			"use --cpus 1"},
		{len(req.Secrets) > 0, "--secret",
			"a deterministic turn has no secrets, because they are not kept and may change",
			"leave out --secret, or use --no-deterministic"},
		{len(req.SecretHeaders) > 0, "--secret-header",
			"a deterministic turn has no network to send it to",
			"leave out --secret-header, or use --no-deterministic"},
	} {
		if c.asked {
			return invalid(c.subject, "%s", c.why).WithHint(c.hint)
		}
	}
	return nil
}

// oneCPU reduces the default number of CPUs of a deterministic machine.
func (p *Plan) oneCPU() {
	if p.Determinism != nil && p.Wants.CPUs == 0 {
		p.Shape.CPUs = 1
	}
}

// An origin is what the seed of a turn is derived from. Its JSON is hashed: the order and the names
// of the fields are part of every derived seed.
type origin struct {
	Document turnstone.Digest `json:"document"` // of the text without results
	State    turnstone.Digest `json:"state,omitempty"`
	StateEnv []string         `json:"state_env,omitempty"`
	Image    string           `json:"image"`
	Template turnstone.Digest `json:"template,omitempty"`
	Env      []string         `json:"env,omitempty"` // the document's and the caller's
	Cwd      string           `json:"cwd"`
}

// deriveSeed sets the seed of a deterministic turn that requests none, so that the same input is
// the same run. p starts on below, or on its template.
func (p *Plan) deriveSeed(below *Below, ts Templates) {
	if p.Determinism == nil || p.seed != nil {
		return
	}
	from := origin{Document: turnstone.DigestBytes(p.authority.Request.Document.Clean()),
		Image: p.Image, Env: p.Env, Cwd: p.Cwd}
	if below != nil {
		from.State, from.StateEnv = below.FSHash, below.Env
	} else if spec, err := ts.Spec(p.Image); err == nil && !template.IsImage(p.Image) {
		from.Template = spec.Digest() // the name of an image has its digest
	}
	b, _ := json.Marshal(from) // plain data always encodes
	sum := sha256.Sum256(append([]byte("turnstone turn seed v1\n"), b...))
	d := *p.Determinism
	d.Seed = binary.BigEndian.Uint64(sum[:8]) & turnstone.MaxSeed
	p.Determinism = &d
}
