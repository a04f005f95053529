package controller

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/controller/quota"
)

// BenchmarkFlood measures the creations of one tenant, alone and beside 20 clients of another that
// create without a pause, at a node in memory: what the controller, its queues and its database
// cost. Most creations of the flood "refused" are beyond its quota; the flood "served" removes what
// it creates; the flood "turns" starts turns.
func BenchmarkFlood(b *testing.B) {
	for _, kind := range []string{"refused", "served", "turns"} {
		b.Run(kind, func(b *testing.B) { benchFlood(b, kind) })
	}
}

func benchFlood(b *testing.B, kind string) {
	w := newWorld(b, "n1")
	w.stop()
	w.quota = func(string) quota.Limits { return quota.Limits{Sandboxes: 50} }
	w.nodes[0].capacity = &v1.Machine{} // without a bound: what was placed counts for a while
	w.start()
	w.join(w.nodes[0])
	quiet, flood := w.as(with("quiet")), w.as(with("flood"))
	key := 0
	var alone, beside []time.Duration
	for b.Loop() {
		alone = append(alone, quietly(b, quiet, &key)...)
		stop := startFlood(b, w.http.URL, flood.token, kind)
		beside = append(beside, quietly(b, quiet, &key)...)
		stop()
	}
	for _, q := range []struct {
		name string
		of   float64
	}{{"p50", 0.5}, {"p99", 0.99}} {
		a, c := quantile(alone, q.of), quantile(beside, q.of)
		b.ReportMetric(a, "alone-"+q.name+"-ms")
		b.ReportMetric(c, "beside-"+q.name+"-ms")
		b.ReportMetric(c/a, "ratio-"+q.name)
	}
}

// quietly creates and removes sandboxes one after the other, and returns how long their creations
// took.
func quietly(b *testing.B, c *callerClient, key *int) (all []time.Duration) {
	for range 500 {
		*key++
		began := time.Now()
		made, err := c.sandboxes.CreateSandbox(b.Context(), box(fmt.Sprint("q", *key), 1))
		must(b, err)
		all = append(all, time.Since(began))
		_, err = c.sandboxes.DeleteSandbox(b.Context(), ask(&v1.DeleteSandboxRequest{
			SandboxId: made.Msg.Sandbox.SandboxId}))
		must(b, err)
	}
	return all
}

// startFlood starts the clients of a flood in a process of their own, as those of a server are, and
// returns once they call.
func startFlood(b *testing.B, at, token, kind string) (stop func()) {
	x := exec.Command(os.Args[0], "-test.run", "^TestFloodClients$")
	x.Env = append(os.Environ(), "FLOOD_AT="+at, "FLOOD_TOKEN="+token, "FLOOD_KIND="+kind)
	x.Stderr = os.Stderr
	in, err := x.StdinPipe()
	must(b, err)
	out, err := x.StdoutPipe()
	must(b, err)
	must(b, x.Start())
	_, err = bufio.NewReader(out).ReadString('\n')
	must(b, err)
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return func() {
		_ = in.Close()
		_ = x.Wait()
	}
}

// TestFloodClients is the process of startFlood. It ends with its input.
func TestFloodClients(t *testing.T) {
	kind := os.Getenv("FLOOD_KIND")
	if kind == "" {
		t.Skip("it is the process of a benchmark")
	}
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	c := clientsOf(&http.Transport{MaxIdleConnsPerHost: 100}, os.Getenv("FLOOD_AT"),
		os.Getenv("FLOOD_TOKEN"))
	run, calls := newID("f"), atomic.Int64{}
	var clients sync.WaitGroup
	for i := range 20 {
		clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				once(ctx, c, kind, fmt.Sprint(run, "-", i, "-", n))
				if calls.Add(1) == 100 {
					fmt.Println("floods")
				}
			}
		})
	}
	clients.Wait()
	c.http.CloseIdleConnections()
}

// once is a call of a flood. Its error is that of a limit.
func once(ctx context.Context, c *callerClient, kind, key string) {
	if kind == "turns" {
		_, _ = c.turns.StartTurn(ctx, ask(&v1.StartTurnRequest{IdempotencyKey: key, Client: newClient()}))
		return
	}
	made, err := c.sandboxes.CreateSandbox(ctx, box(key, 1))
	if err == nil && kind == "served" {
		_, _ = c.sandboxes.DeleteSandbox(ctx, ask(&v1.DeleteSandboxRequest{
			SandboxId: made.Msg.Sandbox.SandboxId}))
	}
}

// quantile returns a quantile in milliseconds.
func quantile(all []time.Duration, of float64) float64 {
	slices.Sort(all)
	return float64(all[int(of*float64(len(all)-1))].Microseconds()) / 1000
}
