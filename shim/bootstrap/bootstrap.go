// Package bootstrap lets a shim be started by every containerd 2.x. Since 2.3 containerd describes the
// shim on its standard input and reads a protobuf message, which is all that pkg/shim of 2.4 speaks.
// Before, it had flags and variables, the runtime's options alone on standard input, and read JSON.
package bootstrap

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Run runs the shim s as shim.RunShim does, also for a containerd before 2.3. It exits with 1 on error.
func Run(ctx context.Context, s shim.Shim, opts ...shim.BinaryOpts) {
	if c, ok := parse(os.Args[1:], os.Getenv); ok {
		rest, err := c.start(ctx, s, os.Stdin, os.Stdout)
		if err == nil && rest != nil {
			os.Stdin, err = again(rest)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %s", s.Name(), err)
			os.Exit(1)
		}
		if rest == nil {
			return
		}
	}
	shim.RunShim(ctx, s, opts...)
}

// A call is what containerd says of a shim that it starts beside its standard input.
type call struct {
	id, namespace, grpc, ttrpc, binary string
	debug                              bool
}

// parse reads a call. Any other action, and what is no call of containerd, is left to pkg/shim.
func parse(args []string, getenv func(string) string) (*call, bool) {
	var c call
	f := flag.NewFlagSet("", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&c.id, "id", "", "")
	f.StringVar(&c.namespace, "namespace", "", "")
	f.StringVar(&c.grpc, "address", "", "")
	f.StringVar(&c.binary, "publish-binary", "", "")
	f.BoolVar(&c.debug, "debug", false, "")
	c.ttrpc = getenv("TTRPC_ADDRESS")
	return &c, f.Parse(args) == nil && f.Arg(0) == "start"
}

// maxInput bounds the standard input, as pkg/shim does.
const maxInput = 10 << 20

// start starts the shim for a containerd before 2.3, and answers it. It returns the standard input of a
// later one, which has not been answered.
func (c *call) start(ctx context.Context, s shim.Shim, in io.Reader, out io.Writer) (rest []byte, err error) {
	input, err := io.ReadAll(io.LimitReader(in, maxInput))
	if err != nil {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	if c.isNew(input) {
		return input, nil
	}
	p, err := c.params(input)
	if err != nil {
		return nil, err
	}
	result, err := s.Start(namespaces.WithNamespace(ctx, c.namespace), p)
	if err != nil {
		return nil, err
	}
	return nil, json.NewEncoder(out).Encode(result)
}

// isNew reports whether input is of containerd 2.3 or newer. A runtime's options, too, can be read as
// such a message, but never name the shim.
func (c *call) isNew(input []byte) bool {
	var p bootapi.BootstrapParams
	return proto.Unmarshal(input, &p) == nil && p.GetInstanceID() == c.id &&
		p.GetNamespace() == c.namespace
}

// params returns what a later containerd would say in the place of c. The input is the runtime's
// options, or nothing.
func (c *call) params(input []byte) (*bootapi.BootstrapParams, error) {
	p := &bootapi.BootstrapParams{InstanceID: c.id, Namespace: c.namespace,
		ContainerdGrpcAddress: c.grpc, ContainerdTtrpcAddress: c.ttrpc, ContainerdBinary: c.binary}
	if c.debug {
		p.LogLevel = bootapi.LogLevel_LOG_LEVEL_DEBUG
	}
	if len(input) == 0 {
		return p, nil
	}
	var options anypb.Any
	if err := proto.Unmarshal(input, &options); err != nil {
		return nil, fmt.Errorf("the runtime's options on standard input: %w", err)
	}
	return p, p.AddExtension(&options)
}

// again returns a file from which b is read.
func again(b []byte) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	go func() { // a pipe may hold less; the reader ends with its process
		_, _ = w.Write(b)
		_ = w.Close()
	}()
	return r, nil
}
