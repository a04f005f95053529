package executor_test

import (
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/executor"
)

func open(t *testing.T, o executor.Options) *executor.Executor {
	t.Helper()
	o.Dir = t.TempDir()
	x, err := executor.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	return x
}

// TestInvalidRequests checks that requests without a required value, and with values that do not
// exist, are errors of kind Invalid with a hint, before anything starts.
func TestInvalidRequests(t *testing.T) {
	x := open(t, executor.Options{})
	doc, err := document.Parse("d.md", []byte("```bash\ntrue\n```\n"))
	if err != nil {
		t.Fatal(err)
	}
	odd := *doc
	odd.Front.Isolation = "weird"
	run := func(req executor.Request) error {
		_, err := x.Run(t.Context(), req, nil)
		return err
	}
	_, asks := x.Asks(nil, false)
	_, exec := x.Exec(t.Context(), executor.CommandRequest{}, nil)
	for name, err := range map[string]error{
		"Run without a document":          run(executor.Request{}),
		"Check without a document":        x.Check(nil, "", false),
		"CheckScripts without a document": executor.CheckScripts(t.Context(), nil),
		"Asks without a document":         asks,
		"Exec without a command":          exec,
		"an invalid lifetime":             run(executor.Request{Document: doc, Lifetime: "weird"}),
		"an invalid snapshot":             run(executor.Request{Document: doc, Snapshot: "weird"}),
		"an invalid isolation":            run(executor.Request{Document: &odd}),
		"too little memory":               run(executor.Request{Document: doc, Memory: 1}),
		"too many CPUs":                   run(executor.Request{Document: doc, CPUs: 1 << 20}),
		"a negative time limit":           run(executor.Request{Document: doc, Timeout: -1}),
		"an invalid variable":             run(executor.Request{Document: doc, Env: []string{"1=2"}}),
		"ListFiles without a function":    x.ListFiles(t.Context(), "s", "/", false, nil),
	} {
		if turnstone.KindOf(err) != turnstone.KindInvalid || turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v (kind %s, hint %q)", name, err, turnstone.KindOf(err),
				turnstone.HintOf(err))
		}
	}
	_, err = x.Export(t.Context(), executor.ExportRequest{}, nil)
	if turnstone.KindOf(err) != turnstone.KindNotFound || !strings.Contains(err.Error(), `""`) {
		t.Errorf("Export without a session: %v", err)
	}
	_, err = x.Import(t.Context(), executor.ImportRequest{}, strings.NewReader("# a document\n"))
	if turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("Import of a document: %v", err)
	}
}

// TestClosed checks that a closed executor reads and writes no stored turns.
func TestClosed(t *testing.T) {
	x := open(t, executor.Options{})
	if _, err := x.Sessions(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	_, sessions := x.Sessions(t.Context())
	_, show := x.Show(t.Context(), "s@1")
	_, fsck := x.Fsck(t.Context())
	for name, err := range map[string]error{"Sessions": sessions, "Show": show, "Fsck": fsck} {
		if turnstone.KindOf(err) != turnstone.KindUnavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := x.Close(); err != nil {
		t.Errorf("the second Close: %v", err)
	}
}
