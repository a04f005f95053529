package control

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// cpuShares is how many CPUs of machines share one of the computer: most machines wait.
const cpuShares = 16

// fill sets the fields of the capacity that are not set.
func (s *Service) fill() {
	c := &s.o.Capacity
	if s.o.CPUShares == 0 {
		s.o.CPUShares = cpuShares
	}
	memory, disk := s.o.Tenants.Size()
	if c.CPUs == 0 {
		c.CPUs = runtime.NumCPU()
	}
	if c.Memory == 0 {
		c.Memory = memory
	}
	if c.Disk == 0 {
		c.Disk = disk
	}
}

// take reserves room for new sandboxes with these IDs until free is called. The error is of kind
// Exhausted, and may be retried.
func (s *Service) take(m turnstone.Machine, ids ...string) (free func(), err error) {
	var over turnstone.Bytes // of machines that wait: nobody is refused because of them
	waiting := s.warm.Memory() + s.o.Tenants.Warm().Memory()
	defer func() { s.yield(over) }()
	s.roomMu.Lock()
	defer s.roomMu.Unlock()
	sum := s.used()
	for range ids {
		sum = plus(sum, m)
	}
	for _, c := range []struct {
		what      string
		want, has int64
	}{
		{"CPUs", int64(sum.CPUs), int64(s.o.CPUShares) * int64(s.o.Capacity.CPUs)},
		{"memory", int64(sum.Memory), int64(s.o.Capacity.Memory)},
		{"disk", int64(sum.Disk), int64(s.o.Capacity.Disk)},
	} {
		if c.want > c.has {
			return nil, exhausted(turnstone.Errorf("node.room", turnstone.KindExhausted, "the node",
				"has too little %s left for the machine", c.what).
				WithHint("remove a sandbox, or try again later"))
		}
	}
	over = sum.Memory + waiting - s.o.Capacity.Memory
	for _, id := range ids {
		s.pending[id] = m
	}
	return func() {
		s.roomMu.Lock()
		defer s.roomMu.Unlock()
		for _, id := range ids {
			delete(s.pending, id)
		}
	}, nil
}

// yield ends machines that wait until they have freed this memory, or none is left: first those of
// turns, which only make a start faster.
func (s *Service) yield(want turnstone.Bytes) {
	if want > 0 {
		s.warm.Yield(want - s.o.Tenants.Warm().Yield(want))
	}
}

// roomFor reports whether there is room for a sandbox that nobody has asked for, beside the memory of
// those that wait.
func (s *Service) roomFor(m turnstone.Machine, waiting turnstone.Bytes) bool {
	return s.fits(m.Memory + waiting + s.o.Tenants.Warm().Memory())
}

// roomAhead is roomFor for the machine of a next turn.
func (s *Service) roomAhead(m turnstone.Machine, waiting turnstone.Bytes) bool {
	return s.fits(m.Memory + waiting + s.warm.Memory())
}

func (s *Service) fits(more turnstone.Bytes) bool {
	s.roomMu.Lock()
	defer s.roomMu.Unlock()
	return s.used().Memory+more <= s.o.Capacity.Memory
}

// used returns the machines of sandboxes, running turns, and creations in progress. The caller holds
// s.roomMu.
func (s *Service) used() turnstone.Machine {
	var sum turnstone.Machine
	for _, m := range s.pending {
		sum = plus(sum, m)
	}
	s.board.each(kindSandbox, func(d *v1.WatchNodeResponse) {
		switch sb := d.GetSandbox().GetSandbox(); sb.GetState() {
		case v1.SandboxState_SANDBOX_STATE_CREATING, v1.SandboxState_SANDBOX_STATE_READY,
			v1.SandboxState_SANDBOX_STATE_RUNNING:
			if _, counted := s.pending[sb.SandboxId]; !counted {
				sum = plus(sum, toMachine(sb.Machine))
			}
		}
	})
	n := -len(s.turns)
	for _, m := range s.turns {
		sum = plus(sum, m)
	}
	for _, st := range s.o.Tenants.All() {
		n += st.Turns.Count()
	}
	if turn := turnstone.DefaultShape(); n > 0 { // resumed ones, whose machine is not known here
		sum = plus(sum, turnstone.Machine{CPUs: n * turn.CPUs,
			Memory: turnstone.Bytes(n) * turn.Memory, Disk: turnstone.Bytes(n) * turn.Disk})
	}
	return sum
}

func plus(a, b turnstone.Machine) turnstone.Machine {
	return turnstone.Machine{CPUs: a.CPUs + b.CPUs, Memory: a.Memory + b.Memory,
		Disk: a.Disk + b.Disk}
}

// Describe returns what a node says of itself when it registers, and in GetNode.
func (s *Service) Describe() *v1.Node {
	s.roomMu.Lock()
	used := s.used()
	s.roomMu.Unlock()
	var waiting []*v1.WarmKind // their sizes and counts, with which a controller places claims
	for _, w := range s.Warm() {
		if len(waiting) < maxWarm {
			m := warmMessage(w)
			waiting = append(waiting, &v1.WarmKind{Tenant: m.Tenant, Template: m.Template,
				Machine: m.Machine, Ready: m.Ready, Making: m.Making})
		}
	}
	return &v1.Node{Warm: waiting, Draining: s.draining.Load(), AvailableMemory: s.available(),
		DiskFull: s.o.Tenants.Full(), StoreAway: s.o.Tenants.StoreAway(),
		Name: s.o.Node.Name(), Key: s.o.Node.PublicKey().String(),
		Version: s.o.Version, Started: timestamppb.New(s.started),
		Capacity: clamp(s.o.Capacity), Used: clamp(used), Substrates: s.o.Substrates,
		CpuShares: uint32(s.o.CPUShares), Certificate: s.o.Node.Certificate()}
}

// maxWarm is how many kinds of sandboxes that wait a controller is told of.
const maxWarm = 100

// available returns the memory that the computer can still give, with that of machines that wait,
// which end for others; 0: it cannot be read.
func (s *Service) available() uint64 {
	b, err := os.ReadFile("/proc/meminfo") // proc(5)
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), "MemAvailable:")
	if fields := strings.Fields(rest); len(fields) > 0 {
		if kib, err := strconv.ParseUint(fields[0], 10, 54); err == nil {
			return kib<<10 + uint64(s.warm.Memory()+s.o.Tenants.Warm().Memory())
		}
	}
	return 0
}

// clamp returns a machine that the rules of the API permit: sums of machines may exceed what one
// machine may have.
func clamp(m turnstone.Machine) *v1.Machine {
	return machineOf(turnstone.Machine{CPUs: min(m.CPUs, turnstone.MaxCPUs),
		Memory: min(m.Memory, turnstone.MaxMemory), Disk: min(m.Disk, turnstone.MaxDisk)})
}

// Refresh tells those that follow the node what it says of itself now.
func (s *Service) Refresh() { s.describe() }

// describe puts the node itself on the board.
func (s *Service) describe() {
	s.board.set(name{kindNode, "", s.o.Node.Name()}, &v1.WatchNodeResponse{
		Object: &v1.WatchNodeResponse_Node{Node: s.Describe()}})
}
