package plan

import (
	"errors"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
)

func TestCheckFront(t *testing.T) {
	for front, want := range map[string]string{
		"network: {allow: ['http://x']}":                      `"http://x"`,
		"network: {allow: [224.0.0.1]}":                       "no rule opens a multicast address",
		"network: {allow: [127.0.0.1]}":                       "port by port",
		"network: {allow: ['*']}":                             "only be at the beginning",
		"network: {deny: ['a.com:0']}":                        "a.com:0",
		"image: NO/such:x":                                    "is not a reference",
		"image: python@sha256:12":                             "is not a digest",
		"image: Python":                                       "is not the name of a template",
		"lifetime: session\nnetwork: record":                  "belong to more than one turn",
		"snapshot: vm\nnetwork: {intercept: true}":            "certificate authority",
		"lifetime: session\nhome: h":                          "keep the home from all others",
		"lifetime: session\nsnapshot: vm":                     "not kept a second time",
		"lifetime: session\nnetwork: {allow: [a.com]}":        "",
		"image: localhost:5000/x:1\nisolation: microvm":       "",
		"network: {allow: [public, 10.0.0.0/8], deny: [x.y]}": "",
		"network: {replay: 's@1'}\nmemory: 60GiB":             "",
		"home: h\nfiles: [nothing-there]":                     "",
	} {
		err := CheckFront(parse(t, "---\n"+front+"\n---\n"))
		if want == "" && err != nil || want != "" && (turnstone.KindOf(err) !=
			turnstone.KindInvalid || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", front, err, want)
		}
	}
}

func TestCheckScripts(t *testing.T) {
	doc := parse(t, "ok\n\n```bash\necho a\n```\n\n"+
		"> ```bash name=bad\n> echo b\n> if true; then\n> fi\n> ```\n")
	err := CheckScripts(t.Context(), doc)
	var faults document.SyntaxErrors
	if !errors.As(err, &faults) || len(faults) != 1 || faults[0].Line != 10 ||
		!strings.Contains(faults[0].Msg, "bad: ") {
		t.Errorf("%v", err)
	}
	unparsed := parse(t, "```bash unparsed\nif true; then\nfi\n```\n")
	if err := CheckScripts(t.Context(), unparsed); err != nil {
		t.Error(err)
	}
}
