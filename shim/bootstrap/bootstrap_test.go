package bootstrap

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/types"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// noted is a shim that notes what it is started with.
type noted struct {
	params    *bootapi.BootstrapParams
	namespace string
	err       error
}

func (n *noted) Name() string { return "noted" }

func (n *noted) Start(ctx context.Context, p *bootapi.BootstrapParams) (*bootapi.BootstrapResult, error) {
	n.params = p
	n.namespace, _ = namespaces.Namespace(ctx)
	return &bootapi.BootstrapResult{Version: 3, Address: "unix:///run/s", Protocol: "ttrpc"}, n.err
}

func (n *noted) Stop(context.Context, string) (shim.StopStatus, error) { return shim.StopStatus{}, nil }

func (n *noted) Info(context.Context, io.Reader) (*types.RuntimeInfo, error) { return nil, nil }

// args are the flags of every containerd 2.x.
var args = []string{"-namespace", "k8s.io", "-address", "/run/c.sock", "-publish-binary", "/bin/containerd",
	"-id", "abc"}

func marshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// options returns a runtime's options as containerd marshals them.
func options(t *testing.T, o *runtimeoptions.Options) *anypb.Any {
	t.Helper()
	a, err := typeurl.MarshalAnyToProto(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestOldCalls checks that a containerd before 2.3 starts a shim with its options, and understands the answer.
func TestOldCalls(t *testing.T) {
	o := &runtimeoptions.Options{TypeUrl: "x", ConfigPath: "/etc/x", ConfigBody: []byte("cpus = 1\n")}
	for name, x := range map[string]struct {
		more    []string
		input   []byte
		level   bootapi.LogLevel
		options bool
	}{
		"without options": {more: []string{"start"}},
		"with options":    {[]string{"start"}, marshal(t, options(t, o)), 0, true},
		"debug":           {[]string{"-debug", "start"}, nil, bootapi.LogLevel_LOG_LEVEL_DEBUG, false},
	} {
		c, ok := parse(slices.Concat(args, x.more), func(string) string { return "/run/c.sock.ttrpc" })
		if !ok {
			t.Errorf("%s: not understood", name)
			continue
		}
		var n noted
		var out bytes.Buffer
		rest, err := c.start(t.Context(), &n, bytes.NewReader(x.input), &out)
		if err != nil || rest != nil {
			t.Errorf("%s: %q, %v", name, rest, err)
			continue
		}
		want := &bootapi.BootstrapParams{InstanceID: "abc", Namespace: "k8s.io", LogLevel: x.level,
			ContainerdGrpcAddress: "/run/c.sock", ContainerdTtrpcAddress: "/run/c.sock.ttrpc",
			ContainerdBinary: "/bin/containerd"}
		if x.options {
			want.Extensions = []*bootapi.Extension{{Value: options(t, o)}}
			var got runtimeoptions.Options
			if ok, err := n.params.FindExtension(&got); !ok || err != nil || !proto.Equal(&got, o) {
				t.Errorf("%s: options %v, %v", name, &got, err)
			}
		}
		if !proto.Equal(n.params, want) || n.namespace != "k8s.io" {
			t.Errorf("%s: %v in %q", name, n.params, n.namespace)
		}
		var answer struct {
			Version           int
			Address, Protocol string
		}
		if err := json.Unmarshal(bytes.TrimSpace(out.Bytes()), &answer); err != nil || answer.Version != 3 ||
			answer.Address != "unix:///run/s" || answer.Protocol != "ttrpc" {
			t.Errorf("%s: %q, %v", name, &out, err)
		}
	}
}

// TestNewCalls checks that the call of a later containerd is left to pkg/shim as it was.
func TestNewCalls(t *testing.T) {
	p := &bootapi.BootstrapParams{InstanceID: "abc", Namespace: "k8s.io", ContainerdVersion: "2.4.2"}
	if err := p.AddExtension(&runtimeoptions.Options{ConfigBody: make([]byte, 1<<20)}); err != nil {
		t.Fatal(err)
	}
	input := marshal(t, p)
	c, _ := parse(append(slices.Clone(args), "start"), func(string) string { return "" })
	var n noted
	var out bytes.Buffer
	rest, err := c.start(t.Context(), &n, bytes.NewReader(input), &out)
	if err != nil || !bytes.Equal(rest, input) || n.params != nil || out.Len() > 0 {
		t.Errorf("%d bytes, %v, %q, %v", len(rest), n.params, &out, err)
	}
	f, err := again(rest)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(f); err != nil || !bytes.Equal(b, input) {
		t.Errorf("%d bytes again, %v", len(b), err)
	}
}

// TestOtherCalls checks that other actions are left to pkg/shim, and that a failure is no answer.
func TestOtherCalls(t *testing.T) {
	for _, more := range [][]string{{"delete"}, {"-bundle", "/b", "delete"}, {}, {"-unknown", "start"}, {"-info"},
		{"-v"}} {
		if c, ok := parse(slices.Concat(args, more), func(string) string { return "" }); ok {
			t.Errorf("%v: %+v", more, c)
		}
	}
	c, _ := parse(append(slices.Clone(args), "start"), func(string) string { return "" })
	var out bytes.Buffer
	n := noted{err: errors.New("no")}
	if _, err := c.start(t.Context(), &n, strings.NewReader(""), &out); !errors.Is(err, n.err) || out.Len() > 0 {
		t.Errorf("%v, %q", err, &out)
	}
	n.params = nil
	if _, err := c.start(t.Context(), &n, strings.NewReader("\xff\xff"), &out); err == nil || n.params != nil {
		t.Errorf("strange options: %v, %v", err, n.params)
	}
}
