package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"turnstone.dev/turnstone"
)

// turns compares turns of a session on a server whose machines wait with those that start them.
func (b *bench) turns(ctx context.Context) error {
	fmt.Printf("## Turns of a session on a server%s\n\nA turn of `true`, the whole `turn run`; its "+
		"parts by its report, the rest is client, gateway, controller and channel.\n\n", b.on())
	for _, row := range []struct {
		name, turns string
	}{{"cold", "0"}, {"warm (goal: 40 ms)", "4"}} {
		if err := b.sessionTurns(ctx, row.name, row.turns); err != nil {
			return err
		}
	}
	return nil
}

// sessionTurns prints the times of turns on a server on which so many machines may wait.
func (b *bench) sessionTurns(ctx context.Context, name, warm string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	page := l.Addr().String()
	_ = l.Close()
	s, err := b.serve(ctx, "TURN_SERVER_NODE_WARM_TURNS="+warm, "TURN_SERVER_TELEMETRY_LISTEN="+page)
	if err != nil {
		return err
	}
	defer s.end()
	doc := filepath.Join(b.dir, "true.md")
	if err := os.WriteFile(doc, []byte(step("true")), 0o600); err != nil {
		return err
	}
	parts := newPhases()
	session := fmt.Sprintf("bench-%d", time.Now().UnixNano()) // the server's sessions stay
	var all []time.Duration
	for i := range b.runs + 1 {
		began := time.Now()
		out, err := b.output(ctx, s.remote, "run", "-q", "--json", "--session", session, doc)
		took := time.Since(began)
		if err != nil {
			return err
		}
		var report turnstone.TurnReport
		if err := json.Unmarshal([]byte(out), &report); err != nil {
			return err
		}
		if i > 0 { // the first has no turn before it
			all = append(all, took)
			parts.add(report.Phases, took)
		}
		if warm != "0" {
			if err := ready(ctx, page); err != nil {
				return err
			}
		}
	}
	fmt.Printf("**%s**: p50 %s, p99 %s\n\n", name, ms(quantile(all, 50)), ms(quantile(all, 99)))
	parts.print()
	return nil
}

// ready waits until a machine waits for the next turn, as the page of the server's metrics says.
func ready(ctx context.Context, page string) error {
	for until := time.Now().Add(5 * time.Minute); time.Now().Before(until); {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+page+"/metrics", nil)
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil {
			return err
		}
		if strings.Contains(string(text), "turnstone_warm_turns{state=\"ready\"} 1\n") {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return errors.New("no machine waits for the next turn")
}
