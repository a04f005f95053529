package debian

import "testing"

func TestInstalled(t *testing.T) {
	got := Installed("Package: bash\nStatus: install ok installed\nVersion: 5.2-1\n" +
		"Description: a shell\n Package: not this\n\n" +
		"Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n\nPackage: last\n" +
		"Version: 2:3~rc1\nStatus: install ok installed")
	if len(got) != 2 || got["bash"] != "5.2-1" || got["last"] != "2:3~rc1" {
		t.Errorf("%v", got)
	}
}
