package repo

import (
	"context"

	"turnstone.dev/turnstone"
)

// Usage sums the sessions' data and the disk usage.
func (x *Repo) Usage(ctx context.Context) (*turnstone.Usage, error) {
	cs, err := x.Open(ctx)
	if err != nil {
		return nil, err
	}
	sessions, err := cs.DB.List(ctx)
	if err != nil {
		return nil, err
	}
	u := &turnstone.Usage{Sessions: make([]turnstone.SessionUsage, 0, len(sessions))}
	c := &usageCount{cs: cs, owners: map[turnstone.Digest]usageOwner{}}
	for i, s := range sessions {
		turns, err := cs.DB.Turns(ctx, s.ID)
		if err != nil {
			return nil, err
		}
		u.Sessions = append(u.Sessions, turnstone.SessionUsage{ID: s.ID, Name: s.Name,
			Turns: len(turns)})
		if s.Domain != "" {
			turns = nil // what they need is in the domain
		}
		if err := c.session(ctx, i, turns); err != nil {
			return nil, err
		}
	}
	if err := c.homes(ctx, len(sessions)); err != nil {
		return nil, err
	}
	c.sum(u)
	if err := cs.addSealed(ctx, u, sessions); err != nil {
		return nil, err
	}
	if u.Store, err = cs.Store.Usage(ctx); err != nil {
		return nil, err
	}
	u.Database = diskUse(x.Dir.Path("context.db")) + diskUse(x.Dir.Path("context.db-wal"))
	for folder, to := range map[string]*int64{"images": &u.Images, "turns": &u.Turns,
		"machines": &u.Machines, "homes": &u.Homes, "templates": &u.Templates} {
		*to = diskUse(x.Dir.Path(folder))
	}
	u.Homes += c.logical[len(sessions)]
	return u, nil
}

// addSealed adds what sealed sessions occupy, which needs no key: the objects of their domains, as
// they are stored. sessions are those of u, in their order.
func (cs *ContextStore) addSealed(ctx context.Context, u *turnstone.Usage,
	sessions []turnstone.Session) error {
	domains, err := cs.Store.Domains(ctx)
	if err != nil {
		return err
	}
	stored, users := map[turnstone.DomainID]int64{}, map[turnstone.DomainID]int{}
	for id, d := range domains {
		stored[turnstone.DomainID(id.String())] = d.Stored
	}
	for _, s := range sessions {
		if s.Domain == "" {
			continue
		}
		if users[s.Domain]++; users[s.Domain] == 1 {
			u.Logical += stored[s.Domain]
		} else if users[s.Domain] == 2 {
			u.Shared += stored[s.Domain]
		}
	}
	for i, s := range sessions {
		switch one := &u.Sessions[i]; {
		case s.Domain == "":
		case users[s.Domain] == 1:
			one.Logical, one.Unique = stored[s.Domain], stored[s.Domain]
		default:
			one.Logical, one.Shared = stored[s.Domain], stored[s.Domain]
		}
	}
	return nil
}

// A usageCount records for each object the sessions that need it. Contents count as a whole, even
// if they share chunks with others.
type usageCount struct {
	cs      *ContextStore
	owners  map[turnstone.Digest]usageOwner
	shared  []int64 // by session
	logical []int64
}

type usageOwner struct {
	first int // the first session found to need it
	last  int // the last session found to need it
	many  bool
	size  int64
}

// add records that session i needs d, and reports whether that is new.
func (c *usageCount) add(i int, d turnstone.Digest, size int64) bool {
	o, known := c.owners[d]
	switch {
	case !known:
		o = usageOwner{first: i, last: i, size: size}
	case o.last == i:
		return false
	default:
		if !o.many {
			c.shared[o.first] += o.size
		}
		c.shared[i] += o.size
		o.many, o.last = true, i
	}
	c.logical[i] += o.size
	c.owners[d] = o
	return true
}

// measured records the size of an object that session i needs. Another session may have recorded it
// before.
func (c *usageCount) measured(i int) func(d turnstone.Digest, b []byte) error {
	return func(d turnstone.Digest, b []byte) error {
		if o := c.owners[d]; o.size == 0 {
			o.size = int64(len(b))
			c.owners[d] = o
			c.logical[i] += o.size
		}
		return nil
	}
}

func (c *usageCount) session(ctx context.Context, i int, turns []turnstone.Turn) error {
	c.shared, c.logical = append(c.shared, 0), append(c.logical, 0)
	r := c.reach(i)
	for _, t := range turns {
		if err := r.Turn(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

// reach returns a traversal that counts the data of session i.
func (c *usageCount) reach(i int) *Reach {
	add := func(d turnstone.Digest) bool { return c.add(i, d, 0) }
	r := &Reach{In: c.cs, Object: add, Got: c.measured(i),
		Failed: func(what string, err error) error {
			return turnstone.NewError("executor.usage", turnstone.KindOf(err), what, err).
				WithHint("list all damage with turn fsck")
		}}
	r.Content = func(ctx context.Context, content turnstone.Content) error {
		if content.Chunks == "" && c.cs.inTemplate(content.Digest) {
			return nil
		}
		c.add(i, content.Digest, content.Size)
		return nil
	}
	return r
}

// homes counts what homes need, as if they were session i.
func (c *usageCount) homes(ctx context.Context, i int) error {
	c.shared, c.logical = append(c.shared, 0), append(c.logical, 0)
	return c.reach(i).Homes(ctx, nil)
}

func (c *usageCount) sum(u *turnstone.Usage) {
	for _, o := range c.owners {
		u.Logical += o.size
		if o.many {
			u.Shared += o.size
		}
	}
	for i := range u.Sessions {
		s := &u.Sessions[i]
		s.Logical, s.Shared, s.Unique = c.logical[i], c.shared[i], c.logical[i]-c.shared[i]
	}
}
