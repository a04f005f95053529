package repo

import (
	"context"
	"maps"
	"slices"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/seal"
)

// A Collector is Keys that can destroy the keys of domains that no session is in.
type Collector interface {
	// Settle says that the session of a domain that New returned is stored, or never will be. Until
	// then Collect of any process leaves the domain alone.
	Settle(id turnstone.DomainID)
	// Discard destroys the key of a domain that New returned for a session that was not stored.
	Discard(ctx context.Context, id turnstone.DomainID) error
	// Collect destroys the keys of domains that were made before a time and that used rejects, and
	// returns their IDs. A dry run destroys nothing. It needs no key.
	Collect(ctx context.Context, before time.Time, dry bool,
		used func(ctx context.Context, id turnstone.DomainID) (bool, error)) ([]turnstone.DomainID, error)
	// Damaged calls f with each domain whose wrapped key cannot be read.
	Damaged(f func(id turnstone.DomainID, err error)) error
	// Has reports whether there is a key of a domain, wrapped.
	Has(id turnstone.DomainID) bool
}

// keyGrace is how long gc leaves a domain alone that no session is in. A process that needs longer
// between a domain and its session has a lock; this is for what has none, such as a domain that was
// made by hand.
const keyGrace = time.Hour

func settle(keys Keys, d turnstone.DomainID) {
	if c, can := keys.(Collector); can && d != "" {
		c.Settle(d)
	}
}

// Settle says that the session of a domain that NewDomain returned is stored, or never will be.
func (cs *ContextStore) Settle(d turnstone.DomainID) { settle(cs.keys, d) }

// Discard destroys the key of a domain that was made for a session that was not stored, or that was
// removed again before it had a turn. It does nothing if a session is in the domain.
func (cs *ContextStore) Discard(ctx context.Context, d turnstone.DomainID) error {
	c, can := cs.keys.(Collector)
	if !can || d == "" {
		return nil
	}
	if used, err := cs.DB.UsesDomain(ctx, d); err != nil || used {
		return err
	}
	if err := cs.dir.ForgetMemory("images", string(d)); err != nil {
		return err
	}
	return c.Discard(ctx, d)
}

// collectKeys destroys the keys of domains that no session is in and that nothing in the store is
// sealed with. It is called after the store was swept.
func (cs *ContextStore) collectKeys(ctx context.Context, rep *turnstone.GCReport,
	req turnstone.GCRequest) (err error) {
	rep.Domains = []turnstone.DomainID{}
	c, can := cs.keys.(Collector)
	if !can {
		return nil
	}
	var stored map[seal.ID]store.DomainUsage
	rep.Domains, err = c.Collect(ctx, req.Now.Add(-keyGrace), req.DryRun,
		func(ctx context.Context, id turnstone.DomainID) (bool, error) {
			if used, err := cs.DB.UsesDomain(ctx, id); err != nil || used || req.DryRun {
				return used, err
			}
			if stored == nil { // once, and only if a domain is not used
				if stored, err = cs.Store.Domains(ctx); err != nil {
					return false, err
				}
			}
			named, err := seal.ParseID(string(id))
			return stored[named].Objects > 0, err
		})
	return err
}

// checkKeys reports domains whose keys are damaged, sessions whose keys are gone, and domains that no
// session is in.
func (cs *ContextStore) checkKeys(ctx context.Context, rep *turnstone.FsckReport) error {
	c, can := cs.keys.(Collector)
	if !can || cs.DB == nil {
		return nil
	}
	in, err := cs.DB.Domains(ctx)
	if err != nil {
		return err
	}
	err = c.Damaged(func(id turnstone.DomainID, err error) {
		addProblem(rep, turnstone.FsckProblem{Where: "domain " + string(id),
			Error: CauseOf(err).Error()})
	})
	if err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(in)) {
		if c.Has(id) {
			continue
		}
		addProblem(rep, turnstone.FsckProblem{Where: "session " + string(in[id][0]),
			Error: "its key is gone: domain " + string(id) + " has no file. Restore it from a backup, " +
				"or complete the removal with turn session rm --shred"})
	}
	rep.Unused, err = c.Collect(ctx, time.Now().Add(-keyGrace), true, cs.DB.UsesDomain)
	return err
}
