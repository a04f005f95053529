package main

import (
	"bytes"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
	"github.com/rogpeppe/go-internal/testscript"
)

// unpack decompresses an exported session, so that a script can search every object in it: "unpack
// EXPORT FILE".
func unpack(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: unpack EXPORT FILE")
	}
	b, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	in, err := zstd.NewReader(bytes.NewReader(b))
	ts.Check(err)
	defer in.Close()
	all, err := io.ReadAll(in)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), all, 0o600))
}
