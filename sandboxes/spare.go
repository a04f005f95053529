package sandboxes

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// An Adopter is a Machine of a spare sandbox: one that was started before anybody asked for it.
type Adopter interface {
	// Adopt gives the machine the identity and the settings of a user: host name, environment,
	// directory, network policy. The error is of kind KindUnavailable if what spec asks for cannot be
	// given to a machine that runs. After an error the machine is not used.
	Adopt(ctx context.Context, id turnstone.SandboxID, spec Spec) (Details, error)
	// Ping returns an error if the machine does not answer.
	Ping(ctx context.Context) error
	// Client is a connection to the agent, which ends with the machine.
	Client() *wire.Client
}

// A Spare is a sandbox that is ready before anybody has asked for it. It is in no list, and ends
// with this process unless it was claimed. Its methods are not safe for concurrent use.
type Spare struct {
	store  *Store
	holder *starting
	dir    string
	asked  time.Time // when it answered last
	used   bool      // it belongs to a user
	key    string    // of its channels
}

// A spareRequest is a line to the holder of a spare sandbox. The answer is a report.
type spareRequest struct {
	ID   turnstone.SandboxID     `json:"id,omitempty"` // a claim; empty: a question whether it lives
	Spec Spec                    `json:"spec"`
	Seal *wire.SandboxSealParams `json:"seal,omitempty"`
}

const opClaim turnstone.Op = "sandbox.claim"

// Prepare makes a spare sandbox of spec, which has nothing of its later user. The caller must Claim
// or Close it.
func (s *Store) Prepare(ctx context.Context, spec Spec, progress func(string)) (*Spare, error) {
	spec.Spare = true
	if err := spec.Check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, createError(err)
	}
	s.sweep()
	id := turnstone.NewSandboxID()
	dir := filepath.Join(s.dir, newPrefix+string(id))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, createError(err)
	}
	h, err := s.startHolder(id, dir, spec)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, createError(err)
	}
	p := &Spare{store: s, holder: h, dir: filepath.Join(s.dir, sparePrefix+string(id)),
		asked: time.Now()}
	stop := context.AfterFunc(ctx, func() { h.interrupt(s.KillAfter) })
	r, err := h.await(progress)
	if stop(); err == nil && ctx.Err() == nil {
		p.key = r.Key
		return p, nil
	}
	if ctx.Err() != nil {
		err = canceled(ctx, "sandbox.create")
	}
	return nil, errors.Join(err, p.Close(), os.RemoveAll(dir))
}

// Key returns the key of the sandbox's channels, as Store.Seal does, and whether there is one yet.
func (p *Spare) Key() (key ChannelKey, ok bool) {
	key, err := channelKey("", p.key)
	return key, err == nil
}

// Ended is closed when the sandbox has died.
func (p *Spare) Ended() <-chan struct{} { return p.holder.ended }

// Ping returns an error if the sandbox has died or does not answer before ctx ends. It asks no
// sandbox that has answered within the last few seconds, given by fresh. After an error only Close
// is useful.
func (p *Spare) Ping(ctx context.Context, fresh time.Duration) error {
	select {
	case <-p.holder.ended:
		return p.gone(errors.New("its holder has ended"))
	default:
	}
	if time.Since(p.asked) < fresh {
		return nil
	}
	if _, err := p.ask(ctx, spareRequest{}); err != nil {
		return err
	}
	p.asked = time.Now()
	return nil
}

// A Claimed is a spare sandbox that became the sandbox of a user.
type Claimed struct {
	Info      Info
	Configure time.Duration // in which the machine got its settings
}

// Claim makes the spare sandbox the sandbox that spec describes, with spec.ID, as Create does, and
// gives it a Seal of its Key; nil: none. The Spare is used up in any case. An error of kind KindUnavailable or KindDead says that this spare
// sandbox cannot be the one of spec: Create may make another.
func (p *Spare) Claim(ctx context.Context, spec Spec, seal *Seal) (Claimed, error) {
	err := spec.Check()
	switch {
	case p.used:
		return Claimed{}, turnstone.Errorf(opClaim, turnstone.KindInvalid, "sandbox", "is in use")
	case err != nil:
	case spec.ID == "":
		err = turnstone.Errorf(opClaim, turnstone.KindInvalid, "sandbox", "it has no ID")
	case exists(p.store.path(spec.ID)):
		err = turnstone.Errorf(opClaim, turnstone.KindInvalid, "sandbox "+string(spec.ID),
			"exists already")
	case len(spec.Secrets) > 0: // the environment of the holder may have them, for its whole life
		err = turnstone.Errorf(opClaim, turnstone.KindUnavailable, "sandbox", "it holds secrets")
	}
	if err != nil {
		return Claimed{}, errors.Join(err, p.Close())
	}
	q := spareRequest{ID: spec.ID, Spec: spec}
	if seal != nil {
		q.Seal = seal.params()
	}
	r, err := p.ask(ctx, q)
	if err == nil {
		p.used = true
		_, _ = p.holder.input.Close(), p.holder.reports.Close()
		return Claimed{Info: *r.Ready, Configure: r.Adopted}, nil
	}
	err = errors.Join(err, p.Close())
	_ = p.store.Remove(context.WithoutCancel(ctx), spec.ID) // it may have become ready at the last moment
	if ctx.Err() != nil {
		return Claimed{}, canceled(ctx, opClaim)
	}
	return Claimed{}, err
}

