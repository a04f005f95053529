package container

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"turnstone.dev/turnstone/internal/kube/agents"
)

// TestInits: init containers run one after another, each until it has succeeded, and then the container's own process.
// Another operator runs none again.
func TestInits(t *testing.T) {
	w := newWorld(t)
	log, data := filepath.Join(w.dir, "log"), filepath.Join(w.dir, "data")
	init := func(name, script string) agents.Init {
		return agents.Init{Name: name, Argv: append(sh(script), log), Env: []string{"WHO=" + name}}
	}
	m := agents.Main{Argv: append(sh(`echo main$WHO >>"$0"; exec sleep 1000`), log), Again: agents.Always, Dirs: []string{data},
		Inits: []agents.Init{init("one", `echo $WHO >>"$0"; test $(wc -l <"$0") -gt 2`),
			init("two", fmt.Sprintf(`echo $WHO >>"$0"; test -d %s`, data))}}
	stop := w.follow(m, soon())
	w.until("the first is in back-off", func(p agents.Process) bool {
		return p.Reason == "CrashLoopBackOff" && strings.Contains(p.Message, "the init container one starts again") &&
			strings.Contains(p.Message, "has ended with the status 1")
	})
	w.until("it runs", func(p agents.Process) bool { return p.Ready && p.Restarts == 0 })
	const all = "one\none\none\ntwo\nmain\n"
	w.reads(log, all)
	_ = stop()
	w.forget()
	stop = w.follow(m, soon())
	if p := w.until("it runs", func(agents.Process) bool { return true }); !p.Ready {
		t.Errorf("%+v", p)
	}
	_ = stop()
	w.reads(log, all)
}

// TestInitsFail: an init container that fails is the end, if its object says never, and a program that is not there
// is a failure.
func TestInitsFail(t *testing.T) {
	for _, argv := range [][]string{sh("echo why >&2; exit 3"), {"/no/such/program"}} {
		w := newWorld(t)
		m := agents.Main{Argv: []string{"true"}, Again: agents.Never, Output: true, Inits: []agents.Init{{Name: "bad", Argv: argv}}}
		w.follow(m, soon())
		p := w.until("it has failed", func(p agents.Process) bool { return p.Ended })
		if !p.Failed || !strings.Contains(p.Message, "the init container bad has ended with the status") {
			t.Errorf("%+v", p)
		}
	}
}

// TestInitInterrupted: an operator that finds an init container running awaits it.
func TestInitInterrupted(t *testing.T) {
	w := newWorld(t)
	log, up := filepath.Join(w.dir, "log"), filepath.Join(w.dir, "up")
	m := agents.Main{Argv: []string{"sleep", "1000"}, Again: agents.Always, Inits: []agents.Init{{Name: "waits",
		Argv: append(sh(`echo x >>"$0"; until test -e "$1"; do sleep 0.01; done`), log, up)}}}
	stop := w.follow(m, soon())
	w.until("it waits", func(p agents.Process) bool { return p.Reason == "PodInitializing" })
	w.reads(log, "x\n")
	_ = stop()
	w.forget()
	w.follow(m, soon())
	w.until("it waits", func(p agents.Process) bool { return p.Reason == "PodInitializing" })
	w.must(os.WriteFile(up, nil, 0o600))
	w.until("it runs", func(p agents.Process) bool { return p.Ready })
	w.reads(log, "x\n")
}

// TestStopInit: an init container that runs when its container is stopped gets TERM and no hook, and KILL in the end;
// nothing is started after it.
func TestStopInit(t *testing.T) {
	for _, c := range []struct {
		script string
		grace  time.Duration
		want   string
	}{
		{`trap 'echo term >>"$0"; exit' TERM; echo x >>"$0"; while :; do sleep 0.01; done`, time.Hour, "x\nterm\n"},
		{`trap '' TERM; echo x >>"$0"; while :; do sleep 1000; done`, 0, "x\n"},
	} {
		w := newWorld(t)
		log := filepath.Join(w.dir, "log")
		m := agents.Main{Argv: append(sh(`echo main >>"$0"`), log), Again: agents.Always, Grace: c.grace,
			PreStop: &agents.Hook{Exec: append(sh(`echo hook >>"$0"`), log)},
			Inits:   []agents.Init{{Name: "one", Argv: append(sh(c.script), log)}, {Name: "two", Argv: append(sh(`echo two >>"$0"`), log)}}}
		stop := w.follow(m, soon())
		w.until("it initializes", func(p agents.Process) bool { return p.Reason == "PodInitializing" })
		w.reads(log, "x\n")
		_ = stop()
		m.Stop = true
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		w.must(follow(ctx, w.options(m), soon()))
		cancel()
		w.reads(log, c.want)
	}
}

