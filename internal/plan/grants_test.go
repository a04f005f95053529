package plan

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/config"
)

// TestEveryFieldIsClassified checks that every new key of front matter is classified: whether a
// document can widen its permissions with it.
func TestEveryFieldIsClassified(t *testing.T) {
	known := map[string]claim{}
	for _, c := range frontClaims() {
		if _, twice := known[c.field]; twice {
			t.Errorf("%s is classified twice", c.field)
		}
		if (c.key == "") != (c.why != "") ||
			c.key != "" && !slices.Contains(config.GrantKeys, c.key) {
			t.Errorf("%s is granted by %q, because %q", c.field, c.key, c.why)
		}
		known[c.field] = c
	}
	has := 0
	for prefix, typ := range map[string]reflect.Type{"": reflect.TypeFor[document.FrontMatter](),
		"NetworkRules.": reflect.TypeFor[document.NetworkRules]()} {
		for i := range typ.NumField() {
			has++
			if _, ok := known[prefix+typ.Field(i).Name]; !ok {
				t.Errorf("%s%s: say in frontClaims what a document can do with it", prefix,
					typ.Field(i).Name)
			}
		}
	}
	if has != len(known) {
		t.Errorf("%d fields are classified, and %d exist", len(known), has)
	}
}

func asks(t *testing.T, front string, req Request, host config.Config) []string {
	t.Helper()
	req.Document = parse(t, "---\n"+front+"\n---\n")
	var what []string
	for _, a := range (&Authority{Request: req, Host: Host{Config: host}}).missing() {
		what = append(what, a.What+" | "+a.Flag)
	}
	return what
}

