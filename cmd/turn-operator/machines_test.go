package main

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"turnstone.dev/turnstone"
)

// TestMachineFlags: what cannot work is refused before anything is asked of the cluster.
func TestMachineFlags(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"--machines=nodes", "NAMESPACE/NAME"},
		{"--machines=a/b/c", "NAMESPACE/NAME"},
		{"--machines=a/b", "--machines-image"},
		{"--machines=a/b --machines-image=i --machines-min=0", "--machines-min"},
		{"--machines=a/b --machines-image=i --machines-min=3 --machines-max=2", "--machines-max"},
		{"--machines=a/b --machines-image=i --machines-spare=-1", "--machines-spare"},
		{"--machines=a/b --machines-image=i --machines-idle=-1s", "--machines-idle"},
		{"--machines=a/b --machines-image=i --machines-request=memory=much", "memory=much"},
		{"--machines=a/b --machines-image=i --machines-request=cpu=2 --machines-request=memory=-1Gi", "memory=-1Gi"},
	} {
		f := flags{}
		p, err := kong.New(&f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Parse(append([]string{"--host=h", "--token-file=t"}, strings.Fields(tt.args)...)); err != nil {
			t.Fatal(tt.args, err)
		}
		err = f.Machines.add(nil, nil, slog.New(slog.DiscardHandler))
		if turnstone.KindOf(err) != turnstone.KindInvalid || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.args, err)
		}
	}
	if err := (&machineFlags{}).add(nil, nil, nil); err != nil {
		t.Error(err)
	}
}
