package turn

import (
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/statedir"
)

// TestWrongBeforeAsked checks that requests which no grant makes valid are rejected before grants
// are checked: with all keys granted the message is the same.
func TestWrongBeforeAsked(t *testing.T) {
	for front, c := range map[string]struct {
		req  plan.Request
		says string
	}{
		"network: {allow: ['::1']}":         {says: "opened port by port"},
		"network: {allow: [127.0.0.1]}":     {says: "opened port by port"},
		"network: {allow: ['2001:db8::1']}": {says: "IPv4 only"},
		"network: {allow: [10.0.2.5]}":      {says: "the guest's own network"},
		"session: turn-6":                   {says: `"turn-6": is not a valid name`},
		"session: s\nbranch: turn-6":        {says: `"turn-6": is not a valid name`},
		"branch: '12'": {req: plan.Request{Session: "s"},
			says: `"12": is not a valid name`},
		"branch: fix/auth": {says: "branch: fix/auth: belongs to a session, and no session is " +
			"named"},
		"lifetime: session": {says: "lifetime: session: belongs to a session"},
		"files: [../a.md]": {req: plan.Request{Piped: true},
			says: "leaves the document's folder"},
		"files: [/etc/passwd]": {req: plan.Request{Piped: true},
			says: "leaves the document's folder"},
	} {
		c.req.Document = parse(t, "---\n"+front+"\n---\n")
		for _, keys := range [][]string{nil, config.GrantKeys} {
			c.req.Grant = keys
			turn, err := testRunner(&statedir.Dir{Root: t.TempDir()}).Run(t.Context(), c.req,
				&observer{})
			if turn != nil || turnstone.KindOf(err) != turnstone.KindInvalid ||
				!strings.Contains(err.Error(), c.says) ||
				strings.Contains(turnstone.HintOf(err), "--grant") {
				t.Errorf("%q with %v: %v (%s), want %q", front, keys, err, turnstone.HintOf(err),
					c.says)
			}
		}
	}
	for front, req := range map[string]plan.Request{
		"session: turn-6":               {Session: "s"}, // the caller names another session
		"session: s\nbranch: turn-6":    {Branch: "b"},
		"branch: fix/auth":              {Session: "s"},
		"lifetime: session":             {Session: "s"},
		"session: s_06gvr7hpbvg62sijn4": {},
	} {
		req.Document = parse(t, "---\n"+front+"\n---\n")
		if err := (&plan.Authority{Request: req}).Valid(); err != nil {
			t.Errorf("%q: %v", front, err)
		}
	}
}
