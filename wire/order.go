package wire

import "context"

// ordered is implemented by the parameters of commands that are carried out in
// the order in which they came: those of one lane one after another. All others
// run side by side.
type ordered interface{ lane() string }

// A client need not wait for the answer to one write before it sends the next,
// as a person who types does not, nor before it closes what it wrote to.
func (p *ProcessWriteParams) lane() string      { return "stdin " + p.ProcessID }
func (p *ProcessCloseStdinParams) lane() string { return "stdin " + p.ProcessID }

// enter takes a command's place in its lane. The reading goroutine calls it. wait
// returns when the ones before it are done, or ctx has ended; leave lets the next
// one go.
func (c *Conn) enter(params any) (wait func(ctx context.Context), leave func()) {
	o, ok := params.(ordered)
	if !ok {
		return func(context.Context) {}, func() {}
	}
	lane, done := o.lane(), make(chan struct{})
	c.mu.Lock()
	before := c.lanes[lane]
	c.lanes[lane] = done
	c.mu.Unlock()
	wait = func(ctx context.Context) {
		if before == nil {
			return
		}
		select {
		case <-before:
		case <-ctx.Done():
		}
	}
	leave = func() {
		close(done)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.lanes[lane] == done {
			delete(c.lanes, lane)
		}
	}
	return wait, leave
}
