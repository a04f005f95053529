package syntax

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// codeOf writes the code in a script's commands for tables: the language, "v" if it is verbatim,
// "?" if no grammar parsed it, the text, the file, the faults.
func codeOf(s *Script) string {
	var out []string
	for _, c := range s.Commands {
		for _, e := range c.Embedded {
			text := e.Language
			if e.Verbatim {
				text += " v"
			}
			if !e.Parsed {
				text += " ?"
			}
			text += fmt.Sprintf(" %q", s.Source[e.Span.Start:e.Span.End])
			if e.File != "" {
				text += " in " + e.File
			}
			for _, f := range e.Faults {
				text += fmt.Sprintf(" fault %d:%d %q", f.Span.Line, f.Span.Column,
					s.Source[f.Span.Start:f.Span.End])
			}
			out = append(out, text)
		}
	}
	return strings.Join(out, "|")
}

// ruleExamples has at least one command for each rule's programs.
var ruleExamples = []struct{ src, language, want string }{
	{`python3 -c 'print(1)'`, "python", `python v "print(1)"`},
	{`python3.12 -W ignore -c 'print(1)' a`, "python", `python v "print(1)"`},
	{`python -c "x = $y"`, "python", `python ? "x = $y"`},
	{`python -c "x = \"y\""`, "python", `python "x = \\\"y\\\""`},
	{`/usr/bin/python -c'x = 1'`, "python", `python v "x = 1"`},
	{`python -c 'x = '"'"'y'"'"`, "python", `python "'x = '\"'\"'y'\"'\""`},
	{"python - <<'EOF'\nx = 1\nEOF\n", "python", `python v "x = 1\n"`},
	{"python - a b <<EOF\nx = 1\nEOF\n", "python", `python v "x = 1\n"`},
	{"python <<EOF\nx = $y (\nEOF\n", "python", `python ? "x = $y (\n"`},
	{"python a.py <<EOF\nx = 1\nEOF\n", "python", ``},
	{"python -m json.tool <<EOF\nx = 1\nEOF\n", "python", ``},
	{"python <<< 'x = 1'", "python", `python v "x = 1"`},
	{"python -c 'def f(:\n  pass'", "python", `python v "def f(:\n  pass" fault 1:18 ""`},
	{`pypy3 -c 'x = 1'`, "python", `python v "x = 1"`},
	{`node -e 'f(1)'`, "javascript", `javascript v "f(1)"`},
	{`node --eval='f(1)' a`, "javascript", `javascript v "f(1)"`},
	{`node -p '1 +'`, "javascript", `javascript v "1 +" fault 1:10 "1 +"`},
	{"nodejs - <<'EOF'\nf(1)\nEOF\n", "javascript", `javascript v "f(1)\n"`},
	{`deno run a.ts`, "javascript", ``},
	{`ruby -rjson -e 'puts 1' -e 'puts 2'`, "ruby", `ruby v "puts 1"|ruby v "puts 2"`},
	{`perl -lne 'print'`, "perl", `perl v ? "print"`},
	{`perl -E 'say 1'`, "perl", `perl v ? "say 1"`},
	{`perl -i.bak -pe 's/a/b/' f`, "perl", `perl v ? "s/a/b/"`},
	{`psql -U u -c "select 1" db`, "sql", `sql v ? "select 1"`},
	{`psql --command="select $x"`, "sql", `sql ? "select $x"`},
	{"psql db <<'EOF'\nselect 1;\nEOF\n", "sql", `sql v ? "select 1;\n"`},
	{`sqlite3 -cmd .x a.db "select 1" 'select 2'`, "sql", `sql v ? "select 1"|sql v ? "select 2"`},
	{"sqlite3 a.db <<'EOF'\nselect 1;\nEOF\n", "sql", `sql v ? "select 1;\n"`},
	{`mysql -u root -e 'select 1'`, "sql", `sql v ? "select 1"`},
	{`mariadb <<< 'select 1'`, "sql", `sql v ? "select 1"`},
	{`jq '.a[] | .b' f`, "jq", `jq v ".a[] | .b"`},
	{`jq -r --arg a "$b" --indent 2 '.a | [' f`, "jq", `jq v ".a | [" fault 1:38 ""`},
	{`jq -f a.jq f`, "jq", ``},
	{`gojq .a`, "jq", `jq v ".a"`},
	{`awk -F: -v x="$y" '{print $1}' f`, "awk", `awk v "{print $1}"`},
	{`awk '{print $1' f`, "awk", `awk v "{print $1" fault 1:15 ""`},
	{`gawk -f a.awk f`, "awk", ``},
	{`sed -n 's/a/b/p' f`, "sed", `sed v ? "s/a/b/p"`},
	{`sed -e s/a/b/ -es/c/d/ f`, "sed", `sed v ? "s/a/b/"|sed v ? "s/c/d/"`},
	{`sed -f a.sed f`, "sed", ``},
	{`bash -c 'a; b'`, "bash", `bash v "a; b"`},
	{`bash -euo pipefail -c 'if a'`, "bash", `bash v "if a" fault 1:24 ""`},
	{"sh -s a <<'EOF'\nb\nEOF\n", "bash", `bash v "b\n"`},
	{`bash -c "python3 -c 'x = 1'"`, "bash", `bash v "python3 -c 'x = 1'"|python v "x = 1"`},
	{`bash -c "python3 -c \"x = (\""`, "bash",
		`bash "python3 -c \\\"x = (\\\""|python "x = (" fault 1:23 "x = ("`},
	{`bash -c "cd $a && jq '.['"`, "bash", `bash ? "cd $a && jq '.['"|jq ? ".["`},
	{`ssh -p 22 host 'cd a && jq .b'`, "bash", `bash v "cd a && jq .b"|jq v ".b"`},
	{`ssh host ls -l`, "bash", ``},
	{"ssh host <<'EOF'\njq .a\nEOF\n", "bash", `bash v "jq .a\n"|jq v ".a"`},
	{`env -u A X=1 Y=2 python -c 'x = 1'`, "python", `python v "x = 1"`},
	{`sudo -u root -E python -c 'x = 1'`, "python", `python v "x = 1"`},
	{`timeout -k 3 5s python -c 'x = 1'`, "python", `python v "x = 1"`},
	{`nice -n 5 ionice -c 3 nohup stdbuf -oL python -c 'x = 1'`, "python", `python v "x = 1"`},
	{`xargs -0 -n 1 -I{} sh -c 'a {}'`, "bash", `bash v "a {}"`},
	{`command time -p python -c 'x = 1'`, "python", `python v "x = 1"`},
	{`exec -a x python -c 'x = 1'`, "python", `python v "x = 1"`},
	{"cat > a.py <<'EOF'\nx = (\nEOF\n", "bash", `python v "x = (\n" in a.py fault 2:1 "x = ("`},
	{"cat <<EOF >>/x/a.json\n{\"a\": $b}\nEOF\n", "bash", `json ? "{\"a\": $b}\n" in /x/a.json`},
	{"cat >a.txt <<EOF\nx\nEOF\n", "bash", ``},
	{"cat b >a.py <<EOF\nx\nEOF\n", "bash", ``},
	{"cat <<-'EOF' >a.sh\n\tjq '.['\n\tEOF\n", "bash",
		`bash "\tjq '.['\n" in a.sh|jq ".[" fault 2:8 ""`},
	{"sudo tee -a a.js <<'EOF'\nf(1)\nEOF\n", "bash", `javascript v "f(1)\n" in a.js`},
	{"dd of=a.rb <<'EOF'\nputs 1\nEOF\n", "bash", `ruby v "puts 1\n" in a.rb`},
	{`echo python -c 'x'`, "bash", ``},
	{`"$python" -c 'x'`, "bash", ``},
}

