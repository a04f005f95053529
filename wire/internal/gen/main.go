// Gen generates wire/protocol_gen.go and docs/wire.md from wire/protocol.json. Run it with go
// generate in wire's folder. With -check it writes nothing and fails if a file is out of date.
package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
)

//go:embed intro.md
var intro string

func main() {
	check := len(os.Args) > 1 && os.Args[1] == "-check"
	if err := run(".", check); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// run writes or checks the generated files. dir is wire's folder.
func run(dir string, check bool) error {
	text, err := os.ReadFile(filepath.Join(dir, "protocol.json"))
	if err != nil {
		return err
	}
	p, err := parse(text)
	if err != nil {
		return fmt.Errorf("protocol.json: %w", err)
	}
	code, err := goSource(p)
	if err != nil {
		return err
	}
	for _, out := range []struct {
		path string
		text []byte
	}{
		{filepath.Join(dir, "protocol_gen.go"), code},
		{filepath.Join(dir, "..", "docs", "wire.md"), reference(p, intro)},
	} {
		if !check {
			if err := os.WriteFile(out.path, out.text, 0o644); err != nil {
				return err
			}
			continue
		}
		have, err := os.ReadFile(out.path)
		if err != nil {
			return err
		}
		if !bytes.Equal(have, out.text) {
			return fmt.Errorf("%s is out of date: run go generate ./wire", out.path)
		}
	}
	return nil
}
