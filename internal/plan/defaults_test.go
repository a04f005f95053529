package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/manifest"
)

// defaults reads a manifest.
func defaults(t testing.TB, text string) document.Defaults {
	t.Helper()
	m, err := manifest.Parse("up/turnstone.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m.Defaults
}

// TestPrecedence checks for every key of a manifest that a flag wins over the document, the document
// over the manifest, the manifest over the host's configuration, and all over what is built in.
func TestPrecedence(t *testing.T) {
	yes, no, ten := true, false, 10*time.Minute
	granted := config.Config{Documents: config.Documents{Sessions: []string{"*"}}}
	networkOff := config.Config{Network: config.Network{Default: "off"},
		Documents: config.Documents{Grant: []string{"network"}}}
	for key, c := range map[string]struct {
		flag     func(*Request)
		document string
		manifest string
		host     config.Config
		of       func(*Plan) any
		want     [5]string // flag, document, manifest, host, built in; empty: not such a key there
	}{
		"image": {func(r *Request) { r.Image = "base" }, "image: python", "[sandbox]\nimage = 'nodejs'",
			config.Config{}, func(p *Plan) any { return p.Image },
			[5]string{"base", "python", "nodejs", "", "base"}},
		"substrate": {func(r *Request) { r.Substrate = "qemu" }, "", "[sandbox]\nsubstrate = 'gvisor'",
			config.Config{}, func(p *Plan) any { return p.Driver },
			[5]string{"qemu", "", "gvisor", "", "auto"}},
		"isolation": {nil, "isolation: any", "[sandbox]\nisolation = 'microvm'", config.Config{},
			func(p *Plan) any { return p.Isolation }, [5]string{"", "any", "microvm", "", ""}},
		"network": {func(r *Request) { r.Network = &no }, "network: on", "[sandbox]\nnetwork = 'off'",
			networkOff, func(p *Plan) any { return p.Shape.Network },
			[5]string{"false", "true", "false", "false", "true"}},
		"network on": {func(r *Request) { r.Network = &yes }, "network: off",
			"[sandbox]\nnetwork = 'on'", networkOff, func(p *Plan) any { return p.Shape.Network },
			[5]string{"true", "false", "true", "false", "true"}},
		"rules": {func(r *Request) {
			r.NetworkRules = &document.NetworkRules{HasAllow: true, Allow: []string{"f.example"}}
		}, "network: {allow: [d.example]}", "[sandbox.network]\nallow = ['m.example']", config.Config{},
			func(p *Plan) any { return p.Net.Asked.Allow },
			[5]string{"[f.example]", "[d.example]", "[m.example]", "", "[]"}},
		"cpus": {func(r *Request) { r.CPUs = 1 }, "cpus: 2", "[sandbox]\ncpus = 3", config.Config{},
			func(p *Plan) any { return p.Shape.CPUs }, [5]string{"1", "2", "3", "", "1"}},
		"memory": {func(r *Request) { r.Memory = 256 << 20 }, "memory: 512MiB",
			"[sandbox]\nmemory = '768MiB'", config.Config{},
			func(p *Plan) any { return p.Shape.Memory },
			[5]string{"256MiB", "512MiB", "768MiB", "", "1GiB"}},
		"disk": {func(r *Request) { r.Disk = 16 << 20 }, "disk: 32MiB", "[sandbox]\ndisk = '64MiB'",
			config.Config{}, func(p *Plan) any { return p.Shape.Disk },
			[5]string{"16MiB", "32MiB", "64MiB", "", "4GiB"}},
		"timeout": {func(r *Request) { r.Timeout = ten }, "timeout: 20m", "[sandbox]\ntimeout = '30m'",
			config.Config{}, func(p *Plan) any { return p.Timeout },
			[5]string{"10m0s", "20m0s", "30m0s", "", "1h0m0s"}},
		"deterministic": {func(r *Request) { r.Deterministic = &yes }, "deterministic: false",
			"[sandbox]\ndeterministic = true", config.Config{},
			func(p *Plan) any { return p.Determinism != nil },
			[5]string{"true", "false", "true", "", "false"}},
		"session": {func(r *Request) { r.Session = "f" }, "session: d",
			"[session]\nname = 'm'\nbranch = 'b'", granted,
			func(p *Plan) any { return p.Session + " " + p.Branch },
			[5]string{"f main", "d main", "m b", "", " main"}},
	} {
		for i, want := range c.want {
			if want == "" && !(key == "isolation" && i == 4) {
				continue
			}
			req, host := Request{Document: parse(t, "")}, Host{}
			if i <= 0 {
				c.flag(&req)
			}
			if i <= 1 && c.document != "" {
				req.Document = parse(t, "---\n"+c.document+"\n---\n")
			}
			if i <= 2 {
				req.Defaults = defaults(t, c.manifest)
			}
			if i <= 3 {
				host.Config = c.host
			}
			host.Tier = func() (turnstone.Tier, error, error) { return turnstone.TierSeeded, nil, nil }
			a := &Authority{Request: req.Completed(), Host: host}
			p, err := Make(a, "", "/workspace")
			if err == nil {
				err = a.Check()
			}
			if err != nil {
				t.Errorf("%s %d: %v", key, i, err)
				continue
			}
			if got := fmt.Sprint(c.of(p)); got != want {
				t.Errorf("%s %d: %s, want %s", key, i, got, want)
			}
		}
	}
}

// TestManifestGrantsNothing checks that a manifest needs the grants of a document, and that the
// error names it.
func TestManifestGrantsNothing(t *testing.T) {
	off := config.Config{Network: config.Network{Default: "off"}}
	for name, c := range map[string]struct {
		manifest, document string
		host               config.Config
		grant              string
		want               string
	}{
		"session": {manifest: "[session]\nname = 'mine'", grant: "session",
			want: "up/turnstone.toml: the manifest asks for what only its caller can grant: session: mine"},
		"its branch": {manifest: "[session]\nname = 'mine'\nbranch = 'b'", grant: "session",
			want: "session: mine"},
		"network": {manifest: "[sandbox]\nnetwork = 'on'", host: off, grant: "network",
			want: "up/turnstone.toml: the manifest asks for what only its caller can grant: network: on"},
		"closed address": {manifest: "[sandbox.network]\nallow = ['127.0.0.1:80']", grant: "network",
			want: "network: allow: 127.0.0.1:80"},
		"closed registry": {manifest: "[sandbox]\nimage = 'localhost:5000/x'", grant: "image",
			want: "image: localhost:5000/x"},
		"with the document's": {manifest: "[sandbox.network]\nallow = ['127.0.0.1:80']",
			document: "home: h", grant: "network,home",
			want: "test.md: the document asks for what only its caller can grant: " +
				"home: h; network: allow: 127.0.0.1:80 (up/turnstone.toml)"},
	} {
		req := Request{Document: parse(t, "---\n"+c.document+"\n---\n"),
			Defaults: defaults(t, c.manifest)}
		a := &Authority{Request: req.Completed(), Host: Host{Config: c.host}}
		err := a.Check()
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(turnstone.HintOf(err), "--grant ") {
			t.Errorf("%s: %v (%s), want %q", name, err, turnstone.HintOf(err), c.want)
		}
		a.Request.Grant = strings.Split(c.grant, ",")
		if err := a.Check(); err != nil {
			t.Errorf("%s, granted: %v", name, err)
		}
	}
}

// TestManifestNarrows checks what a manifest refuses.
func TestManifestNarrows(t *testing.T) {
	for manifest, want := range map[string]string{
		"[sandbox]\nguest = 'noble-amd64'":                          "guest noble-amd64 (up/turnstone.toml): templates are made of Debian 12",
		"[sandbox]\nguest = 'noble-arm64'":                          "guests have the architecture of their host",
		"[sandbox]\nguest = 'bookworm-amd64'":                       "",
		"[session]\nname = 's'\nbranches = ['fix/*']":               "branch: main: up/turnstone.toml allows the branches fix/*",
		"[session]\nname = 's'\nbranch='fix/a'\nbranches=['fix/*']": "",
		"[session]\nbranches = ['fix/*']":                           "", // of no session
	} {
		req := Request{Document: parse(t, ""), Defaults: defaults(t, manifest)}
		err := (&Authority{Request: req.Completed()}).Valid()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", manifest, err, want)
		}
	}
	req := Request{Document: parse(t, ""), Defaults: defaults(t, "[sandbox]\ncpus = 8")}
	a := &Authority{Request: req.Completed(), Host: Host{Limits: config.Limits{CPUs: 2,
		Memory: 1 << 40, Disk: 1 << 40, Timeout: config.Time(time.Hour)}}}
	if _, err := Make(a, "", "/workspace"); err == nil ||
		!strings.Contains(err.Error(), "cpus (up/turnstone.toml): 8 is more than the 2") {
		t.Errorf("beyond the host's limit: %v", err)
	}
}
