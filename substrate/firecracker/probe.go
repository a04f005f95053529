package firecracker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/stamp"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/kvm"
)

// probeLimit is how long a guest may take to prove KVM.
const probeLimit = 10 * time.Second

// A Verdict says whether guests run under Firecracker here, and why not.
type Verdict struct {
	Usable bool      `json:"usable"`
	Reason string    `json:"reason"`
	Proven bool      `json:"proven"` // a guest was started to find out, here or in an earlier run
	Known  bool      `json:"-"`      // no probe would say more
	When   time.Time `json:"when"`
}

// remembered is a verdict with what it depends on.
type remembered struct {
	Verdict
	Host string `json:"host"`
}

// KVM tells whether guests run. A device that is not there, may not be opened, or
// emulates its guests is answered at once. Else a guest must really start: that is
// tried once with probe, within ten seconds, and remembered until Firecracker, the
// host's kernel or its CPU change. Without a probe the answer may be that it is not
// known.
func (s *Substrate) KVM(ctx context.Context, probe *substrate.Machine) Verdict {
	if err := s.tryKVM(); err != nil {
		return Verdict{Reason: err.Error(), Known: true}
	}
	host := fmt.Sprintf("%s|%s|%s|%s|%t", s.binary, s.version, s.kernel, s.hostCPU, s.jailer != "")
	path := s.home.Path("cache", "kvm-firecracker.json")
	var known remembered
	if b, err := os.ReadFile(path); err == nil && json.Unmarshal(b, &known) == nil && known.Host == host {
		known.Known = true
		return known.Verdict
	}
	if probe == nil {
		return Verdict{Reason: ErrUnproven.Error()}
	}
	s.progress("finding out whether KVM runs a guest of Firecracker (once)")
	v, err := s.prove(ctx, *probe)
	if err != nil {
		return Verdict{Reason: "finding out failed: " + err.Error()} // says nothing of KVM: ask again next time
	}
	if _, err := s.home.MkdirAll("cache"); err != nil {
		return v
	}
	b, _ := json.Marshal(remembered{v, host})
	_ = stamp.WriteFile(path, b, 0o600) // a verdict that is not remembered is found again
	return v
}

// tryKVM rules KVM out without a guest.
func tryKVM() error { return kvm.Try("/dev/kvm") }

// prove boots m. A Firecracker that ends or refuses, and a machine that does not get
// ready, are a verdict; an error is something that has nothing to do with KVM.
func (s *Substrate) prove(ctx context.Context, m substrate.Machine) (Verdict, error) {
	began := time.Now()
	v := Verdict{Proven: true, Known: true, When: time.Now().UTC()}
	vm, err := s.boot(ctx, m)
	if err == nil {
		defer func() { _ = vm.Close() }()
		err = vm.wait(ctx, vm.ready, probeLimit)
	}
	var refused *apiError
	switch {
	case ctx.Err() != nil:
		return Verdict{}, ctx.Err()
	case err != nil && vm == nil && turnstone.KindOf(err) != turnstone.Dead && !errors.As(err, &refused):
		return Verdict{}, err
	case err != nil:
		v.Reason = "a guest does not start under it: " + err.Error()
	default:
		v.Usable = true
		v.Reason = fmt.Sprintf("a guest started in %s", time.Since(began).Round(time.Millisecond))
	}
	return v, nil
}