func TestRules(t *testing.T) {
	for _, tt := range ruleExamples {
		s := Parse([]byte(tt.src))
		if strings.Count(tt.src, "'")%2 == 0 {
			checkScript(t, s)
		}
		if len(s.Commands) == 0 {
			t.Errorf("%s: no command", tt.src)
			continue
		}
		if got := s.Commands[0].Language; got != tt.language {
			t.Errorf("%s: language %s, want %s", tt.src, got, tt.language)
		}
		if got := codeOf(s); got != tt.want {
			t.Errorf("%s:\n%s, want\n%s", tt.src, got, tt.want)
		}
	}
}

// TestEveryRuleHasAnExample keeps the table above complete.
func TestEveryRuleHasAnExample(t *testing.T) {
	for _, r := range languageRules() {
		found := false
		for _, name := range strings.Fields(r.Programs) {
			name = strings.TrimSuffix(name, "*")
			for _, e := range ruleExamples {
				found = found || strings.Contains(" "+e.src, " "+name) ||
					strings.Contains(e.src, "/"+name)
			}
		}
		if !found {
			t.Errorf("no example for %s", r.Programs)
		}
	}
}

// TestRulesInDocs checks that the page's tables equal the code's.
func TestRulesInDocs(t *testing.T) {
	page, err := os.ReadFile("../../../docs/shell.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range append(ruleLines(), endingLines()...) {
		if !strings.Contains(string(page), "\n"+line+"\n") {
			t.Errorf("docs/shell.md lacks this line of its table:\n%s", line)
		}
	}
}

func codeList(s string) string {
	if s == "" {
		return ""
	}
	return "`" + strings.Join(strings.Fields(s), "` `") + "`"
}

func ruleLines() []string {
	var out []string
	for _, r := range languageRules() {
		var where []string
		if r.Code != "" {
			where = append(where, codeList(r.Code))
		}
		if r.Operand > 0 {
			text := fmt.Sprintf("operand %d", r.Operand)
			if r.Rest {
				text += " and those after it"
			}
			if r.Instead != "" {
				text += ", without " + codeList(r.Instead)
			}
			where = append(where, text)
		}
		switch {
		case r.Stdin == 1:
			where = append(where, "standard input, without operands or with `-`")
		case r.Stdin > 50:
			where = append(where, "standard input")
		case r.Stdin > 0:
			where = append(where,
				fmt.Sprintf("standard input, with fewer than %d operands", r.Stdin))
		}
		if r.Force != "" {
			where = append(where, "standard input with "+codeList(r.Force))
		}
		switch r.File {
		case "":
		case ">":
			where = append(where, "standard input, by the file that `>` names")
		case "operands":
			where = append(where, "standard input, by the file that an operand names")
		default:
			where = append(where, "standard input, by the file that `"+r.File+"` names")
		}
		language := r.Language
		switch {
		case r.Prefix && r.Skip > 0:
			language, where = "of its command",
				append(where,
					fmt.Sprintf("the command after options, %d operand and variables", r.Skip))
		case r.Prefix:
			language, where = "of its command",
				append(where, "the command after options and variables")
		case language == "":
			language = "bash"
		}
		out = append(out, fmt.Sprintf("| %s | %s | %s |", codeList(r.Programs), language,
			strings.Join(where, "; ")))
	}
	return out
}

func endingLines() []string {
	byLanguage := map[string][]string{}
	for ending, language := range endings() {
		byLanguage[language] = append(byLanguage[language], ending)
	}
	var out []string
	for language, endings := range byLanguage {
		slices.Sort(endings)
		out = append(out, fmt.Sprintf("| %s | %s |", language,
			codeList(strings.Join(endings, " "))))
	}
	slices.Sort(out)
	return out
}
