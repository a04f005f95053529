package controller

// Measure emits the numbers of nodes, watches and waiting reports, and the size of the records: see
// telemetry.Measurer.
func (c *Controller) Measure(emit func(name string, value float64, labels ...string)) {
	up, lost := c.nodes.count()
	emit("turnstone_controller_nodes", float64(up), "up")
	emit("turnstone_controller_nodes", float64(lost), "lost")
	emit("turnstone_controller_watches", float64(c.hub.count()))
	emit("turnstone_controller_reports_waiting", float64(c.waiting.Load()))
	if s, ok := c.o.Records.(interface{ Size() int64 }); ok {
		emit("turnstone_records_bytes", float64(s.Size()))
	}
}

func (r *registry) count() (up, lost int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.all {
		if r.answers(n) {
			up++
		} else {
			lost++
		}
	}
	return up, lost
}
