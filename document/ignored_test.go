package document

import (
	"fmt"
	"strings"
	"testing"
)

// TestIgnored: what documents have for other tools is named, and changes nothing. A word of turn's that is misspelt is
// an error: nothing that an author set is lost without a word.
func TestIgnored(t *testing.T) {
	for src, want := range map[string]string{
		"---\ntitle: How we release\ntags: [ops, howto]\ndate: 2026-01-03\n---\n```bash title=\"release.sh\"\n:\n```\n": "2 title, 3 tags, 4 date, 6 title",
		"---\nauthor: {name: A, links: [a, b]}\ndraft: true\ncpus: 2\nversion: 3\n---\n":                                "2 author, 3 draft, 5 version",
		"---\nname: x\ndescription: >\n  long\n  text\nallowed-tools: Bash(git:*), Read\nmodel: any\n---\n":             "2 name, 3 description, 6 allowed-tools, 7 model",
		"---\nlayout: post\nlang: en\nslug: a\nweight: 3\nid: x\ntoc:\n---\n":                                           "2 layout, 3 lang, 4 slug, 5 weight, 6 id, 7 toc",
		"---\n1: a\n\"\": b\n\"a\\nb\": c\n---\n":                                                                       `2 1, 3 , 4 a b`,
		"```bash copy\n```\n":  "1 copy",
		"```bash {1,3}\n```\n": "1 1,3",
		"```bash {1,3-5} title=\"a b\" showLineNumbers\n```\n":                                             "1 1,3-5, 1 title, 1 showLineNumbers",
		"```bash title=\"a } b\" {1}\n```\n":                                                               "1 title, 1 1",
		"```bash{1}\n```\n":                                                                                "1 1",
		"```sh { .numberLines startFrom=\"100\" }\n```\n":                                                  "1 .numberLines, 1 startFrom",
		"```bash {linenos=table,hl_lines=[1,\"3-5\"],linenostart=9}\n```\n":                                "1 linenos",
		"```bash title=it's\n```\n":                                                                        "1 title",
		"```bash title=\"open\n```\n":                                                                      "1 title",
		"```bash title=\"a\"b x\n```\n":                                                                    "1 title, 1 x",
		"```bash \"please skip me\" {\"a skip b\"}\n```\n":                                                 `1 "please skip me", 1 "a skip b"`,
		"```bash title=\"a\\\" skip \\\"b\" copy\n```\n":                                                   "1 title, 1 copy",
		"```bash title = \"x\" {title=it's}\n```\n":                                                        `1 title, 1 =, 1 "x", 1 title`,
		"```bash title=\"open name=x timeout=5s\n```\n":                                                    "1 title",
		"---\nsection: 1\nlocation: x\nimage_alt: x\nhome_page: x\nbatch: 1\nmission: x\nseason: 2\n---\n": "2 section, 3 location, 4 image_alt, 5 home_page, 6 batch, 7 mission, 8 season",
		"```bash x x x=1\n```\n":                                                                           "1 x, 1 x, 1 x",
	} {
		d, err := Parse("x", []byte(src))
		if err != nil {
			t.Errorf("%q: %v", src, err)
			continue
		}
		var got []string
		for _, x := range d.Ignored {
			got = append(got, fmt.Sprintf("%d %s", x.Line, x.Name))
		}
		if text := strings.Join(got, ", "); text != want {
			t.Errorf("%q: %q, want %q", src, text, want)
		}
	}
	const both = "```bash {1,3} name=a title=\"x\" {timeout=5s copy} skip\n:\n```\n"
	d, err := Parse("x", []byte(both))
	if err != nil || len(d.Steps) != 1 || d.Steps[0].Name != "a" || d.Steps[0].Timeout.Seconds() != 5 || !d.Steps[0].Skip {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := Parse("x", []byte("```bash "+strings.Repeat("x ", 1000)+"\n```\n")); err != nil || len(d.Ignored) != maxIgnored {
		t.Errorf("%v", err)
	}
}

// TestMisspelt: words that are near to one of turn's are errors, whatever their form.
func TestMisspelt(t *testing.T) {
	for word, near := range map[string]string{"Image": "image", "imgae": "image", "images": "image", "evn": "env", "envs": "env",
		"file": "files", "cpu": "cpus", "memroy": "memory", "time_out": "timeout", "timeot": "timeout", "netwrok": "network",
		"determinism": "deterministic", "life-time": "lifetime", "sesion": "session", "snapshots": "snapshot", "check_point": "checkpoint", "snapshoot": "snapshot",
		"isolated": "isolation", "environment": "env", "memory_limit": "memory", "memoryLimit": "memory",
		"network-mode": "network", "networkMode": "network", "networking": "network", "net": "network", "no_network": "network", "internet": "network",
		"offline": "network", "allow-hosts": "network", "network.allow": "network", "working_directory": "cwd", "workingDir": "cwd",
		"timeoutSeconds": "timeout", "time_limit": "timeout", "mem": "memory", "cpu_limit": "cpus", "cores": "cpus", "diskSize": "disk",
		"retries": "retry", "envVars": "env", "vars": "env", "allow": "network.allow", "deny": "network.deny", "host_ca": "network.host_ca"} {
		_, err := Parse("x", []byte("---\n"+word+": 1\n---\n"))
		if want := fmt.Sprintf("2:1: unknown key %q; the nearest known one is %q", word, near); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	for _, form := range []string{"skip:true", "skip,copy", "skip;copy", "--skip", "<skip>", "timeout:5s", "{timeout:5s}", "timeoutSeconds=5",
		"copy,timeout=5s", "{linenos=table,timeout=5s}", "continue", "dir=/x", "workdir=/x", "{.skip}"} {
		if _, err := Parse("x", []byte("```bash "+form+"\n```\n")); err == nil || !strings.Contains(err.Error(), "unknown attribute") {
			t.Errorf("%s: %v", form, err)
		}
	}
	for word, near := range map[string]string{"Name": "name", "naem": "name", "pwd": "cwd", "skipp": "skip", "time-out": "timeout",
		"continue_on_error": "continue-on-error", "continue-on-eror": "continue-on-error", "unparse": "unparsed"} {
		for _, form := range []string{"```bash %s\n```\n", "```bash %s=1\n```\n", "```bash {%s}\n```\n", "```bash {1} %s=\"a\n```\n"} {
			_, err := Parse("x", fmt.Appendf(nil, form, word))
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("unknown attribute %q; the nearest known one is %q", word, near)) &&
				!strings.Contains(err.Error(), "the quote is not closed") {
				t.Errorf("%q with %s: %v", form, word, err)
			}
		}
	}
}