func TestGrants(t *testing.T) {
	on := true
	closedRules := &document.NetworkRules{HasAllow: true, Allow: []string{"10.0.0.0/8"}}
	for name, c := range map[string]struct {
		front string
		req   Request
		host  config.Config
		want  string // joined by "; "; empty: nothing
	}{
		"what narrows": {front: "env: {A: b}\ncwd: x\ntimeout: 5m\ncpus: 2\nmemory: 1GiB\n" +
			"disk: 1GiB\nisolation: microvm\nnetwork: {allow: [a.example, '*.b.example:443', " +
			"192.0.2.0/24], deny: [10.0.0.0/8], intercept: true, record: true}\n" +
			"lifetime: turn\nsnapshot: none\nfiles: [a]\nimage: python"},
		"the host's loopback": {front: "network: {allow: ['127.0.0.1:18099']}",
			want: "network: allow: 127.0.0.1:18099 | --allow 127.0.0.1:18099"},
		"private": {front: "network: {allow: [10.1.0.0/16, public]}",
			want: "network: allow: 10.1.0.0/16 | --allow 10.1.0.0/16"},
		"metadata": {front: "network: {allow: [169.254.169.254, 168.63.129.16, 192.0.2.1]}",
			want: "network: allow: 169.254.169.254 | --allow 169.254.169.254; " +
				"network: allow: 168.63.129.16 | --allow 168.63.129.16"},
		"link-local": {front: "network: {allow: [169.254.0.0/16]}",
			want: "network: allow: 169.254.0.0/16 | --allow 169.254.0.0/16"},
		"everything public": {front: "network: {allow: [0.0.0.0/0]}"},
		"the caller's rules": {front: "network: {allow: [10.1.0.0/16]}",
			req: Request{NetworkRules: closedRules}},
		"the host's rules": {front: "network: {allow: [10.1.0.0/16]}",
			host: config.Config{Network: config.Network{Allow: []string{"10.0.0.0/8"}}}},
		"documents' rules": {front: "network: {allow: ['10.1.0.0/16:80']}",
			host: config.Config{Documents: config.Documents{Allow: []string{"10.0.0.0/8:80"}}}},
		"another port": {front: "network: {allow: ['10.1.0.0/16:81']}",
			host: config.Config{Documents: config.Documents{Allow: []string{"10.0.0.0/8:80"}}},
			want: "network: allow: 10.1.0.0/16:81 | --allow 10.1.0.0/16:81"},
		"metadata in a range": {front: "network: {allow: [169.254.169.254]}",
			host: config.Config{Documents: config.Documents{Allow: []string{"169.254.0.0/16"}}},
			want: "network: allow: 169.254.169.254 | --allow 169.254.169.254"},
		"private in 0/0": {front: "network: {allow: [10.0.0.0/8]}",
			host: config.Config{Documents: config.Documents{Allow: []string{"0.0.0.0/0"}}},
			want: "network: allow: 10.0.0.0/8 | --allow 10.0.0.0/8"},
		"a recording": {front: "network: {allow: [10.0.0.0/8], replay: true}"},
		"on where it is off": {front: "network: on",
			host: config.Config{Network: config.Network{Default: "off"}},
			want: "network: on | --network on"},
		"on by the caller": {front: "network: on", req: Request{Network: &on},
			host: config.Config{Network: config.Network{Default: "off"}}},
		"rules where it is off": {front: "network: {deny: [10.0.0.0/8]}",
			host: config.Config{Network: config.Network{Default: "off"}},
			want: "network: {…}, a network, where the host's default is off | --network on"},
		"record where it is off": {front: "network: {record: true}",
			host: config.Config{Network: config.Network{Default: "off"}},
			want: "network: {…}, a network, where the host's default is off | --network record"},
		"a session":            {front: "session: s", want: "session: s | --session s"},
		"the caller's session": {front: "session: s", req: Request{Session: "mine"}},
		"sessions of the host": {front: "session: ci-3\nbranch: b",
			host: config.Config{Documents: config.Documents{Sessions: []string{"ci-*"}}}},
		"other sessions": {front: "session: prod",
			host: config.Config{Documents: config.Documents{Sessions: []string{"ci-*"}}},
			want: "session: prod | --session prod"},
		"a branch of nothing": {front: "branch: b"},
		"a branch": {front: "branch: b", req: Request{Session: "s"},
			want: "branch: b | --branch b"},
		"main": {front: "branch: main", req: Request{Session: "s"}},
		"both": {front: "session: s\nbranch: b",
			want: "session: s | --session s; branch: b | --branch b"},
		"a home": {front: "home: h", want: "home: h | --home h"},
		"homes of the host": {front: "home: h",
			host: config.Config{Documents: config.Documents{Homes: []string{"*"}}}},
		"a paused machine": {front: "lifetime: session", req: Request{Session: "s"},
			want: "lifetime: session | --lifetime session"},
		"a kept machine": {front: "snapshot: vm", want: "snapshot: vm | --snapshot vm"},
		"files of a pipe": {front: "files: [.ssh/id_rsa]", req: Request{Piped: true},
			want: "files: .ssh/id_rsa | --grant files"},
		"an image": {front: "image: python:3.12"},
		"a registry here": {front: "image: 'localhost:18098/x/y:1'",
			want: "image: localhost:18098/x/y:1 (which is this machine) | " +
				"--image localhost:18098/x/y:1"},
		"a registry in private": {front: "image: '10.1.2.3:5000/x:1'",
			want: "image: 10.1.2.3:5000/x:1 (which is in a private network) | " +
				"--image 10.1.2.3:5000/x:1"},
		"the caller's image": {front: "image: 'localhost:18098/x:1'",
			req: Request{Image: "localhost:18098/x:1"}},
		"the host's registry": {front: "image: 'localhost:18098/x:1'",
			host: config.Config{Images: config.Images{Registries: []string{"LOCALHOST:18098"}}}},
		"another registry": {front: "image: 'localhost:18099/x:1'",
			host: config.Config{Images: config.Images{Registries: []string{"localhost:18098"}}},
			want: "image: localhost:18099/x:1 (which is this machine) | " +
				"--image localhost:18099/x:1"},
	} {
		if got := strings.Join(asks(t, c.front, c.req, c.host), "; "); got != c.want {
			t.Errorf("%s: asks for %q, want %q", name, got, c.want)
		}
		if c.want == "" {
			continue
		}
		granted, host := c.req, c.host
		granted.Grant = config.GrantKeys
		if got := asks(t, c.front, granted, host); len(got) > 0 {
			t.Errorf("%s: with all keys granted it still asks for %q", name, got)
		}
		host.Documents.Grant = config.GrantKeys
		if got := asks(t, c.front, c.req, host); len(got) > 0 {
			t.Errorf("%s: with all keys granted by the host it still asks for %q", name, got)
		}
	}
}

