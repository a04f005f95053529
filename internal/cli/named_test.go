package cli

import (
	"reflect"
	"testing"
)

func TestNaming(t *testing.T) {
	grammar := reflect.TypeFor[struct {
		Run   struct{} `cmd:""`
		Other struct{} `cmd:"" name:"sandbox"`
		Flag  bool
	}]()
	for _, tt := range []struct{ arg0, text, want string }{
		{"turn", "see turn run", "see turn run"},
		{"/usr/bin/turn-server", "see turn run", "see turn run"},
		{"kubectl-turn", "see turn run", "see kubectl turn run"},
		{"/opt/kubectl-turn.exe", "turn sandbox ls", "kubectl turn sandbox ls"},
		{"kubectl-turn", `"turn run", turn --help`, `"kubectl turn run", kubectl turn --help`},
		{"kubectl-turn", "resume a turn, turn running, return run, turn flag, turn", "resume a turn, turn running, return run, turn flag, turn"},
		{"kubectl-turn", "with TURN_HOME=x turn run", "with TURN_HOME=x kubectl turn run"},
	} {
		if got := namingFor(calledBy(tt.arg0), grammar).in(tt.text); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.arg0, got, tt.want)
		}
	}
	if got := namingFor("kubectl turn", grammar).String(); got != "kubectl turn" {
		t.Error(got)
	}
}
