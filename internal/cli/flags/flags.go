// Package flags has the flags that several commands share: those of a sandbox and of its network.
package flags

import (
	"fmt"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

// ForSandbox are the flags of every command that starts a sandbox.
type ForSandbox struct {
	Image   string          `help:"Run in this template or image (default: base)." placeholder:"NAME"`
	Env     []EnvVar        `help:"Set an environment variable (repeatable)." placeholder:"K=V" sep:"none"`
	Add     []transfer      `help:"Copy a file into the sandbox first (repeatable)." placeholder:"PATH[:DEST]" sep:"none"`
	Get     []transfer      `help:"Copy a file out of the sandbox at the end (repeatable)." placeholder:"PATH[:DEST]" sep:"none"`
	Timeout *time.Duration  `help:"Limit the wall time, such as 90s or 10m (default: 1h)." placeholder:"TIME"`
	CPUs    *int            `name:"cpus" help:"Set the virtual CPUs (default: the template's, or 1)." placeholder:"N"`
	Memory  turnstone.Bytes `help:"Set the memory (default: the template's, or 1GiB)." placeholder:"SIZE"`
	Disk    turnstone.Bytes `help:"Limit disk writes (default: the template's, or 4GiB)." placeholder:"SIZE"`
	ForNetwork
	Substrate string `help:"Select the substrate (default: auto)." enum:",auto,firecracker,qemu,gvisor" default:"" placeholder:"NAME" env:"TURN_SUBSTRATE"`
}

// Validate is called by kong.
func (f *ForSandbox) Validate() error {
	if f.Timeout != nil && *f.Timeout <= 0 {
		return fmt.Errorf("--timeout: %s is not a positive time", *f.Timeout)
	}
	shape := f.Shape(turnstone.DefaultShape())
	if err := shape.Validate(); err != nil {
		return fmt.Errorf("--%w", err)
	}
	return f.contradiction()
}

// Shape returns base with the values of the flags.
func (f *ForSandbox) Shape(base turnstone.Shape) turnstone.Shape {
	if f.CPUs != nil {
		base.CPUs = *f.CPUs
	}
	if f.Memory != 0 {
		base.Memory = f.Memory
	}
	if f.Disk != 0 {
		base.Disk = f.Disk
	}
	if on := f.On(); on != nil {
		base.Network = *on
	}
	return base
}

func (f *ForSandbox) Environ() []string {
	var env []string
	for _, e := range f.Env {
		env = append(env, string(e))
	}
	return env
}

// An EnvVar is KEY=VALUE.
type EnvVar string

var envName = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)

// UnmarshalText implements encoding.TextUnmarshaler.
func (e *EnvVar) UnmarshalText(text []byte) error {
	name, _, ok := strings.Cut(string(text), "=")
	if !ok {
		return fmt.Errorf("%q: write NAME=VALUE", text)
	}
	if !envName.MatchString(name) {
		return fmt.Errorf("%q is not a name for an environment variable", name)
	}
	*e = EnvVar(text)
	return nil
}

// A transfer is PATH[:DEST].
type transfer document.Transfer

// UnmarshalText is called by kong.
func (t *transfer) UnmarshalText(text []byte) error {
	parsed, err := document.ParseTransfer(string(text))
	*t = transfer(parsed)
	return err
}

func Transfers(from []transfer) []document.Transfer {
	var to []document.Transfer
	for _, t := range from {
		to = append(to, document.Transfer(t))
	}
	return to
}