// TestDocumentsNeverGrant checks that a document, with any combination of keys, gets nothing that
// its caller did not grant: either the request is rejected, or the plan has no more than the
// caller's.
func TestDocumentsNeverGrant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pick := func(name string, values ...string) string {
			return rapid.SampledFrom(append(values, "")).Draw(t, name)
		}
		f := document.FrontMatter{
			Image:   pick("image", "python", "python:3.12", "localhost:1/x", "192.168.1.1/x"),
			Session: pick("session", "s", "t"), Branch: pick("branch", "main", "b"),
			Home: pick("home", "h"), Lifetime: turnstone.Lifetime(pick("lifetime", "turn",
				"session")), Snapshot: document.Snapshot(pick("snapshot", "vm", "none"))}
		if rapid.Bool().Draw(t, "rules") {
			f.NetworkRules = &document.NetworkRules{HasAllow: true,
				Allow: rapid.SliceOfN(rapid.SampledFrom([]string{"10.0.0.0/8", "127.0.0.1:80",
					"a.example", "192.0.2.1", "public", "169.254.169.254"}), 0, 3).Draw(t, "allow")}
		}
		req := Request{Document: &document.Document{Name: "doc", Front: f},
			Session: pick("--session", "s"), Home: pick("--home", "h"),
			Lifetime: turnstone.Lifetime(pick("--lifetime", "session")),
			Image:    pick("--image", "base"),
			Grant: rapid.SliceOfDistinct(rapid.SampledFrom(config.GrantKeys),
				func(s string) string { return s }).Draw(t, "grant")}
		a := &Authority{Request: req}
		err := a.Check()
		if err != nil {
			if turnstone.KindOf(err) != turnstone.KindInvalid || turnstone.HintOf(err) == "" {
				t.Fatalf("refused with %v", err)
			}
			for _, ask := range a.missing() { // every grant that is named helps
				req.Grant = append(req.Grant, ask.Key)
			}
			if err := (&Authority{Request: req}).Check(); err != nil {
				t.Fatalf("what it names is granted, and still: %v", err)
			}
			return
		}
		has := func(key string) bool { return slices.Contains(req.Grant, key) }
		effective := func(flag, front string) string { return cmp.Or(flag, front) }
		switch {
		case !has("session") && effective(req.Session, f.Session) != req.Session,
			!has("home") && effective(req.Home, f.Home) != req.Home,
			!has("lifetime") && f.Lifetime == turnstone.LifetimeSession && req.Lifetime == "",
			!has("snapshot") && f.Snapshot == document.SnapshotVM,
			!has("image") && req.Image == "" &&
				(f.Image == "localhost:1/x" || f.Image == "192.168.1.1/x"),
			!has("image") && req.Image == "" && f.Image == "python:3.12" && !a.Anonymous():
			t.Fatalf("%+v is run with %+v", f, req)
		}
		if f.NetworkRules != nil && !has("network") {
			for _, rule := range f.NetworkRules.Allow {
				if slices.Contains([]string{"10.0.0.0/8", "127.0.0.1:80", "169.254.169.254"},
					rule) {
					t.Fatalf("%s is opened", rule)
				}
			}
		}
	})
}

// TestReceiptGrantsNothing checks that a receipt's turn: map describes the past and requests
// nothing.
func TestReceiptGrantsNothing(t *testing.T) {
	doc := parse(t, "---\nturn:\n  session: s_06gvr7hpbvg62sijn4\n  branch: b\n  home: h\n"+
		"  lifetime: session\n  snapshot: vm\n  image: localhost:1/x\n---\n")
	if !reflect.DeepEqual(doc.Front, document.FrontMatter{}) {
		t.Errorf("it is read as %+v", doc.Front)
	}
	if got := Asks(doc, false, config.Config{}); len(got) > 0 {
		t.Errorf("it asks for %v", got)
	}
}

// TestHintOfRemoteCaller checks that a caller on another machine is not told to give a flag that it
// has given: only the host's configuration grants.
func TestHintOfRemoteCaller(t *testing.T) {
	for front, key := range map[string]string{"lifetime: session": "lifetime",
		"snapshot: vm": "snapshot", "network: {allow: [10.0.0.0/8]}": "network"} {
		doc, err := document.Parse("a.md", []byte("---\n"+front+"\n---\n```bash\ntrue\n```\n"))
		if err != nil {
			t.Fatal(err)
		}
		for remote, want := range map[bool]string{false: "add --", true: `grant = ["` + key + `"]`} {
			err := (&Authority{Request: Request{Document: doc, Remote: remote}}).Check()
			if hint := turnstone.HintOf(err); !strings.Contains(hint, want) ||
				remote == strings.Contains(hint, "--") {
				t.Errorf("%s, remote %t: %v, %q", front, remote, err, hint)
			}
		}
	}
}

// TestHintOfPipedFiles checks that the hint names the remedy once.
func TestHintOfPipedFiles(t *testing.T) {
	for front, want := range map[string]string{
		"files: [a, b]": "add --grant files, which grants",
		"files: [a, b]\nsession: s": "add --grant files --session s; " +
			"or --grant files,session, which",
	} {
		err := (&Authority{Request: Request{Document: parse(t, "---\n"+front+"\n---\n"),
			Piped: true}}).Check()
		if hint := turnstone.HintOf(err); !strings.HasPrefix(hint, want) {
			t.Errorf("%q: %s, want %q", front, hint, want)
		}
	}
}
