// Package topcmd has turn top, which shows what runs.
package topcmd

import (
	"context"
	"io"
	"time"

	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/terminal"
)

// Cmd is turn top.
type Cmd struct {
	Once bool `help:"Print what runs now, and exit."`
	JSON bool `name:"json" help:"Print what runs now as JSON, and exit."`
}

// Help returns the text below the command's summary.
func (c *Cmd) Help() string {
	return `Shows the turns and sandboxes that run, and those that are paused or reserved: of the
host in use, of which a token sees its tenant's, else of this machine. q and Ctrl-C
quit. Without a terminal it prints once, as --once does.

CPU and MEMORY are used by the processes of a sandbox since its start, and its size:
on a host the sizes only.`
}

// Examples returns command lines for the help.
func (c *Cmd) Examples() []string {
	return []string{
		"turn top",
		"turn top --once",
	}
}

// A source knows what runs.
type source interface {
	// once returns what runs now.
	once(ctx context.Context) (*Report, error)
	// follow calls show with what runs, again and again, until ctx ends. While it cannot know, it
	// calls show with the last report and an error.
	follow(ctx context.Context, show func(*Report, error)) error
}

// Run shows what runs.
func (c *Cmd) Run(a *cli.App) error {
	return a.Do(func(ctx context.Context) error {
		src, closed, err := open(ctx, a)
		if err != nil {
			return err
		}
		defer closed()
		if c.Once || c.JSON || !terminal.CanShow(a.Stdout) {
			r, err := src.once(ctx)
			if r == nil {
				r = newReport()
			}
			return a.Result(r, err, func(w io.Writer) { r.print(w, time.Now()) })
		}
		return live(ctx, a, src)
	})
}

// open returns the source of the host in use, or of this machine.
func open(ctx context.Context, a *cli.App) (source, func(), error) {
	server, err := a.Server(ctx)
	if err != nil {
		return nil, nil, err
	}
	if server != nil {
		return &remoteSource{server: server}, func() { _ = server.Close() }, nil
	}
	return openLocal(ctx, a)
}

// Times of the screen.
const (
	redraw = time.Second            // ages grow
	look   = 200 * time.Millisecond // at the size of the terminal
)

// live shows what runs on the terminal, until the user quits or ctx ends.
func live(ctx context.Context, a *cli.App, src source) error {
	screen, err := terminal.OpenScreen(a.Stdin, a.Stdout)
	if err != nil {
		return err
	}
	defer screen.Close()
	ctx, stop := context.WithCancel(ctx)
	type shown struct {
		report *Report
		err    error
	}
	news, failed := make(chan shown, 1), make(chan error, 1)
	go func() {
		failed <- src.follow(ctx, func(r *Report, err error) {
			select {
			case <-news: // the older one, which nobody has taken
			default:
			}
			news <- shown{r, err}
		})
	}()
	ended := false
	defer func() {
		stop()
		if !ended {
			<-failed
		}
	}()
	v := view{report: nil, title: "waiting for the first report"}
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		if err := v.draw(screen); err != nil {
			return err
		}
		select {
		case key, ok := <-screen.Keys():
			if !ok || key == 'q' || key == 'Q' || key == 3 { // Ctrl-C
				return nil
			}
		case n := <-news:
			v.set(n.report, n.err)
		case err := <-failed:
			ended = true
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// A view is what the screen shows.
type view struct {
	report *Report
	title  string // in place of the summary; empty: there is a report
	fault  error

	drawn         time.Time // when the screen was drawn last; zero: it has to be drawn
	columns, rows int       // then
}

func (v *view) set(r *Report, err error) {
	v.report, v.fault, v.title, v.drawn = r, err, "", time.Time{}
}

// draw draws the screen if it changed, its size changed, or ages have grown.
func (v *view) draw(s *terminal.Screen) error {
	columns, rows := s.Size()
	now := time.Now()
	if columns == v.columns && rows == v.rows && now.Sub(v.drawn) < redraw {
		return nil
	}
	v.columns, v.rows, v.drawn = columns, rows, now
	return s.Draw(v.lines(now))
}
