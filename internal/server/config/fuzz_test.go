package config

import (
	"strings"
	"testing"
)

// FuzzParse parses files and a variable. What is accepted is within its bounds, and an error has a
// problem with a place.
func FuzzParse(f *testing.F) {
	f.Add(whole, "LIMITS_IDLE=5m")
	f.Add("[[issuers]]\nissuer = \"https://a.example\"", `ISSUERS=[{tenant = "a"}]`)
	f.Add("a.b.c = 1\n\"limits.idle\" = 5\n[limits]\n\"x.y\" = 3", "NAME=x")
	f.Fuzz(func(t *testing.T, text, variable string) {
		if len(text) > 4<<10 {
			return // line decodes the text once for each of its lines
		}
		c, err := Parse("/state", text, []string{Prefix + variable})
		if err != nil {
			if c != nil || strings.TrimSpace(err.Error()) == "" {
				t.Errorf("%v comes with %+v", err, c)
			}
			return
		}
		if c.Limits.Connections < 1 || c.Limits.Idle < 1 || len(c.Roles) == 0 || c.Name == "" {
			t.Errorf("accepted as %+v", c)
		}
	})
}
