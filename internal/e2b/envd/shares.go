package envd

// shares are places that tenants share. A tenant has at most as many as are free, so that it leaves
// places to others however many it asks for: one alone has half of them. The owner locks it.
type shares struct {
	most  int
	taken int
	per   map[string]int
}

// take takes a place for a tenant, and reports whether there was one.
func (s *shares) take(tenant string) bool {
	if s.per[tenant] >= s.most-s.taken {
		return false
	}
	if s.per == nil {
		s.per = map[string]int{}
	}
	s.taken++
	s.per[tenant]++
	return true
}

// leave gives a place of a tenant back.
func (s *shares) leave(tenant string) {
	s.taken--
	if s.per[tenant]--; s.per[tenant] == 0 {
		delete(s.per, tenant)
	}
}
