package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Numbers of rounds of the part sdk.
const (
	sdkExecs  = 100
	sdkFiles  = 3
	sdkFirsts = 10
)

// sdkFileSize is what the programs copy in each direction.
const sdkFileSize = 64 << 20

// An sdkRow is a row of the tables, and the program that measures it; empty: package client does.
type sdkRow struct{ name, title, program string }

func sdkRows() []sdkRow {
	return []sdkRow{goRow, {"python", "Python", "sdk/python/bench sync"},
		{"asyncio", "Python, asyncio", "sdk/python/bench async"},
		{"typescript", "TypeScript (Node.js)", "sdk/typescript/bench"}}
}

var goRow = sdkRow{"go", "Go", ""}

// sdkReady are the files that the programs make at the end of their installation.
var sdkReady = map[string]string{"sdk/python/bench": ".cache/bench-python/ready",
	"sdk/typescript/bench": ".cache/bench-typescript/ready"}

// affordable returns the rows that a run measures: a quick run does not install programs, which takes minutes.
func (b *bench) affordable(rows []sdkRow) []sdkRow {
	if !b.quick() {
		return rows
	}
	return slices.DeleteFunc(slices.Clone(rows), func(r sdkRow) bool {
		program, _, _ := strings.Cut(r.program, " ")
		_, err := os.Stat(sdkReady[program])
		return program != "" && err != nil
	})
}

// sdk compares the SDKs, in rounds that measure each of them once, and E2B's client with our own.
func (b *bench) sdk(ctx context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0") // a free port
	if err != nil {
		return err
	}
	door := l.Addr().String()
	_ = l.Close()
	s, err := b.serve(ctx, "TURN_SERVER_E2B_LISTEN="+door, "TURN_SERVER_E2B_DOMAIN=sandboxes.test")
	if err != nil {
		return err
	}
	defer s.end()
	env := append(s.remote, "E2B_API_URL=http://"+door, "E2B_SANDBOX_URL=http://"+door,
		"E2B_API_KEY=e2b_"+s.token)
	fmt.Printf("## SDKs%s\n\nLoad of the machine: %s.\n\n", b.on(), load())
	for _, r := range sdkRows() {
		if !slices.Contains(b.affordable(sdkRows()), r) {
			fmt.Printf("Not measured in a quick run, because it is not installed: %s.\n\n", r.title)
		}
	}
	if err := b.sdkExec(ctx, env); err != nil {
		return err
	}
	if err := b.sdkFiles(ctx, env); err != nil {
		return err
	}
	if err := b.sdkFirst(ctx, env); err != nil {
		return err
	}
	fmt.Printf("Load of the machine: %s.\n\n", load())
	return nil
}

// measureSDKs returns the metrics of measurements by their names.
func (b *bench) measureSDKs(ctx context.Context, env []string, what string, rounds int, rows []sdkRow) (
	all map[string]map[string]float64, err error) {
	var programs strings.Builder
	for _, r := range b.affordable(rows) {
		if r.program == "" {
			env = append(env, "TURNSTONE_BENCH_GO=1")
			continue
		}
		program, args, _ := strings.Cut(r.program, " ")
		path, err := filepath.Abs(program)
		if err != nil {
			return nil, err
		}
		fmt.Fprintln(&programs, r.name, path, args)
	}
	found, err := b.floorBenchmarks(ctx, "client", "SDKs/^"+what+"$", b.divide.Times(rounds),
		append(env, "TURNSTONE_BENCH_SDKS="+programs.String())...)
	all = map[string]map[string]float64{}
	for name, metrics := range found {
		all[strings.TrimPrefix(name, "SDKs/")] = metrics
	}
	return all, err
}

func (b *bench) sdkExec(ctx context.Context, env []string) error {
	all, err := b.measureSDKs(ctx, env, "exec", sdkExecs, sdkRows())
	if err != nil {
		return err
	}
	m := all["exec"]
	fmt.Print("| `true` in a warm sandbox | min | p50 | p99 | more than Go, p50 of the pairs | goal |\n" +
		"|---|---|---|---|---|---|\n")
	goals := map[string]string{"go": "", "python": "3.0 ms", "asyncio": "3.0 ms", "typescript": "1.5 ms"}
	for _, r := range b.affordable(sdkRows()) {
		fmt.Printf("| %s | %.1f ms | %.1f ms | %.1f ms | %.1f ms | %s |\n", r.title, m[r.name+"-min-ms"],
			m[r.name+"-p50-ms"], m[r.name+"-p99-ms"], m[r.name+"-added-ms"], goals[r.name])
	}
	fmt.Println()
	return nil
}

// sdkFiles compares files with what the channel to the sandbox carries, in pairs.
func (b *bench) sdkFiles(ctx context.Context, env []string) error {
	m, err := b.measureSDKs(ctx, env, "(up|down)", sdkFiles, sdkRows())
	if err != nil {
		return err
	}
	fmt.Printf("| files of %s, p50, MB/s (goal: 0.5 of the channel) | up | of the channel | down | "+
		"of the channel |\n|---|---|---|---|---|\n", b.bytes(sdkFileSize))
	rows := append([]sdkRow{{"channel", "the channel: a command's input and output, with Go", ""}},
		b.affordable(sdkRows())...)
	megabytes := float64(b.divide.Of(sdkFileSize)) / 1e6
	for _, r := range rows {
		fmt.Printf("| %s |", r.title)
		for _, way := range []string{"up", "down"} {
			fmt.Printf(" %.0f | %.2f |", megabytes/m[way][r.name+"-p50-ms"]*1000, m[way][r.name+"-share"])
		}
		fmt.Println()
	}
	fmt.Println()
	return nil
}

// sdkFirst compares E2B's own client with ours, from the creation of a sandbox to its first output.
func (b *bench) sdkFirst(ctx context.Context, env []string) error {
	rows := []sdkRow{{"python", "this project's SDK for Python", "sdk/python/bench sync"},
		{"e2b", "E2B's client for Python, unchanged, without a channel", "sdk/python/bench e2b"}}
	if rows = b.affordable(rows); len(rows) == 0 {
		rows = []sdkRow{goRow}
	}
	all, err := b.measureSDKs(ctx, env, "first", sdkFirsts, rows)
	if err != nil {
		return err
	}
	m := all["first"]
	fmt.Print("| from the creation of a sandbox to the first output | min | p50 | p99 |\n|---|---|---|---|\n")
	for _, r := range rows {
		fmt.Printf("| %s | %.0f ms | %.0f ms | %.0f ms |\n", r.title, m[r.name+"-min-ms"],
			m[r.name+"-p50-ms"], m[r.name+"-p99-ms"])
	}
	fmt.Println()
	return nil
}