// TestPostStart: a process is not ready before its hook has ended, and is ended if the hook fails.
func TestPostStart(t *testing.T) {
	w := newWorld(t)
	up := filepath.Join(w.dir, "up")
	m := agents.Main{Argv: []string{"sleep", "1000"}, Again: agents.Always,
		PostStart: &agents.Hook{Exec: append(sh(`until test -s "$0"; do sleep 0.01; done; exit $(cat "$0")`), up)}}
	w.follow(m, soon())
	if p := w.until("it waits", func(agents.Process) bool { return true }); p.Ready || !strings.Contains(p.Message, "postStart") {
		t.Errorf("%+v", p)
	}
	w.must(os.WriteFile(up, []byte("3"), 0o600))
	w.until("it is ended", func(p agents.Process) bool {
		return p.Reason == "Unhealthy" && strings.Contains(p.Message, "postStart hook has failed: the command has ended with the status 3")
	})
	w.must(os.WriteFile(up, []byte("0"), 0o600))
	w.until("it is ready", func(p agents.Process) bool { return p.Ready && p.Restarts > 0 })
}

// TestStop: a container that is stopped gets its hook, TERM, and KILL in the end, and is not started again.
func TestStop(t *testing.T) {
	w := newWorld(t)
	log := filepath.Join(w.dir, "log")
	m := agents.Main{Argv: append(sh(`trap 'echo term >>"$0"; exit' TERM; echo x >>"$0"; while :; do sleep 0.01; done`), log),
		Again: agents.Always, Grace: time.Hour, PreStop: &agents.Hook{Exec: append(sh(`echo hook >>"$0"; exit 1`), log)}}
	stop := w.follow(m, soon())
	w.until("it runs", func(p agents.Process) bool { return p.Ready }) // the sandbox lists it
	w.reads(log, "x\n")
	_ = stop()
	end := func(m agents.Main) {
		t.Helper()
		m.Stop = true
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		w.must(follow(ctx, w.options(m), soon()))
	}
	end(m)
	w.reads(log, "x\nhook\nterm\n")
	end(m) // once more: it has ended
	w.reads(log, "x\nhook\nterm\n")
	w = newWorld(t)
	end(m) // a container that never started
	m = agents.Main{Argv: append(sh(`trap '' TERM; echo x >>"$0"; while :; do sleep 1000; done`), filepath.Join(w.dir, "log")), Again: agents.Always}
	stop = w.follow(m, soon())
	w.until("it runs", func(p agents.Process) bool { return p.Ready })
	w.reads(filepath.Join(w.dir, "log"), "x\n")
	_ = stop()
	end(m)
}

// TestHealth: probes ask the standard health service of gRPC.
func TestHealth(t *testing.T) {
	w := newWorld(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	of, server := health.NewServer(), grpc.NewServer()
	healthpb.RegisterHealthServer(server, of)
	of.SetServingStatus("bad", healthpb.HealthCheckResponse_NOT_SERVING)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	s := &session{follower: &follower{Options: Options{Loopback: true}}, w: w.client()}
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	for name, want := range map[string]string{"": "", "bad": "NOT_SERVING", "unknown": "NotFound"} {
		why, err := s.probe(t.Context(), &agents.Probe{GRPC: &agents.GRPC{Port: port, Service: name}, Timeout: patience})
		if err != nil || (why == "") != (want == "") || !strings.Contains(why, want) {
			t.Errorf("%q: %q, not %q; %v", name, why, want, err)
		}
	}
}
