package flags

import (
	"testing"

	"turnstone.dev/turnstone"
)

func TestTransfer(t *testing.T) {
	for in, want := range map[string]transfer{
		"data.csv":         {Path: "data.csv"},
		"data.csv:in.csv":  {Path: "data.csv", Dest: "in.csv"},
		"data/:/srv/data/": {Path: "data/", Dest: "/srv/data/"},
		"12:30.csv:":       {Path: "12:30.csv"},
		"12:30.csv:/x":     {Path: "12:30.csv", Dest: "/x"},
		"a:b:c":            {Path: "a:b", Dest: "c"},
	} {
		var got transfer
		if err := got.UnmarshalText([]byte(in)); err != nil || got != want {
			t.Errorf("%q: got %+v, %v; want %+v", in, got, err, want)
		}
	}
	for _, in := range []string{"", ":", ":/x"} {
		var got transfer
		if err := got.UnmarshalText([]byte(in)); err == nil {
			t.Errorf("%q: got %+v, want an error", in, got)
		}
	}
}

func TestShape(t *testing.T) {
	two := 2
	f := ForSandbox{CPUs: &two, Memory: 1 << 29,
		ForNetwork: ForNetwork{Network: NetworkMode{set: true}}}
	want := turnstone.Shape{CPUs: 2, Memory: 1 << 29, Disk: turnstone.DefaultShape().Disk}
	if got := f.Shape(turnstone.DefaultShape()); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
