package warm_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/bench/size"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/internal/remote/hosts"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// The server of the benchmarks: its state directory, the one of a client that knows it as bench, the
// client's token, and a sandbox of the state directory without the server.
const (
	homeVariable    = "TURNSTONE_BENCH_HOME"
	clientVariable  = "TURNSTONE_BENCH_CLIENT"
	tokenVariable   = "TURNSTONE_BENCH_TOKEN"
	sandboxVariable = "TURNSTONE_BENCH_SANDBOX"
)

// claims are the claims of a burst, of which a number runs at once: a controller places no more than
// the node's memory holds. waiting are the sandboxes of the pool. All are for size.OfProgram to divide.
const (
	claims  = 200
	atOnce  = 64
	waiting = 20
)

func client(b *testing.B) *remote.Server {
	if os.Getenv(tokenVariable) == "" {
		b.Skipf("%s names no server", clientVariable)
	}
	s, err := hosts.Client{Dir: os.Getenv(clientVariable), Token: os.Getenv(tokenVariable)}.
		Server(b.Context(), "bench")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	return s
}

// A firstByte notes when its first byte was written.
type firstByte struct {
	at time.Time
	bytes.Buffer
}

func (f *firstByte) Write(p []byte) (int, error) {
	if f.at.IsZero() {
		f.at = time.Now()
	}
	return f.Buffer.Write(p)
}

// run returns when the first byte of a builtin's output came.
func run[E any](ctx context.Context, id turnstone.SandboxID,
	exec func(context.Context, turnstone.SandboxID, sandboxes.Command) (E, error)) (time.Time, error) {
	var out firstByte
	_, err := exec(ctx, id, sandboxes.Command{Argv: []string{"bash", "-c", "echo up"}, Stdout: &out})
	if err == nil && out.String() != "up\n" {
		err = errors.New("it printed " + out.String())
	}
	return out.at, err
}

func claimSpec() sandboxes.Spec {
	return sandboxes.Spec{Shape: turnstone.Shape{Memory: turnstone.MinMemory, Network: true},
		Image: "base", Substrate: "auto", TTL: 10 * time.Minute}
}

// full waits until the pool is full.
func full(b *testing.B) {
	n := size.OfProgram().Of(waiting)
	for until := time.Now().Add(5 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		found := 0
		logs, _ := filepath.Glob(filepath.Join(os.Getenv(homeVariable), "sandboxes", ".spare-*", "log"))
		for _, log := range logs {
			if text, err := os.ReadFile(log); err == nil && bytes.Contains(text, []byte("ready for a claim")) {
				found++
			}
		}
		if found >= n {
			return
		}
		if time.Now().After(until) {
			b.Fatalf("%d sandboxes wait", found)
		}
	}
}

// BenchmarkClaim compares a claim with the exec of a local client in a sandbox that is there,
// alternately: both until the first byte of a builtin's output.
func BenchmarkClaim(b *testing.B) {
	remote := client(b).AllSandboxes()
	local := sandboxes.NewStore(os.Getenv(homeVariable))
	there := turnstone.SandboxID(os.Getenv(sandboxVariable))
	var bare, create, claim, first, again, ask []float64
	for b.Loop() {
		full(b)
		began := time.Now()
		at, err := run(b.Context(), there, local.Exec)
		if err != nil {
			b.Fatal(err)
		}
		bare = append(bare, ms(at.Sub(began)))
		began = time.Now()
		i, err := remote.Create(b.Context(), claimSpec(), nil)
		if err != nil {
			b.Fatal(err)
		}
		made := time.Now()
		create = append(create, ms(made.Sub(began)))
		if at, err = run(b.Context(), i.ID, remote.Exec); err != nil {
			b.Fatal(err)
		}
		first = append(first, ms(at.Sub(made)))
		claim = append(claim, ms(at.Sub(began)))
		began = time.Now()
		if at, err = run(b.Context(), i.ID, remote.Exec); err != nil {
			b.Fatal(err)
		}
		again = append(again, ms(at.Sub(began)))
		conn, err := local.Dial(b.Context(), there)
		if err != nil {
			b.Fatal(err)
		}
		c := wire.NewClient(conn)
		began = time.Now()
		_, err = c.SandboxGetVersion(b.Context())
		ask = append(ask, ms(time.Since(began)))
		_ = c.Close()
		if err != nil {
			b.Fatal(err)
		}
		if err := remote.Remove(b.Context(), i.ID); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(0, "ns/op")
	for name, all := range map[string][]float64{"bare": bare, "create": create, "claim": claim,
		"first": first, "again": again, "ask": ask} {
		b.ReportMetric(quantile(all, 50), name+"-p50-ms")
		b.ReportMetric(quantile(all, 99), name+"-p99-ms")
	}
}

// BenchmarkPhases shows the parts of a claim's CreateSandbox. The rest is what gateway, controller and
// connections take.
func BenchmarkPhases(b *testing.B) {
	s := client(b)
	parts := make(map[string][]float64)
	for b.Loop() {
		full(b)
		began := time.Now()
		a, err := s.Sandboxes.CreateSandbox(b.Context(), connect.NewRequest(&v1.CreateSandboxRequest{
			IdempotencyKey: rand.Text(), Timeout: durationpb.New(10 * time.Minute),
			Source:  &v1.CreateSandboxRequest_Template{Template: "base"},
			Machine: &v1.Machine{Memory: uint64(turnstone.MinMemory)}}))
		if err != nil {
			b.Fatal(err)
		}
		rest := ms(time.Since(began))
		parts["all"] = append(parts["all"], rest)
		for _, p := range a.Msg.Phases {
			parts[p.Name] = append(parts[p.Name], ms(p.Took.AsDuration()))
			rest -= ms(p.Took.AsDuration())
		}
		parts["rest"] = append(parts["rest"], rest)
		if err := s.AllSandboxes().Remove(b.Context(),
			turnstone.SandboxID(a.Msg.Sandbox.SandboxId)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(0, "ns/op")
	for name, all := range parts {
		b.ReportMetric(quantile(all, 50), name+"-p50-ms")
		b.ReportMetric(quantile(all, 99), name+"-p99-ms")
	}
}

// BenchmarkBurst is many claims at once of a pool that is smaller. Each runs a command and is removed.
func BenchmarkBurst(b *testing.B) {
	remote := client(b).AllSandboxes()
	for b.Loop() {
		full(b)
		var mu sync.Mutex
		var took []float64
		ids := make(map[turnstone.SandboxID]bool)
		began := time.Now()
		var all sync.WaitGroup
		slots := make(chan struct{}, size.OfProgram().Of(atOnce))
		for range size.OfProgram().Of(claims) {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				i, err := remote.Create(b.Context(), claimSpec(), nil)
				waited := ms(time.Since(began))
				if err == nil {
					_, err = run(b.Context(), i.ID, remote.Exec)
				}
				if err == nil {
					err = remote.Remove(b.Context(), i.ID)
				}
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					b.Error(err)
					return
				}
				took = append(took, waited)
				ids[i.ID] = true
			})
		}
		all.Wait()
		slices.Sort(took)
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(float64(len(ids)), "served")
		b.ReportMetric(ms(time.Since(began))/1e3, "all-s")
		if n := size.OfProgram().Of(waiting); len(took) > n {
			b.ReportMetric(took[n-1], "warm-ms") // the last that waited
			b.ReportMetric(took[len(took)-1], "last-ms")
		}
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func quantile(all []float64, p int) float64 {
	s := slices.Sorted(slices.Values(all))
	return s[min(len(s)-1, len(s)*p/100)]
}
