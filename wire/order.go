package wire

import "context"

// ordered is implemented by the parameters of commands that run in their order of arrival: the
// commands of a lane run one after another. All other commands run concurrently.
type ordered interface{ lane() string }

// A client does not wait for the answer to a write before it sends the next write, such as a person
// who types, nor before it closes standard input.
func (p *ProcessWriteParams) lane() string      { return "stdin " + p.ProcessID }
func (p *ProcessCloseStdinParams) lane() string { return "stdin " + p.ProcessID }

// enter reserves a command's place in its lane. The reading goroutine calls enter. wait returns
// when the preceding commands are done or ctx has ended; leave starts the next command.
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
