package substrate

import (
	"strings"
	"testing"
)

// TestAdvice checks that the advice names the kernel file that the user has chosen.
func TestAdvice(t *testing.T) {
	for _, tt := range []struct {
		kind KernelKind
		want string
	}{
		{KernelKind{}, "run `turn doctor`"},
		{KernelKind{File: "/x"}, "run `turn doctor`"},
		{KernelKind{Own: true, File: "/srv/vmlinux"}, "run `turn doctor --kernel /srv/vmlinux`, "},
		{KernelKind{Own: true, File: "/srv/my kernel's", Modules: "/lib/modules/6.9.0"},
			`run ` + "`" +
				`turn doctor --kernel '/srv/my kernel'\''s' --kernel-modules /lib/modules/6.9.0` +
				"`" +
				`, `},
		{KernelKind{Own: true}, "run `turn doctor --kernel FILE`, "},
	} {
		if got := tt.kind.Advice(); !strings.HasPrefix(got, tt.want) ||
			strings.Contains(got, "unset TURN_KERNEL") != tt.kind.Own {
			t.Errorf("%+v: %q", tt.kind, got)
		}
	}
}