// ask sends a request, and waits for the answer.
func (p *Spare) ask(ctx context.Context, q spareRequest) (report, error) {
	defer context.AfterFunc(ctx, func() { _ = p.holder.reports.SetReadDeadline(time.Now()) })()
	if err := p.holder.send(q); err != nil {
		return report{}, p.gone(err)
	}
	r, err := p.holder.await(nil)
	if ctx.Err() != nil {
		return r, canceled(ctx, opClaim)
	}
	return r, err
}

func (p *Spare) gone(err error) error {
	return turnstone.NewError(opClaim, turnstone.KindDead, "the spare sandbox", err)
}

// Close ends the sandbox, unless it was claimed, and removes it.
func (p *Spare) Close() error {
	if p.used {
		return nil
	}
	_, _ = p.holder.input.Close(), p.holder.reports.Close()
	select {
	case <-p.holder.ended:
	case <-time.After(p.store.KillAfter):
		p.holder.interrupt(p.store.KillAfter)
		<-p.holder.ended
	}
	if err := os.RemoveAll(p.dir); err != nil {
		return turnstone.NewError("sandbox.remove", turnstone.KindUnavailable, p.dir, err)
	}
	return nil
}

// spare makes a machine and keeps it until it is claimed. It returns the claim's spec and what
// opens its machine, or an error if there is no claim.
func (h *holder) spare(ctx context.Context, open Opener, spec Spec, in *bufio.Reader,
	tell reporter) (Spec, Opener, error) {
	if err := h.take(); err != nil {
		return spec, nil, err
	}
	dir := filepath.Join(h.store.dir, sparePrefix+string(h.id))
	if err := os.Rename(h.dir, dir); err != nil {
		return spec, nil, createError(err)
	}
	h.dir = dir
	m, d, err := open(ctx, h.id, spec, tell.progress)
	if err == nil {
		h.machine = m
		err = h.followFirst(ctx, d)
	}
	a, ok := m.(Adopter)
	if err == nil && !ok {
		err = turnstone.Errorf(opClaim, turnstone.KindInternal, "sandbox",
			"its machine is a %T, which cannot be claimed", m)
	}
	if err == nil {
		err = h.listen()
	}
	var q spareRequest
	if err == nil {
		key := h.ownKey(ctx, a.Client())
		h.log.Info("ready for a claim")
		tell.send(report{Ready: &Info{ID: h.id}, Key: key})
		q, err = h.claimed(ctx, a, in, tell)
	}
	if err != nil {
		return spec, nil, errors.Join(err, h.unregistered())
	}
	h.adopter = a
	return q.Spec, func(ctx context.Context, id turnstone.SandboxID, spec Spec, _ func(string)) (
		Machine, Details, error) {
		began := time.Now()
		sealed := make(chan error, 1)
		go func() { sealed <- sealTo(ctx, a.Client(), q.Seal) }()
		d, err := a.Adopt(ctx, id, spec)
		err = errors.Join(err, <-sealed)
		h.adopted = time.Since(began)
		return m, d, err
	}, nil
}

// ownKey makes the agent make the key of its channels, and returns it; empty: a later Seal does. The
// agent of a spare machine has random numbers of its own, and no snapshot of it is ever taken.
func (h *holder) ownKey(ctx context.Context, c *wire.Client) string {
	ctx, cancel := context.WithTimeout(ctx, followTime)
	defer cancel()
	res, err := c.SandboxSeal(ctx, new(wire.SandboxSealParams))
	if err != nil {
		h.log.Info("no key before the claim", "err", err)
		return ""
	}
	return res.Key
}

// sealTo gives the agent the statement for its user; nil: there is none. No socket is served yet.
func sealTo(ctx context.Context, c *wire.Client, p *wire.SandboxSealParams) error {
	if p == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, followTime)
	defer cancel()
	_, err := c.SandboxSeal(ctx, p)
	return err
}

// claimed waits for the claim, and answers whether the machine lives.
func (h *holder) claimed(ctx context.Context, a Adopter, in *bufio.Reader, tell reporter) (
	spareRequest, error) {
	requests := make(chan spareRequest)
	go func() {
		defer close(requests)
		for {
			var q spareRequest
			if readLine(in, &q) != nil {
				return
			}
			select {
			case requests <- q:
			case <-h.machine.Done():
				return
			}
			if q.ID != "" {
				return
			}
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return spareRequest{}, canceled(ctx, opClaim)
		case <-h.machine.Done():
			return spareRequest{}, turnstone.NewError(opClaim, turnstone.KindDead, "the spare sandbox",
				fmt.Errorf("its machine ended: %w", errors.Join(h.machine.Err())))
		case q, ok := <-requests:
			switch {
			case !ok:
				return q, turnstone.NewError(opClaim, turnstone.KindCanceled,
					"the spare sandbox", io.EOF)
			case q.ID == "":
				if err := a.Ping(ctx); err != nil {
					return q, err
				}
				tell.send(report{Ready: &Info{ID: h.id}})
				continue
			case !idForm.MatchString(string(q.ID)):
				return q, notFound(string(q.ID))
			}
			h.id = q.ID
			return q, q.Spec.Check()
		}
	}
}

// unregistered removes a spare sandbox that nobody has claimed. It does nothing for others.
func (h *holder) unregistered() error {
	if !strings.HasPrefix(filepath.Base(h.dir), sparePrefix) {
		return nil
	}
	var err error
	if h.machine != nil {
		err = h.machine.Close()
	}
	for _, l := range h.sockets {
		_ = l.Close()
	}
	return errors.Join(err, os.RemoveAll(h.dir))
}
