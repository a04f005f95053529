package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/server"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/doors"
	"turnstone.dev/turnstone/internal/server/mcpend"
	"turnstone.dev/turnstone/internal/server/service"
	"turnstone.dev/turnstone/internal/server/trail"
	"turnstone.dev/turnstone/internal/terminal"
	"turnstone.dev/turnstone/sandboxes"
)

// Run serves until a signal ends the server.
func (c *serveCmd) Run(a *cli.App) error {
	inherited, err := server.Inherit() // before anything else has a descriptor
	if err != nil {
		return cli.Fail(err)
	}
	dir, err := a.StateDir()
	if err != nil {
		return cli.Fail(err)
	}
	settings, err := c.settings(dir.Root)
	if err == nil && c.Local {
		alone(settings)
	}
	if err == nil {
		err = settings.CheckFiles()
	}
	if err != nil {
		return complain(a, err)
	}
	if c.CheckConfig {
		text, err := settings.TOML()
		for line := range strings.Lines(text) {
			terminal.Println(a.Stdout, strings.TrimSuffix(line, "\n"))
		}
		return err
	}
	log := logger(a.Stderr, settings.Log, a.Verbose)
	slog.SetDefault(log) // of the packages of a node
	ctx, now, stop := endings(log)
	defer stop()
	o := server.Options{Config: settings, Dir: dir, Executor: a.Env.Options, Inherited: inherited,
		Log: log}
	o.Executor.Dir = dir.Root
	o.Executor.Database = cmp.Or(settings.Machine.Database, o.Executor.Database)
	o.Executor.Store = cmp.Or(settings.Machine.Store, o.Executor.Store)
	o.MCP = func(i doors.Inside) doors.Door {
		return mcpend.NewInside(mcpend.Inside{Arrive: i.Arrive, Verifier: i.Verifier, Dial: i.Dial, Dir: dir,
			Idle: settings.MCP.Idle, Log: log})
	}
	if settings.Has(config.Node) {
		if o.Executor.Holder, err = holder(ctx); err != nil {
			return cli.Fail(err)
		}
	}
	if c.Local {
		return serve(ctx, now, o, openLocal)
	}
	return serve(ctx, now, o, server.Open)
}

// serve opens the server and serves. The service manager knows the state of it.
func serve(ctx, now context.Context, o server.Options,
	open func(context.Context, server.Options) (*server.Server, error)) error {
	manager := service.New(o.Log)
	s, err := open(ctx, o)
	if err != nil {
		return cli.Fail(err)
	}
	if s == nil { // another one serves this user
		return nil
	}
	manager.Ready(strings.Join(s.Addresses(), " "))
	ended := make(chan struct{})
	defer close(ended)
	go reload(s, manager, o.Log, ended)
	go manager.Watch(ended)
	defer context.AfterFunc(ctx, func() { manager.Stopping(o.Config.Limits.End) })()
	if err := s.Serve(ctx, now); err != nil {
		return cli.Fail(err)
	}
	return nil
}

// settings returns the settings of the flags, the environment and the file.
func (c *serveCmd) settings(dir string) (*config.Config, error) {
	environ := os.Environ()
	flags := map[string]string{}
	if c.Local {
		if c.Listen != "" || c.E2B != "" || len(c.Role) > 0 {
			return nil, turnstone.Errorf("serve", turnstone.KindInvalid, "--local",
				"serves with all roles at no address").WithHint("leave out --role, --listen and --e2b")
		}
		environ = append(environ, localEnviron()...)
	}
	for _, f := range []struct{ flag, variable, value string }{
		{"--role", config.Prefix + "ROLES", strings.Join(c.Role, ",")},
		{"--listen", config.Prefix + "LISTEN_ADDRESS", c.Listen},
		{"--e2b", config.Prefix + "E2B_LISTEN", c.E2B},
	} {
		if f.value != "" {
			environ = append(environ, f.variable+"="+f.value) // the last one counts
			flags[f.variable] = f.flag
		}
	}
	settings, err := config.Load(dir, c.Config, environ)
	var problems config.Problems
	if errors.As(err, &problems) {
		for _, p := range problems {
			if flag := flags[p.Source]; flag != "" {
				p.Source = flag
			}
		}
	}
	return settings, err
}

// complain prints each problem of the settings in a line.
func complain(a *cli.App, err error) error {
	var problems config.Problems
	if !errors.As(err, &problems) {
		return cli.Exit(cli.ExitUsage, err)
	}
	for _, p := range problems {
		terminal.Println(a.Stderr, "turn: "+terminal.Printable(p.Error()))
		if p.Hint != "" {
			terminal.Println(a.Stderr, "hint: "+terminal.Printable(p.Hint))
		}
	}
	return cli.Exit(cli.ExitUsage, nil)
}

// logger logs to w as the settings say; -v lowers the level.
func logger(w io.Writer, c config.Log, verbose int) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // the settings were checked
	o := &slog.HandlerOptions{Level: level - slog.Level(4*verbose)}
	if c.Format == "json" {
		return slog.New(trail.Logged(slog.NewJSONHandler(w, o)))
	}
	return slog.New(trail.Logged(slog.NewTextHandler(terminal.Cleaner(w), o)))
}

// holder is the program turn that keeps sandboxes. An update of its file does not change the running
// server's: the descriptor stays open.
func holder(ctx context.Context) (sandboxes.Holder, error) {
	path, err := host.FindTurn(ctx)
	fd := -1
	if err == nil {
		fd, err = openHigh(path)
	}
	if err != nil {
		return sandboxes.Holder{}, turnstone.NewError("serve", turnstone.KindUnavailable, "turn",
			err).WithHint("install turn " + turnstone.Version + " beside turn-server")
	}
	return sandboxes.Holder{Path: fmt.Sprintf("/proc/self/fd/%d", fd),
		Args: []string{"turn", "sandbox", "hold"}}, nil
}

// openHigh opens a file for reading at a descriptor that no child process uses for another file: exec
// resolves /proc/self/fd/N in the child, after its own descriptors from 3 on are in place. The lowest
// free one is 3 after a systemd socket was taken over.
func openHigh(path string) (int, error) {
	const first = 64
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, first)
}

// endings returns a context that ends with the first SIGTERM or SIGINT, and one that ends with the
// second.
func endings(log *slog.Logger) (ctx, now context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	now, cancelNow := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	done := make(chan struct{})
	go func() {
		for _, f := range []func(){cancel, cancelNow} {
			select {
			case <-done:
				return
			case s := <-signals:
				log.Info("signal", "name", s.String())
				f()
			}
		}
	}()
	return ctx, now, func() {
		signal.Stop(signals)
		close(done)
		cancel()
		cancelNow()
	}
}

// reload reads certificates again with each SIGHUP, until the server has ended.
func reload(s *server.Server, manager *service.Manager, log *slog.Logger, ended chan struct{}) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	defer signal.Stop(signals)
	for {
		select {
		case <-ended:
			return
		case <-signals:
			manager.Reloading()
			if err := s.Reload(); err != nil {
				log.Error("certificates cannot be read again", "error", err)
			}
			manager.Ready(strings.Join(s.Addresses(), " "))
		}
	}
}
