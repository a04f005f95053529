package receipt

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/guest/trace"
	"turnstone.dev/turnstone/internal/secret"
	"turnstone.dev/turnstone/wire"
)

func secrets(t testing.TB, pairs ...string) *secret.Set {
	s, err := secret.New(pairs)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestCommandsHoldNoSecret checks that commands that bash ran with a value are reported without it,
// also if the trace or a message cuts, folds or quotes it.
func TestCommandsHoldNoSecret(t *testing.T) {
	const value = `tok_"<5f3a>` + "\t'XYZZY"
	for name, script := range map[string]string{
		"eval":                `eval "true \$T $Q; false $Q"`,
		"a function's name":   `N=${T//[^a-zA-Z]/_}; eval "f_$Q() { false; }" 2>/dev/null; eval "false $Q"`,
		"alias":               "shopt -s expand_aliases\nalias a=\"false $Q\"\neval a",
		"trap":                `trap "false $Q" EXIT; exit 3`,
		"argv":                `eval "ls /nonexistent/$Q"`,
		"a message":           `python3() { return 1; }; "$T" 2>&1; nosuch_"$T"`,
		"a message in colour": `printf '%s: line 1: %s\033[0m%s: command not found\n' "$0" "${T:0:9}" "${T:9}" >&2; false`,
		"input":               `eval "cat <<< $Q >/dev/null"; eval "false <<< $Q"`,
		"cut":                 `eval "false $(printf 'x%.0s' {1..188}) $Q"`,
		"replaced":            `exec -a x "/nonexistent/$T"`,
		"a variable":          `eval "declare x_=$Q; false"`,
	} {
		t.Run(name, func(t *testing.T) {
			intro := "T=$(printf '%s' '" + base64.StdEncoding.EncodeToString([]byte(value)) +
				"' | base64 -d); printf -v Q %q \"$T\"\n"
			doc := parse(t, "```bash\n"+intro+script+"\n```\n")
			s := secrets(t, "T="+value).Written()
			sc := parseScripts(doc, s)
			end, records, raw := native(t, doc.Steps[0])
			stderr := newCapture("", "", "", nil)
			w := s.Writer(stderr)
			_, _ = w.Write(raw.head)
			_ = w.Close()
			stderr.finish()
			c := sc.analyse(doc.Steps[0], end, records, stderr, "/", true)
			res := document.StepResult{Status: turnstone.StepFailed, Failures: c.shown,
				Commands: c.table, CommandsNote: c.note}
			receipt := string(doc.Receipt(document.TurnInfo{}, []document.StepResult{res}))
			text := ok[[]byte](t)(json.Marshal(c.reports))
			fails := ok[[]byte](t)(json.Marshal(c.failures))
			if s.In(receipt) != "" || s.In(string(text)) != "" || s.In(string(fails)) != "" ||
				strings.Contains(receipt, "XYZZY") {
				t.Errorf("a value is in\n%s\n%s\n%s", receipt, text, fails)
			}
			if len(c.reports) == 0 {
				t.Error("nothing was traced")
			}
		})
	}
}

// TestReceiptIsSearched checks that a missed text removes the results of the steps, and only then;
// a value in turn's own words cannot be searched for.
func TestReceiptIsSearched(t *testing.T) {
	doc := parse(t, "# T\n\n```bash\ntrue\n```\n")
	turn := func(set *secret.Set, res document.StepResult) string {
		s := New(Options{Document: doc, Secrets: set})
		s.results[0] = res
		return string(s.Receipt(&document.TurnInfo{ID: turnstone.NewTurnID(),
			Result: turnstone.ResultPassed}))
	}
	out := document.Output{Head: []byte("printed\n"), Size: 8, Lines: 1}
	code := 0
	fine := document.StepResult{Status: turnstone.StepPassed, ExitCode: &code, Stdout: out,
		Commands: []document.CommandRow{{Text: "true", Language: "bash"}}}
	for _, value := range []string{"stdout", "passed", "text", "exit", "runs", "bash", "turn"} {
		if receipt := turn(secrets(t, "A="+value), fine); !strings.Contains(receipt, "printed") {
			t.Errorf("%s: %s", value, receipt)
		}
	}
	const value = "tok-5f3a-XYZZY"
	for what, res := range map[string]document.StepResult{
		"output":   {Status: turnstone.StepPassed, Stdout: document.Output{Head: []byte("a tok-5f3a\x1b[0m-XYZZY b"), Size: 24}},
		"note":     {Status: turnstone.StepFailed, Note: value},
		"commands": {Status: turnstone.StepPassed, Commands: []document.CommandRow{{Text: "x " + value}}},
		"network":  {Status: turnstone.StepPassed, Network: &document.StepNetwork{Refused: []document.NetworkRefusal{{Target: value}}}},
		"failures": {Status: turnstone.StepFailed, Failures: []document.CommandFailure{{Message: value}}},
	} {
		receipt := turn(secrets(t, "A="+value), res)
		if strings.Contains(receipt, "XYZZY") ||
			!strings.Contains(receipt,
				"is not kept, because the receipt would hold the secret A") ||
			!strings.Contains(receipt, string(res.Status)) {
			t.Errorf("%s: %s", what, receipt)
		}
		if receipt := turn(nil, res); !strings.Contains(receipt, "XYZZY") {
			t.Errorf("%s: without secrets: %s", what, receipt)
		}
	}
}

// TestSplitOutput checks that an output whose escape sequences split a value is kept in its shown
// form, masked.
func TestSplitOutput(t *testing.T) {
	doc := parse(t, "```bash\ntrue\n```\n")
	for size, want := range map[int]string{10: "x [secret A]", 3 << 20: ""} {
		c := newCapture(t.TempDir(), "turns/t_x", "step-1.stdout", nil)
		_, _ = c.Write([]byte("x tok-5f3a\x1b[0m-XYZZY\n"))
		_, _ = c.Write([]byte(strings.Repeat("\n", size)))
		s := New(Options{Document: doc, Secrets: secrets(t, "A=tok-5f3a-XYZZY")})
		s.outputs[0][0] = c
		st := s.Start(doc.Steps[0])
		res := st.res
		res.Stdout = c.finish()
		st.scrub()
		text, _ := res.Stdout.Text()
		kept, err := c.whole()
		if strings.Contains(text, "XYZZY") || !strings.Contains(text, want) ||
			res.Stdout.Note == "" || err != nil || (kept != nil) != (want != "") {
			t.Errorf("%d: %.200q, note %q, kept %v, %v", size, text, res.Stdout.Note,
				kept != nil, err)
		}
	}
}

// TestOutputIsSearched checks that an output in which masking has created a value is neither kept
// nor shown.
func TestOutputIsSearched(t *testing.T) {
	var live strings.Builder
	c := newCapture(t.TempDir(), "turns/t_x", "step-1.stdout", func(p []byte) { live.Write(p) })
	c.scan = secrets(t, "A=A]tail").Scanner()
	_, _ = c.Write([]byte("before\n"))
	_, _ = c.Write([]byte("[secret A]"))
	_, _ = c.Write([]byte("tail\nafter"))
	out := c.finish()
	if kept, err := c.whole(); kept != nil || err != nil || len(out.Head)+len(out.Tail) > 0 ||
		out.Digest != "" || strings.Contains(live.String(), "tail") || out.Size != 27 {
		t.Errorf("%+v, %v, shown %q", out, err, live.String())
	}
}

// TestMaskAll checks every kind of reachable text.
func TestMaskAll(t *testing.T) {
	type inner struct {
		Text  string
		Bytes []byte
		Named trace.Source
	}
	v := struct {
		A  string
		P  *inner
		L  []inner
		M  map[string][]string
		ID turnstone.Digest
		N  *inner
	}{"x-value", &inner{"x-value", []byte("x-value"), "x-value"}, []inner{{Text: "x-value"}},
		map[string][]string{"x-value": {"x-value"}}, "x-value", nil}
	s := secrets(t, "A=x-value")
	if LeakIn(s, &v) != "A" {
		t.Error("nothing found")
	}
	maskAll(s, &v)
	if got := fmt.Sprintf("%+v %+v", v, *v.P); strings.Count(got, "x-value") != 1 ||
		v.ID != "x-value" || len(v.M) != 1 {
		t.Error(got)
	}
	v.ID = ""
	if LeakIn(s, &v) != "" || LeakIn(nil, &v) != "" {
		t.Errorf("%+v", v)
	}
}

// FuzzTraceToReceipt checks that any report of a sandbox results in a receipt that can be parsed,
// contains no secret, and is bounded. VALUE in the input is replaced by the secret's value.
func FuzzTraceToReceipt(f *testing.F) {
	const value = `tok_5f3a"XYZZY`
	for _, seed := range []string{
		`{"records":[{"id":0,"parent":-1,"site":0,"kind":"simple","text":"true VALUE","line":1,"exitCode":1,"flags":["trap"],"stdin":{"kind":"heredoc","data":"VkFMVUU="}}],
		  "end":{"sites":[{"id":0,"kind":"simple","text":"true VALUE","line":1,"count":2}],"untraced":"replaced by VALUE","count":3,"exit":{"exitCode":1}}}`,
		`{"records":[{"id":1,"parent":0,"site":4095,"kind":"VALUE","text":"x"},{"id":1,"parent":-1,"site":2,"kind":"pipeline","line":3,"stderr":{"from":-1,"to":9}}],"end":{"path":"/VALUE","cwd":"VALUE"}}`,
	} {
		f.Add([]byte(seed), []byte("/run/turn/1-step-1.sh: line 2: VALUE: command not found\n"))
	}
	doc := parse(f, "```bash\ntrue a | cat\nf() { false; }\nf; eval x\n```\n")
	set := secrets(f, "A="+value)
	plain := strings.TrimSuffix(strings.TrimPrefix(string(ok[[]byte](f)(json.Marshal(value))), `"`),
		`"`)
	f.Fuzz(func(t *testing.T, message, said []byte) {
		var in struct {
			Records []wire.ShellRecord      `json:"records"`
			End     wire.ShellFinishedEvent `json:"end"`
		}
		if json.Unmarshal([]byte(strings.ReplaceAll(string(message), "VALUE", plain)), &in) != nil {
			return
		}
		for i := range in.Records {
			if s := in.Records[i].Stdin; s != nil {
				s.Data = []byte(strings.ReplaceAll(string(s.Data), "VALUE", value))
			}
		}
		s := New(Options{Document: doc, Secrets: set, Commands: true})
		st := s.Start(doc.Steps[0])
		_, _ = st.Begin().Err.Write([]byte(strings.ReplaceAll(string(said), "VALUE", value)))
		st.Records(in.Records)
		st.End(&wire.StepEnd{ShellFinishedEvent: in.End})
		st.analyse(&wire.StepEnd{ShellFinishedEvent: in.End})
		st.res.Status = turnstone.StepFailed
		report := ok[[]byte](t)(json.Marshal(st.Finish()))
		receipt := s.Receipt(&document.TurnInfo{})
		for where, text := range map[string]string{"receipt": string(receipt),
			"report": string(report)} {
			if name := set.Written().In(text); name != "" {
				t.Errorf("%s: %s", where, text)
			}
		}
		again, err := document.Parse("receipt", receipt)
		if err != nil || len(again.Steps) != 1 || again.Steps[0].Script != doc.Steps[0].Script {
			t.Errorf("%v: %s", err, receipt)
		}
		if len(receipt) > 1<<20 {
			t.Errorf("%d bytes", len(receipt))
		}
	})
}
