package need

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestAll: each need has a unique name that fits into a line, and a consequence.
func TestAll(t *testing.T) {
	name, seen := regexp.MustCompile(`^[a-z0-9-]{1,20}$`), map[string]bool{}
	optional := false
	for _, n := range All() {
		if !name.MatchString(n.Name) || seen[n.Name] {
			t.Errorf("the name %q", n.Name)
		}
		seen[n.Name] = true
		if n.What == "" || n.Without == "" || (len(n.Options) == 0) == (n.Since == "") {
			t.Errorf("%+v says too little", n)
		}
		if optional && n.Level != Optional {
			t.Errorf("%s is necessary, and comes after what is optional", n.Name)
		}
		optional = n.Level == Optional
		if got, ok := Of(n.Name); !ok || got.Lack() != n.Lack() {
			t.Errorf("%s is not found", n.Name)
		}
	}
	if _, ok := Of("nothing"); ok {
		t.Error("what is not in the list is found")
	}
}

// TestDocumented: docs/kernel.md names every option.
func TestDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/kernel.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range All() {
		for _, option := range n.Options {
			if !strings.Contains(string(page), "`"+option+"`") {
				t.Errorf("%s: CONFIG_%s is not in docs/kernel.md", n.Name, option)
			}
		}
		if !strings.Contains(string(page), n.Since) {
			t.Errorf("%s: Linux %s is not in docs/kernel.md", n.Name, n.Since)
		}
	}
}
