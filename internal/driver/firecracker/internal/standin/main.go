// Standin implements Firecracker's API for tests of the process handling: it checks every request,
// and its own answers, against the API's definition, rejects what Firecracker would reject before
// or after the start, and runs an agent in its own process behind a vsock's unix socket. It runs no
// guest. Called as jailer it does the same as Firecracker's jailer.
//
// The environment selects its faults: STANDIN=FAULT or FAULT:PATH, for the request to that path.
// STANDIN_LOG names the log file of its requests; the default is out/log, if there is a folder out.
package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const version = "1.17.0"

func main() {
	var err error
	if strings.HasPrefix(filepath.Base(os.Args[0]), "jailer") {
		err = jail(os.Args[1:])
	} else {
		err = run(os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error: "+err.Error())
		os.Exit(1)
	}
}

// run does the same as Firecracker.
func run(args []string) error {
	socket, id := "/run/firecracker.socket", "anonymous-instance"
	for i := 0; i < len(args); i++ {
		value := func() string {
			if i++; i < len(args) {
				return args[i]
			}
			return ""
		}
		switch args[i] {
		case "--version":
			fmt.Printf("Firecracker v%s\n\n", cmp.Or(os.Getenv("STANDIN_VERSION"), version))
			return nil
		case "--api-sock":
			socket = value()
		case "--id":
			id = value()
		case "--level", "--start-time-us", "--start-time-cpu-us", "--parent-cpu-time-us":
			value()
		case "--show-level":
		default:
			os.Exit(153) // FcExitCode::ArgParsing
		}
	}
	if !validID(id) {
		return fmt.Errorf("invalid instance ID: %q", id)
	}
	wrong, at, _ := strings.Cut(os.Getenv("STANDIN"), ":")
	switch wrong {
	case "exit":
		fmt.Printf("2026-01-01T00:00:00.000000000 [%s:main:ERROR] something is broken\n", id)
		return says("RunWithApi(Broken)")
	case "code":
		os.Exit(148)
	case "no-socket":
		select {}
	case "late-socket":
		time.Sleep(300 * time.Millisecond)
	}
	return serve(socket, &vmm{id: id, fault: wrong, at: at})
}

// validID reports whether Firecracker and its jailer accept id.
func validID(id string) bool {
	if id == "" || len(id) > 64 {
		return false
	}
	return strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") == ""
}

// says returns an error in Firecracker's words, or similar words.
func says(format string, args ...any) error { return fault(fmt.Sprintf(format, args...)) }

type fault string

func (f fault) Error() string { return string(f) }

// note writes a line to the log.
func note(v any) {
	path := cmp.Or(os.Getenv("STANDIN_LOG"), "out/log")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
	if err != nil {
		return
	}
	defer f.Close()
	b, _ := json.Marshal(v)
	_, _ = f.Write(append(b, '\n'))
}
