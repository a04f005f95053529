package document

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
)

// stepsOf writes each step on a line, for tables.
func stepsOf(d *Document) string {
	var b strings.Builder
	for _, s := range d.Steps {
		fmt.Fprintf(&b, "%d %s %s %q", s.Line, s.Language, s.Name, s.Script)
		if s.Timeout != 0 {
			fmt.Fprintf(&b, " timeout=%s", s.Timeout)
		}
		if s.Cwd != "" {
			fmt.Fprintf(&b, " cwd=%s", s.Cwd)
		}
		if s.Skip {
			b.WriteString(" skip")
		}
		if s.ContinueOnError {
			b.WriteString(" continue-on-error")
		}
		if s.Unparsed {
			b.WriteString(" unparsed")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestSteps(t *testing.T) {
	tests := []struct{ name, src, want string }{
		{"empty document", "", ""},
		{"only a mark", "\ufeff", ""},
		{"prose", "# Title\n\ntext\n", ""},
		{"bash and sh", "```bash\na\n```\n\n```sh\nb\n```\n",
			"1 bash step-1 \"a\\n\"\n5 sh step-2 \"b\\n\"\n"},
		{"other languages", "```python\na\n```\n```\nb\n```\n```shell\n```\n```bashful\n```\n" +
			"```Bash\n```\n", ""},
		{"no blank before the language", "```   bash\na\n```\n", "1 bash step-1 \"a\\n\"\n"},
		{"no final newline", "```bash\na\n```", "1 bash step-1 \"a\\n\"\n"},
		{"empty step", "```bash\n```\n", "1 bash step-1 \"\"\n"},
		{"byte order mark", "\ufeff```bash\na\n```\n", "1 bash step-1 \"a\\n\"\n"},
		{"CRLF", "```bash\r\na\r\n\r\nb\r\n```\r\n", "1 bash step-1 \"a\\n\\nb\\n\"\n"},
		{"CRLF in a list that begins empty", "-\r\n  ```bash\r\n  a\r\n  ```\r\n",
			"2 bash step-1 \"a\\n\"\n"},
		{"CR", "x\r\r```bash\ra\rb\r```\r", "3 bash step-1 \"a\\nb\\n\"\n"},
		{"mixed line endings", "x\r\ny\rz\n```sh\na\r\nb\rc\n```\n",
			"4 sh step-1 \"a\\nb\\nc\\n\"\n"},
		{"longer fence", "````bash\na\n```\nb\n````\n", "1 bash step-1 \"a\\n```\\nb\\n\"\n"},
		{"closed by a longer fence", "```bash\na\n`````\n", "1 bash step-1 \"a\\n\"\n"},
		{"tildes", "~~~bash\na\n```\n~~~\n", "1 bash step-1 \"a\\n```\\n\"\n"},
		{"a backtick in the info string of tildes", "~~~bash name=a\na\n~~~\n",
			"1 bash a \"a\\n\"\n"},
		{"step inside another block", "````markdown\n```bash\na\n```\n````\n", ""},
		{"step inside tildes", "~~~\n```bash\na\n```\n~~~\n", ""},
		{"inline code", "text ```bash a ``` text\n", ""},
		{"backtick in the info string", "```bash `a`\n", ""},
		{"interrupts a paragraph", "text\n```bash\na\n```\n", "2 bash step-1 \"a\\n\"\n"},
		{"indented by three", "   ```bash\n   a\n     b\n c\n   ```\n",
			"1 bash step-1 \"a\\n  b\\nc\\n\"\n"},
		{"indented by four", "    ```bash\n    a\n    ```\n", ""},
		{"after a tab", "\t```bash\n\ta\n\t```\n", ""},
		{"closing fence indented by three", "```bash\na\n   ```\n", "1 bash step-1 \"a\\n\"\n"},
		{"closing fence with blanks after it", "```bash\na\n```  \t\n", "1 bash step-1 \"a\\n\"\n"},
		{"in a list", "- x\n\n  ```bash\n  a\n\n    b\n  ```\n- y\n",
			"3 bash step-1 \"a\\n\\n  b\\n\"\n"},
		{"on the line of the list's mark", "1. ```bash\n   a\n   ```\n",
			"1 bash step-1 \"a\\n\"\n"},
		{"in a quote", "> ```bash\n> a\n>\n>   b\n> ```\n", "1 bash step-1 \"a\\n\\n  b\\n\"\n"},
		{"in a quote without blanks", ">```bash\n>a\n>```\n", "1 bash step-1 \"a\\n\"\n"},
		{"in a list in a quote", "> - x\n>   ```bash\n>   a\n>   ```\n",
			"2 bash step-1 \"a\\n\"\n"},
		{"in a quote in a list", "- x\n  > ```bash\n  > a\n  > ```\n", "2 bash step-1 \"a\\n\"\n"},
		{"tab before the content of a list item", "- x\n\n\t```bash\n\ta\n\t```\n",
			"3 bash step-1 \"a\\n\"\n"},
		{"tab in the content", "- ```bash\n  \ta\n  ```\n", "1 bash step-1 \"\\ta\\n\"\n"},
		{"split tab", "- ```bash\n\ta\n  ```\n", "1 bash step-1 \"  a\\n\"\n"},
		{"split tab in a quote", ">\t ```bash\n>\t\n>\ta\n> ```\n", "1 bash step-1 \"\\na\\n\"\n"},
		{"in a comment", "<!--\n```bash\na\n```\n-->\n", ""},
		{"comment that never ends", "<!--\n```bash\na\n```\n", ""},
		{"in preformatted HTML", "<pre>\n```bash\na\n```\n</pre>\n", ""},
		{"HTML block ends at an empty line", "<div>\n```bash\na\n```\n\n```bash\nb\n```\n</div>\n",
			"6 bash step-1 \"b\\n\"\n"},
		{"other fence that never ends", "```python\na\n\n~~~bash\nb\n~~~\n", ""},
		{"invalid UTF-8 in prose", "\xff\xfe\n\n```bash\na\n```\n", "3 bash step-1 \"a\\n\"\n"},
		{"NUL in prose", "a\x00b\n\n```bash\na\n```\n", "3 bash step-1 \"a\\n\"\n"},
		{"form feed after a closing fence does not close", "```bash\na\n```\f\n```\n",
			"1 bash step-1 \"a\\n```\\f\\n\"\n"},
		{"setext underline after definitions", "[x]: /u\n===\n2. ```bash\n   a\n   ```\n", ""},
		{"after front matter", "---\nimage: python\n---\n```bash\na\n```\n",
			"4 bash step-1 \"a\\n\"\n"},
		{"thematic break that is no front matter", "---\n```bash\na\n```\n",
			"2 bash step-1 \"a\\n\"\n"},

		{"all attributes", "```bash name=train timeout=90s cwd=/data skip continue-on-error " +
			"unparsed\n```\n",
			"1 bash train \"\" timeout=1m30s cwd=/data skip continue-on-error unparsed\n"},
		{"braces", "```bash {name=train timeout=1m}\n```\n```sh{name=b}\n```\n",
			"1 bash train \"\" timeout=1m0s\n3 sh b \"\"\n"},
		{"quotes", "```bash cwd=\"/a b\" name='x'\n```\n", "1 bash x \"\" cwd=/a b\n"},
		{"flags with values", "```bash skip=true continue-on-error=false\n```\n",
			"1 bash step-1 \"\" skip\n"},
		{"unparsed is a flag", "```bash unparsed=false\n```\n```sh unparsed=true\n```\n",
			"1 bash step-1 \"\"\n3 sh step-2 \"\" unparsed\n"},
		{"tabs between attributes", "```bash\tname=a\t skip\n```\n", "1 bash a \"\" skip\n"},
		{"relative cwd", "```bash cwd=sub/../x\n```\n", "1 bash step-1 \"\" cwd=/workspace/x\n"},
		{"relative cwd below the document's", "---\ncwd: a\n---\n```bash cwd=b\n```\n",
			"4 bash step-1 \"\" cwd=/workspace/a/b\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, err := Parse("d.md", []byte(tt.src))
			if err != nil {
				t.Fatal(err)
			}
			if got := stepsOf(d); got != tt.want {
				t.Errorf("%q\n got %s want %s", tt.src, got, tt.want)
			}
			if got := string(d.Clean()); got != tt.src {
				t.Errorf("Clean = %q, want %q", got, tt.src)
			}
			results := make([]StepResult, len(d.Steps))
			for i := range results {
				results[i] = StepResult{Status: turnstone.StepPassed,
					Stdout: outputOf("a\n\n```\n")}
			}
			if err := checkReceipt(d, results, testInfo()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTitle(t *testing.T) {
	for src, want := range map[string]string{
		"":       "",
		"text\n": "",
		"---\nimage: base\n---\ntext\n\n# A  *title* #\n\n# B\n": "A *title*",
		"Title\r\n=====\r\n":        "Title",
		"> # quoted\n\n## own\n":    "own",
		"```bash\n# comment\n```\n": "",
		"# \xff\n":                  "\ufffd",
	} {
		d, err := Parse("a.md", []byte(src))
		if err != nil {
			t.Fatal(err)
		}
		if d.Title != want {
			t.Errorf("%q: %q, want %q", src, d.Title, want)
		}
	}
}

func TestFrontMatterOfSessions(t *testing.T) {
	d, err := Parse("a.md",
		[]byte("---\nsession: research\nbranch: explore/oauth.2\nlifetime: session\nhome: me\n"+
			"snapshot: vm\n---\n"))
	if err != nil {
		t.Fatal(err)
	}
	got := []string{d.Front.Session, d.Front.Branch, string(d.Front.Lifetime), d.Front.Home,
		string(d.Front.Snapshot)}
	want := []string{"research", "explore/oauth.2", "session", "me",
		"vm"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestFrontMatter(t *testing.T) {
	src := "---\n" + `# what it needs
image: "python"
env:
  GREETING: hello world
  COUNT: 1.10
  FLAG: yes
  EMPTY:
  DATE: 2026-01-01
  MULTI: |
    a
    b
files:
  - data.csv
  - 'a b.txt:/in/b.txt'
cwd: /srv/../data
timeout: 10m
cpus: 2
memory: 2GiB
disk: 512M
network: off
turn: {anything: [at, all]}
` + "---\n"
	d, err := Parse("d.md", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	f := d.Front
	if f.Network == nil || *f.Network {
		t.Errorf("network = %v", f.Network)
	}
	f.Network = nil
	want := FrontMatter{
		Image: "python",
		Env: []string{"GREETING=hello world", "COUNT=1.10", "FLAG=yes", "EMPTY=",
			"DATE=2026-01-01", "MULTI=a\nb\n"},
		Files:   []string{"data.csv", "a b.txt:/in/b.txt"},
		Cwd:     "/data",
		Timeout: 10 * time.Minute,
		CPUs:    2,
		Memory:  2 << 30,
		Disk:    512 << 20,
	}
	if fmt.Sprintf("%+v", f) != fmt.Sprintf("%+v", want) {
		t.Errorf("got  %+v\nwant %+v", f, want)
	}
	clean := strings.Replace(src, "turn: {anything: [at, all]}\n", "", 1)
	if got := string(d.Clean()); got != clean {
		t.Errorf("Clean = %q", got)
	}
}

func TestNetworkWords(t *testing.T) {
	for word, want := range map[string]bool{"on": true, "true": true, "yes": true, "On": true,
		`"on"`: true, "off": false, "false": false, "no": false, "OFF": false} {
		d, err := Parse("d.md", []byte("---\nnetwork: "+word+"\n---\n"))
		if err != nil || d.Front.Network == nil || *d.Front.Network != want {
			t.Errorf("network: %s: %v, %v", word, d, err)
		}
	}
}

func TestNetworkRules(t *testing.T) {
	for text, want := range map[string]NetworkRules{
		"record": {Record: true}, "Replay": {Replay: true}, "{}": {},
		`{allow: ["api.example.com", "*.example.org:443", 10.0.0.0/8, "[2001:db8::1]:443"], ` +
			"deny: a.example}": {HasAllow: true,
			Allow: []string{"api.example.com", "*.example.org:443", "10.0.0.0/8",
				"[2001:db8::1]:443"}, Deny: []string{"a.example"}},
		"{allow: [], record: true, intercept: yes}": {HasAllow: true, Record: true,
			Intercept: true},
		"{replay: t_0123456789abcdefgh}": {Replay: true,
			ReplayOf: "t_0123456789abcdefgh"},
		"{replay: research@12}":       {Replay: true, ReplayOf: "research@12"},
		"{replay: research@fix/auth}": {Replay: true, ReplayOf: "research@fix/auth"},
		"{replay: true}":              {Replay: true}, "{replay: false}": {},
	} {
		d, err := Parse("d.md", []byte("---\nnetwork: "+text+"\nisolation: microvm\n---\n"))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if f := d.Front; f.Network == nil || !*f.Network || f.NetworkRules == nil ||
			fmt.Sprintf("%+v", *f.NetworkRules) != fmt.Sprintf("%+v", want) ||
			f.Isolation != IsolationMicroVM {
			t.Errorf("%s: %+v", text, f.NetworkRules)
		}
	}
}

func TestSyntaxErrors(t *testing.T) {
	tests := []struct{ name, src, want string }{
		{"fence that is never closed", "text\n\n```bash\nrm -rf x\n",
			"3:1: the fence of this step is not closed"},
		{"fence closed with too few", "````bash\na\n```\n",
			"1:1: the fence of this step is not closed"},
		{"fence closed with the other character", "```bash\na\n~~~\n",
			"1:1: the fence of this step is not closed"},
		{"fence that ends with its list item", "- x\n\n  ```bash\n  a\n\ntext\n```\n",
			"3:3: the fence of this step is not closed"},
		{"fence that ends with its quote", "> ```sh\n> a\n\ntext\n",
			"1:3: the fence of this step is not closed"},
		{"fence on the last line", "```bash", "1:1: the fence of this step is not closed"},
		{"NUL in a step", "```bash\na\x00b\n```\n", "2:2: a NUL byte in a step"},
		{"NUL in an info string", "```bash name=\x00\n```\n",
			"1:9: \"\\x00\" cannot be the name of a step\n1:14: a NUL byte in a step"},
		{"unknown attribute", "x\n```bash naem=x\n```\n",
			"2:9: unknown attribute \"naem\"; the nearest known one is \"name\""},
		{"unknown attribute in a quote", "> ```bash  timout=1s\n> ```\n",
			"1:12: unknown attribute \"timout\"; the nearest known one is \"timeout\""},
		{"attribute twice", "```bash skip skip\n```\n", "1:14: attribute \"skip\" is given twice"},
		{"bad name", "```bash name=../x\n```\n", "1:9: \"../x\" cannot be the name of a step"},
		{"dots for a name", "```bash name=..\n```\n", "1:9: \"..\" cannot be the name of a step"},
		{"empty name", "```bash name=\n```\n", "1:9: the name is empty"},
		{"long name", "```bash name=" + strings.Repeat("a", 65) + "\n```\n",
			"1:9: the name is longer than 64 bytes"},
		{"name twice", "```bash name=a\n```\n```bash name=a\n```\n",
			"3:1: the step's name \"a\" is also the name of step 1 in line 1"},
		{"name that another step has by default", "```bash name=step-2\n```\n```bash\n```\n",
			"1:1: the step's name \"step-2\" is also the name of step 2 in line 3"},
		{"timeout without a unit", "```bash timeout=90\n```\n", "1:9: timeout: \"90\" has no unit"},
		{"timeout that is none", "```bash timeout=soon\n```\n",
			"1:9: timeout: \"soon\" is not a duration"},
		{"timeout of nothing", "```bash timeout=0s\n```\n",
			"1:9: timeout: \"0s\" is not greater than zero"},
		{"negative timeout", "```bash timeout=-1s\n```\n",
			"1:9: timeout: \"-1s\" is not greater than zero"},
		{"flag that is neither", "```bash skip=maybe\n```\n",
			"1:9: skip: \"maybe\" is neither true nor false"},
		{"empty cwd", "```bash cwd=\"\"\n```\n", "1:9: cwd: the path is empty"},
		{"open quote", "```bash name=\"a\n```\n",
			"1:14: the quote is not closed in the attributes of this step"},
		{"quote in a value", "```bash name=a\"b\n```\n",
			"1:15: a quote in the middle of a value in the attributes of this step"},
		{"text after a quote", "```bash name=\"a\"b\n```\n",
			"1:17: a blank is missing after the closing quote in the attributes of this step"},
		{"unparsed that is neither", "```bash unparsed=maybe\n```\n",
			"1:9: unparsed: \"maybe\" is neither true nor false"},
		{"open brace", "```bash {skip\n```\n",
			"1:9: the brace is not closed in the attributes of this step"},
		{"value without a name", "```bash =x\n```\n",
			"1:9: a value without a name before \"=\" in the attributes of this step"},
		{"nested too deep", strings.Repeat(">", 100) + "\n",
			"1:65: lists and quotes are nested too deep here"},
		{"step too far to the right", strings.Repeat("> ", 40) + "```sh\n" +
			strings.Repeat("> ", 40) + "```\n",
			"1:81: the step is indented by more than 64 columns of lists and quotes"},

		{"unknown key", "---\nimge: x\n---\n",
			"2:1: unknown key \"imge\"; the nearest known one is \"image\""},
		{"unknown key after others", "---\nimage: x\n\n# c\nnetwrok: on\n---\n",
			"5:1: unknown key \"netwrok\"; the nearest known one is \"network\""},
		{"key twice", "---\ncpus: 1\ncpus: 1\n---\n", "3:1: key \"cpus\" is given twice"},
		{"several faults", "---\nimage: [x]\ncpus: 0\n---\n```bash cwt\n```\n",
			"2:8: image is not a string\n3:7: cpus: \"0\" is not a number of CPUs\n" +
				"5:9: unknown attribute \"cwt\"; the nearest known one is \"cwd\""},
		{"image that is a number", "---\nimage: 3\n---\n", "2:8: image is not a string"},
		{"image that is empty", "---\nimage: \"\"\n---\n", "2:8: image is empty"},
		{"image with an escape", "---\nimage: \"a\\eb\"\n---\n",
			"2:8: image contains a control character"},
		{"env that is a list", "---\nenv:\n  - A=b\n---\n", "3:3: env is not names and values"},
		{"variable's name", "---\nenv:\n  1A: b\n---\n",
			"3:3: \"1A\" cannot be the name of a variable"},
		{"variable's value", "---\nenv:\n  A: [b]\n---\n",
			"3:6: variable \"A\" does not have a scalar value"},
		{"variable with NUL", "---\nenv: {A: \"\\0\"}\n---\n",
			"2:10: variable \"A\" contains a NUL byte"},
		{"variable twice", "---\nenv: {A: b, A: c}\n---\n", "2:13: variable \"A\" is given twice"},
		{"column after wide characters", "---\nenv: {A: äöü, 1: c}\n---\n",
			"2:18: \"1\" cannot be the name of a variable"},
		{"files that are one", "---\nfiles: a.csv\n---\n", "2:8: files is not a list"},
		{"file that is a number", "---\nfiles: [1]\n---\n", "2:9: a file is not a string"},
		{"file without a path", "---\nfiles: [\":/x\"]\n---\n", "2:9: \":/x\" names no file"},
		{"timeout in front matter", "---\ntimeout: 90\n---\n", "2:10: timeout: \"90\" has no unit"},
		{"cpus", "---\ncpus: two\n---\n", "2:7: cpus: \"two\" is not a number of CPUs"},
		{"session that is no name", "---\nsession: a@b\n---\n",
			"2:10: session: \"a@b\" is not a valid name"},
		{"branch that is no name", "---\nbranch: [x]\n---\n", "2:9: branch has no scalar value"},
		{"branch that leaves its folder", "---\nbranch: a/../../x\n---\n",
			"2:9: branch: \"a/../../x\" is not a valid name"},
		{"branch that is a lock", "---\nbranch: fix/main.lock\n---\n",
			"2:9: branch: \"fix/main.lock\" is not a valid name"},
		{"session with a slash", "---\nsession: a/b\n---\n",
			"2:10: session: \"a/b\" is not a valid name"},
		{"home with a slash", "---\nhome: a/b\n---\n", "2:7: home: \"a/b\" is not a valid name"},
		{"home that leaves its folder", "---\nhome: ../x\n---\n",
			"2:7: home: \"../x\" is not a valid name"},
		{"lifetime", "---\nlifetime: ever\n---\n",
			"2:11: lifetime: \"ever\" is neither turn nor session"},
		{"snapshot", "---\nsnapshot: yes\n---\n", "2:11: snapshot: \"yes\" is neither none nor vm"},
		{"memory", "---\nmemory: lots\n---\n", "2:9: memory: \"lots\" is not a size"},
		{"too little memory", "---\nmemory: 512\n---\n",
			"2:9: memory: 512B is not between 256MiB and 1TiB"},
		{"disk", "---\ndisk: {}\n---\n", "2:7: disk has no scalar value"},
		{"network key", "---\nnetwork:\n  alow: [a.example]\n---\n",
			"3:3: network: unknown key \"alow\"; the nearest known one is \"allow\""},
		{"network key twice", "---\nnetwork: {deny: a, deny: b}\n---\n",
			"2:20: network: key \"deny\" is given twice"},
		{"network rule", "---\nnetwork:\n  allow: [a.example, 'b c']\n---\n",
			"3:22: network: allow: \"b c\" is not a name, address or range"},
		{"network rules", "---\nnetwork:\n  deny: {a: b}\n---\n",
			"3:9: network: deny is not a list"},
		{"network list", "---\nnetwork: [a.example]\n---\n",
			"2:10: network: a list does not say whether its names are allowed or denied"},
		{"network both", "---\nnetwork: {record: true, replay: true}\n---\n",
			"2:10: network: a turn cannot both record and replay"},
		{"network turn", "---\nnetwork: {replay: 'a b'}\n---\n",
			"2:19: network: replay: \"a b\" is not a turn"},
		{"network intercept", "---\nnetwork: {intercept: maybe}\n---\n",
			"2:22: network: intercept: \"maybe\" is neither true nor false"},
		{"isolation", "---\nisolation: none\n---\n",
			"2:12: isolation: \"none\" is neither microvm nor any"},
		{"network", "---\nnetwork: sometimes\n---\n",
			"2:10: network: \"sometimes\" is not on, off, record or replay"},
		{"null", "---\ncpus:\n---\n", "2:6: cpus has no scalar value"},
		{"anchor", "---\nenv: &a {A: b}\n---\n",
			"2:6: anchors and aliases are not allowed in the front matter"},
		{"alias bomb", "---\nenv:\n  A: &a x\n  B: [*a, *a]\n---\n",
			"3:6: anchors and aliases are not allowed in the front matter"},
		{"deep nesting", "---\nturn: " + strings.Repeat("[", 20000) + "\n---\n",
			"2:1: the front matter is not YAML: exceeded max depth of 10000"},
		{"not keys", "---\nhello\n---\n",
			"2:1: the front matter is not a list of keys and values, one per line"},
		{"flow style", "---\n{image: x}\n---\n",
			"2:1: the front matter is not a list of keys and values, one per line"},
		{"broken YAML", "---\nimage: x\n  y: z\n---\n",
			"3:1: the front matter is not YAML: mapping values are not allowed in this context"},
		{"open list", "---\nimage: x\nfiles: [a\n---\n",
			"3:1: the front matter is not YAML: did not find expected ',' or ']'"},
		{"tab", "---\n\timage: x\n---\n",
			"2:1: the front matter is not YAML: found character that cannot start any token"},
		{"control character", "---\nimage: a\x01\n---\n",
			"2:1: the front matter is not YAML: control characters are not allowed"},
		{"invalid UTF-8", "---\nimage: \xff\n---\n",
			"2:1: the front matter is not YAML: invalid leading UTF-8 octet"},
		{"Unicode line separator", "---\nimage: a\u2028b\n---\n",
			"2:9: a Unicode line separator in the front matter"},
		{"front matter that never ends", "---\nimage: python\n\n# Title\n",
			"1:1: the front matter that begins here is not closed"},
		{"long front matter", "---\n#" + strings.Repeat("x", maxFront) + "\n---\n",
			"2:1: the front matter has more than 256.0 KiB"},
		{"turn entry that leaves a part", "---\nturn: [\na: b\n]\n---\n",
			"3:1: the turn: entry does not have the form that turn writes"},
		{"turn entry with a strange key", "---\n? turn\n: x\n---\n",
			"2:3: the turn: entry does not have the form that turn writes"},

		{"end without a beginning", "text\n\n<!-- /turn:result -->\n",
			"3:1: a result ends here without a beginning"},
		{"result of no step", "text\n\n<!-- turn:result step=1 -->\nx\n<!-- /turn:result -->\n",
			"3:1: this result is not directly below a step"},
		{"result after other text",
			"```sh\n```\ntext\n<!-- turn:result step=1 -->\n<!-- /turn:result -->\n",
			"4:1: this result is not directly below a step"},
		{"result in another container",
			"- ```sh\n  ```\n\n<!-- turn:result step=1 -->\n<!-- /turn:result -->\n",
			"4:1: this result is not directly below a step"},
		{"result of another language",
			"```py\n```\n<!-- turn:result step=1 -->\n<!-- /turn:result -->\n",
			"3:1: this result is not directly below a step"},
		{"second result", "```sh\n```\n<!-- turn:result step=1 -->\n<!-- /turn:result -->\n" +
			"<!-- turn:result step=1 -->\n<!-- /turn:result -->\n", "5:1: this result is not " +
			"directly below a step"},
		{"result without an end",
			"```sh\n```\n<!-- turn:result step=1 -->\n\n```sh\n```\n<!-- turn:result step=2 -->\n" +
				"<!-- /turn:result -->\n", "3:1: this result has no end: <!-- /turn:result --> " +
				"is missing"},
		{"step in a result",
			"```sh\n```\n<!-- turn:result step=1 -->\n```sh\n```\n<!-- /turn:result -->\n",
			"4:1: this text is inside a result and would be lost when the document runs"},
		{"heading in a result",
			"```sh\n```\n<!-- turn:result step=1 -->\n# mine\n<!-- /turn:result -->\n",
			"4:1: this text is inside a result and would be lost when the document runs"},
		{"odd marker", "<!-- turn:result -->\n",
			"1:1: a comment that begins with turn:result and does not have the form that turn " +
				"writes"},
		{"marker over lines", "<!--\nturn:result step=1\n-->\n",
			"1:1: a comment that begins with turn:result and does not have the form that turn " +
				"writes"},
		{"marker with text after it", "<!-- /turn:result --> text\n",
			"1:1: a comment that begins with turn:result and does not have the form that turn " +
				"writes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, err := Parse("d.md", []byte(tt.src))
			if err == nil {
				t.Fatalf("no error; steps %s", stepsOf(d))
			}
			got, want := err.Error(),
				"d.md:"+strings.ReplaceAll(tt.want, "\n", "\nd.md:")
			if got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			var es SyntaxErrors
			if !errors.As(err, &es) {
				t.Fatalf("%T", err)
			}
			for _, e := range es {
				if e.Hint == "" {
					t.Errorf("%v has no hint", e)
				}
			}
			if turnstone.KindOf(err) != turnstone.KindInvalid ||
				turnstone.HintOf(err) != es[0].Hint {
				t.Errorf("kind %s, hint %q", turnstone.KindOf(err), turnstone.HintOf(err))
			}
		})
	}
}

func TestLimits(t *testing.T) {
	many := strings.Repeat("```sh\n```\n", MaxSteps)
	if _, err := Parse("d.md", []byte(many)); err != nil {
		t.Errorf("%d steps: %v", MaxSteps, err)
	}
	_, err := Parse("d.md", []byte(many+many))
	if err == nil || !strings.Contains(err.Error(), "d.md:2001:1: more than 1000 steps") {
		t.Errorf("%d steps: %v", 2*MaxSteps, err)
	}
	prose := strings.Repeat("x", MaxSource-1) + "\n"
	if _, err := Parse("d.md", []byte(prose)); err != nil {
		t.Errorf("16 MiB: %v", err)
	}
	if _, err := Parse("d.md", []byte(prose+"y")); err == nil ||
		!strings.Contains(err.Error(), "the limit is 16MiB") {
		t.Errorf("more than 16 MiB: %v", err)
	}
	if _, err := Parse("d.md", make([]byte, MaxFile+1)); err == nil ||
		!strings.Contains(err.Error(), "the limit is 128MiB") {
		t.Errorf("more than 128 MiB: %v", err)
	}
	_, err = Parse("d.md", []byte(strings.Repeat("<!-- /turn:result -->\n", 50)))
	var es SyntaxErrors
	if !errors.As(err, &es) || len(es) != maxErrors ||
		!strings.HasSuffix(es[maxErrors-1].Msg, "(and 30 more faults)") {
		t.Errorf("50 faults: %v", err)
	}
}

// TestHostileTime: no short text takes long. Each of these texts once took quadratic time.
func TestHostileTime(t *testing.T) {
	for name, src := range map[string]string{
		"definitions": strings.Repeat("[a]: b\n", 100_000),
		"quotes":      strings.Repeat(">", 1_000_000),
		"keys":        "---\n" + strings.Repeat("k: v\n", 50_000) + "---\n",
	} {
		start := cpuTime(t)
		_, _ = Parse("d.md", []byte(src))
		// Ten times the time on a slow machine, and a tenth of quadratic time.
		if took := cpuTime(t) - start; took > 3*time.Second {
			t.Errorf("%s took %v", name, took)
		}
	}
}

// cpuTime returns this process's CPU time, which does not depend on other load.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
