package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"

	"github.com/rogpeppe/go-internal/testscript"
)

// inherit runs a program that must succeed, with descriptors as a shell would pass them on, such as
// 7</etc/passwd, and checks that no process has them after its end: "inherit turn sandbox create".
// Its outputs go to the files out and err.
func inherit(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: inherit PROGRAM [ARG…]")
	}
	canary := ts.MkAbs("canary")
	ts.Check(os.WriteFile(canary, []byte("canary"), 0o600))
	file, err := os.Open(canary)
	ts.Check(err)
	folder, err := os.Open(ts.MkAbs("."))
	ts.Check(err)
	r, w, err := os.Pipe()
	ts.Check(err)
	cmd := program(ts, args)
	cmd.ExtraFiles = []*os.File{file, folder, r, w, file, file}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	ts.Check(os.WriteFile(ts.MkAbs("out"), stdout.Bytes(), 0o600))
	ts.Check(os.WriteFile(ts.MkAbs("err"), stderr.Bytes(), 0o600))
	if err != nil {
		ts.Fatalf("%v\n%s", err, last(stderr.Bytes()))
	}
	for _, f := range []*os.File{file, folder, r, w} {
		if pids := holders(ts, f); len(pids) > 0 {
			ts.Fatalf("%s is open in the processes %v", f.Name(), pids)
		}
		_ = f.Close()
	}
}

// holders returns the other processes that have the file of f open.
func holders(ts *testscript.TestScript, f *os.File) []string {
	own, err := f.Stat()
	ts.Check(err)
	all, _ := filepath.Glob("/proc/[0-9]*/fd/*") // other users' processes cannot be read
	var pids []string
	for _, path := range all {
		pid := filepath.Base(filepath.Dir(filepath.Dir(path)))
		if pid == strconv.Itoa(os.Getpid()) {
			continue
		}
		if st, err := os.Stat(path); err == nil && os.SameFile(st, own) {
			pids = append(pids, pid)
		}
	}
	return pids
}
