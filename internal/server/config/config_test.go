package config

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

var update = flag.Bool("update", false, "write the tables of docs/server.md")

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// problems returns what is wrong with a file and variables.
func problems(t *testing.T, text string, environ ...string) Problems {
	t.Helper()
	c, err := Parse("/state", text, environ)
	if err == nil {
		return nil
	}
	if c != nil || turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("%v comes with %v", err, c)
	}
	var all Problems
	if !errors.As(err, &all) || len(all) == 0 {
		t.Fatalf("%v has no problems", err)
	}
	return all
}

func TestDefaults(t *testing.T) {
	c, err := Parse("/state", "", nil)
	check(t, err)
	if c.Name != "turnstone" || !c.Has(Gateway) || !c.Has(Controller) || !c.Has(Node) ||
		c.Plaintext != PlaintextLoopback || c.Listen.Address != "127.0.0.1:7420" ||
		c.Listen.Socket != "/state/server.sock" || c.Records.Database != "/state/server.db" ||
		c.Tokens.Revocations != time.Minute || c.Limits.Request != 1<<20 || c.Issuers != nil {
		t.Errorf("the defaults are %+v", c)
	}
}

const whole = `
name = "https://turn.example.org"
roles = ["gateway", "controller"]
plaintext = "off"

[listen]
address = "[::]:443"
socket = "off"
proxies = ["10.0.0.0/8", "fd00::/8"]

[tls]
certificate = "/etc/turn/tls.crt"
key = "tls.key"

[peers]
listen = "unix:/run/turn/peers.sock"

[tokens]
longest = "24h"
leeway = "0s"
revocations = "30s"

[limits]
connections = 20
request = "2MiB"
rate = 5
burst = 5

[log]
level = "debug"
format = "json"

[[issuers]]
issuer = "https://token.actions.githubusercontent.com"
tenant = "acme"
grant_scopes = ["turns:run"]
grant_sessions = ["ci-*"]
require = { repository = "acme/*" }
outage = "0s"

[[tenants]]
name = "acme"
sandboxes = 20
memory = "10GiB"

[[issuers]]
issuer = "https://idp.example.org"
tenants = ["*"]
scopes = ["turns:*"]
algorithms = ["ES256"]
`

func TestWhole(t *testing.T) {
	c, err := Parse("/state", whole, []string{"PATH=/bin", "TURN_HOME=/x",
		"TURN_SERVER_NAME=other", "TURN_SERVER_LIMITS_CONNECTIONS=30",
		"TURN_SERVER_LISTEN_PROXIES=192.0.2.0/24, 10.0.0.0/8", "TURN_SERVER_LIMITS_IDLE=90s"})
	check(t, err)
	if c.Name != "other" || c.Limits.Connections != 30 || c.Limits.Idle != 90*time.Second ||
		!slices.Equal(c.Listen.Proxies, []string{"192.0.2.0/24", "10.0.0.0/8"}) {
		t.Errorf("variables do not win: %+v", c)
	}
	if c.Listen.Socket != "" || c.TLS.Key != "/state/tls.key" || c.Has(Node) ||
		c.Tokens.Leeway != 0 || c.Limits.Request != 2<<20 || len(c.Issuers) != 2 {
		t.Errorf("the settings are %+v", c)
	}
	one, two := c.Issuers[0].OIDC(), c.Issuers[1].OIDC()
	if one.Require["repository"] != "acme/*" || one.Outage >= 0 || one.Fresh != 15*time.Minute ||
		len(one.Algorithms) != 3 || len(two.Algorithms) != 1 || two.Outage != 24*time.Hour {
		t.Errorf("the issuers are %+v and %+v", one, two)
	}
}

// TestIssuersOfVariable: a variable can have tables, too.
func TestIssuersOfVariable(t *testing.T) {
	c, err := Parse("/state", whole, []string{
		`TURN_SERVER_ISSUERS=[{issuer = "https://a.example", tenant = "a"}]`})
	check(t, err)
	if len(c.Issuers) != 1 || c.Issuers[0].Tenant != "a" || c.Issuers[0].Longest != 24*time.Hour {
		t.Errorf("the issuers are %+v", c.Issuers)
	}
	for _, bad := range []string{"x", "1", "[1]", `[{issuer = "https://a.example"}]`,
		`[{issuers = "x"}]`, "[]\nname = \"x\""} {
		p := problems(t, "", "TURN_SERVER_ISSUERS="+bad)
		if p[0].Source != "TURN_SERVER_ISSUERS" || p[0].Line != 0 {
			t.Errorf("%q: %v", bad, p)
		}
	}
}

// TestProblems: each error names its line and key, and says what is wrong.
func TestProblems(t *testing.T) {
	for _, c := range []struct {
		text string
		line int
		key  string
		want string
	}{
		{"nam = \"x\"", 1, "nam", "is not a setting"},
		{"\n\n[limits]\nidel = \"5m\"", 4, "limits.idel", "is not a setting"},
		{"[limit]\nidle = \"5m\"", 1, "limit", "is not a setting"},
		{"[limits.idle]\nx = 1", 1, "limits.idle", "is not a duration"},
		{"limits = 5", 1, "limits", "is not a table"},
		{"name = 5", 1, "name", "is not a text"},
		{"name = \"a\"\nname = \"b\"", 2, "name", "is not TOML"},
		{"name = \"a", 1, "name", "is not TOML"},
		{"x y", 1, "", "is not TOML"},
		{"name = \"a b\"", 1, "name", "without spaces"},
		{"# one\nroles = [\n  # two\n  \"gateway\",\n  \"gate\",\n]", 2, "roles", "is not one of"},
		{"# one\n\n# two\nroles = [\n\n\n]", 4, "roles", "is empty"},
		{"roles = []", 1, "roles", "is empty"},
		{"roles = [\"node\", \"node\"]", 1, "roles", "twice"},
		{"roles = \"node\"", 1, "roles", "is not a list"},
		{"roles = [1]", 1, "roles", "is not a list"},
		{"plaintext = \"yes\"", 1, "plaintext", "is not one of"},
		{"[limits]\nconnections = 0", 2, "limits.connections", "is not between 1 and 1000000"},
		{"[limits]\nconnections = \"1\"", 2, "limits.connections", "is not a whole number"},
		{"[limits]\nconnections = 1.5", 2, "limits.connections", "is not a whole number"},
		{"[limits]\nidle = 5", 2, "limits.idle", "is not a duration"},
		{"[limits]\nidle = \"5\"", 2, "limits.idle", "is not a duration"},
		{"[limits]\nidle = \"25h\"", 2, "limits.idle", "is not between 1s and 24h"},
		{"[limits]\nrequest = 5", 2, "limits.request", "is not a size"},
		{"[limits]\nrequest = \"1GiB\"", 2, "limits.request", "is not between 1KiB and 64MiB"},
		{"[limits]\nrate = 200", 2, "limits.rate", "less than rate"},
		{"[tokens]\nleeway = \"3m\"", 2, "tokens.leeway", "is not between 0s and 2m"},
		{"[listen]\naddress = \"0.0.0.0:80\"", 2, "listen.address", "without TLS"},
		{"[listen]\naddress = \":80\"", 2, "listen.address", "without TLS"},
		{"[listen]\naddress = \"x\"", 2, "listen.address", "is not HOST:PORT"},
		{"[listen]\naddress = \"x:99999\"", 2, "listen.address", "does not have a port"},
		{"[listen]\naddress = \"off\"\nsocket = \"off\"", 2, "listen.address", "and so is"},
		{"[listen]\nproxies = [\"10.0.0.1\"]", 2, "listen.proxies", "is not a network"},
		{"[listen]\norigins = [\"https://app.example.org/\"]", 2, "listen.origins", "is not an origin"},
		{"[listen]\norigins = [\"*\"]", 2, "listen.origins", "is not an origin"},
		{"[tls]\nkey = \"/k\"", 2, "tls.key", "needs tls.certificate"},
		{"[tls]\ncertificate = \"/c\"", 2, "tls.certificate", "needs tls.key"},
		{"roles = [\"node\"]\n[peers]\nlisten = \"unix:/p\"", 0, "peers.controller", "is missing"},
		{"roles = [\"controller\"]", 0, "peers.listen", "is missing"},
		{"[peers]\ncontroller = \"unix:/p\"", 2, "peers.controller", "is a controller"},
		{"roles = [\"node\"]\n[peers]\nlisten = \"0.0.0.0:7\"\ncontroller = \"unix:/c\"", 3,
			"peers.listen", "no address that other"},
		{"roles = [\"node\"]\n[peers]\nlisten = \"unix:/p\"\ncontroller = [\"unix:/c\", \"c\"]", 4,
			"peers.controller", "is not HOST:PORT"},
		{"roles = [\"node\"]\n[peers]\nlisten = \"unix:/p\"\ncontroller = [\"unix:/c\", \"c:1\"]", 4,
			"peers.controller", "needs mutual TLS"},
		{"[peers]\ncontroller = 5", 2, "peers.controller", "is not a list"},
		{"[records]\ndatabase = \"postgres://\"", 2, "records.database", "is not a URL"},
		{"[records]\ndatabase = \"postgres://u:p@h/d\"", 2, "records.database", "has a password"},
		{"[records]\ndatabase = \"postgres://u@h/d?password=p\"", 2, "records.database",
			"has a password"},
		{"[records]\nlease = \"1ms\"", 2, "records.lease", "is not between"},
		{"[node]\nname = \"-\"", 2, "node.name", "letters"},
		{"[node]\nexpose = \"localhost\"", 2, "node.expose", "is not an IP address"},
		{"[peers]\nlisten = \"10.0.0.1:7\"", 2, "peers.listen", "needs mutual TLS"},
		{"[peers]\nlisten = \"unix:p\"", 2, "peers.listen", "absolute path"},
		{"[telemetry]\nlisten = \"0.0.0.0:9\"", 2, "telemetry.listen", "needs no token"},
		{"[telemetry]\nendpoint = \"127.0.0.1:4318\"", 2, "telemetry.endpoint", "is not a URL"},
		{"[telemetry]\nendpoint = \"http://u:p@h\"", 2, "telemetry.endpoint", "is not a URL"},
		{"[telemetry]\nheaders = \"/h\"", 2, "telemetry.headers", "needs telemetry.endpoint"},
		{"[telemetry]\nendpoint = \"http://h\"\nheaders = \"/h\"", 2, "telemetry.endpoint",
			"is not encrypted"},
		{"[telemetry]\nsample = 101", 2, "telemetry.sample", "is not between 0 and 100"},
		{"[telemetry]\ntenants = [\"a b\"]", 2, "telemetry.tenants", "letters"},
		{"issuers = 5", 1, "issuers", "is not a list of tables"},
		{"[issuers]\nissuer = \"x\"", 1, "issuers", "is not a list of tables"},
		{"[[issuers]]\nissuer = \"https://a.example\"\ntenant = \"a\"\n\n[[issuers]]\nissuer = 5", 6,
			"issuers.2.issuer", "is not a text"},
		{"[[issuers]]\nisuer = \"https://a.example\"", 2, "issuers.1.isuer", "is not a setting"},
		{"\n[[issuers]]\nissuer = \"http://a.example\"\ntenant = \"a\"", 2, "issuers.1", "https"},
		{"[[issuers]]\nissuer = \"https://a.example\"", 1, "issuers.1", "has no tenant"},
		{"[[issuers]]\nissuer = \"https://a.example\"\ntenant = \"a\"\nalgorithms = [\"HS256\"]", 1,
			"issuers.1", "HS256"},
		{"[[tenants]]\ncpus = 2", 1, "tenants.1", "has no name"},
		{"[[tenants]]\nname = \"a b\"", 2, "tenants.1.name", "letters"},
		{"[[tenants]]\nname = \"a\"\nturn = 5", 3, "tenants.1.turn", "is not a setting"},
		{"[[tenants]]\nname = \"a\"\n[[tenants]]\nname = \"a\"", 4, "tenants.2.name", "has a table already"},
		{"[[tenants]]\nname = \"a\"\nstored = 5", 3, "tenants.1.stored", "is not a size"},
		{"tenants = 5", 1, "tenants", "is not a list of tables"},
		{"[[issuers]]\nrequire = 5", 2, "issuers.1.require", "is not a table"},
		{"[[issuers]]\nrequire = {a = 5}", 2, "issuers.1.require", "is not a text"},
	} {
		p := problems(t, c.text)
		if p == nil {
			t.Errorf("%q is accepted", c.text)
			continue
		}
		if p[0].Line != c.line || p[0].Key != c.key && c.key != "" ||
			!strings.Contains(p[0].Error(), c.want) {
			t.Errorf("%q:\n%v\nwant line %d, %s, %s", c.text, p, c.line, c.key, c.want)
		}
	}
}

// TestNewcomers: the first mistakes have whole sentences, and hints.
func TestNewcomers(t *testing.T) {
	for text, want := range map[string][2]string{
		"[limts]\nidle = \"5m\"":  {"limts: is not a setting", "the nearest one is limits"},
		"name = turnstone":        {"name: is not TOML: expected value", "texts in quotes"},
		"[listen\naddress = 1":    {"server.toml:2: is not TOML", "texts in quotes"},
		"roles = [\"gateway\"]":   {"peers.controller: is missing", "peers.listen"},
		"[tls]\nkey = \"/k\"":     {"tls.key: needs tls.certificate", "set both"},
		"[listen]\naddress=\"x\"": {"such as 127.0.0.1:7420", ""},
	} {
		p := problems(t, text)
		if len(p) == 0 || !strings.Contains(p[0].Error(), want[0]) ||
			!strings.Contains(p[0].Hint, want[1]) || strings.HasSuffix(p[0].Err.Error(), ":") {
			t.Errorf("%q: %v", text, p)
		}
	}
}

// TestAllProblems: one run reports all of them, in the order of the file, with hints.
func TestAllProblems(t *testing.T) {
	p := problems(t, "[limits]\nidle = 5\nidel = 5\n[log]\nlevel = \"x\"\n", "TURN_SERVER_NAM=x",
		"TURN_SERVER_LIMITS_RATE=fast")
	if again := problems(t, "limits = 5"); len(again) != 1 {
		t.Errorf("one problem is reported as %v", again)
	}
	var keys []string
	for _, one := range p {
		keys = append(keys, one.Source+" "+one.Key)
	}
	want := []string{"TURN_SERVER_NAM ", "TURN_SERVER_LIMITS_RATE limits.rate",
		"server.toml limits.idle", "server.toml limits.idel", "server.toml log.level"}
	if !slices.Equal(keys, want) {
		t.Errorf("the problems are %q", keys)
	}
	for _, hint := range []string{"the nearest one is limits.idle", "use debug, info, warn, error",
		"the nearest one is TURN_SERVER_NAME"} {
		if !strings.Contains(p.Error(), hint) {
			t.Errorf("%q is not in\n%v", hint, p)
		}
	}
}

// TestSecretInPlaceOfFile: a secret that was written into the configuration is refused, and its
// error does not have it.
func TestSecretInPlaceOfFile(t *testing.T) {
	const secret = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEI\n-----END PRIVATE KEY-----"
	for _, all := range []Problems{
		problems(t, "[tls]\ncertificate = \"/c\"\nkey = \"\"\"\n"+secret+"\"\"\""),
		problems(t, "", "TURN_SERVER_TLS_KEY="+secret),
		problems(t, "[tls]\nkey = "+secret),
		problems(t, "[tls]\nkey = \""+secret+"\""),
		problems(t, "[tls]\nkey = 'x' MC4CAQAwBQYDK2VwBCIEI"),
		problems(t, "[tls]\nkey = MC4CAQAwBQYDK2VwBCIEI"),
		problems(t, "[tls]\nkey = tMCCAQABQYDKVwBCIEI"),
		problems(t, "[tls]\nkey =\nMC4CAQAwBQYDK2VwBCIEI"),
		problems(t, "[tls]\nMC4CAQAwBQYDK2VwBCIEI\n"),
		problems(t, "[tls]\nMC4CAQAwBQYDK2VwBCIEI = 'x' y"),
		problems(t, "[tls]\nkey = 12MC4CAQAwBQYDK2VwBCIEI"),
		problems(t, "[tls]\ncertificate = \"/c\"\nkey = \"-----BEGIN MC4CAQ\""),
		problems(t, "[records]\ndatabase = \"postgres://u:MC4CAQ@h/d\""),
		problems(t, "[records]\ndatabase = \"postgres://u@h/d?sslpassword=MC4CAQ\""),
		problems(t, "[records]\ndatabase = \"postgres://u:MC4CAQ@%zz/d\""),
		problems(t, "", "TURN_SERVER_RECORDS_DATABASE=postgresql://u:MC4CAQ@h/d"),
	} {
		if all == nil {
			t.Error("a secret is accepted as a path")
		}
		if text := all.Error(); strings.Contains(text, "MC4CAQ") ||
			strings.Contains(text, "MCCAQ") {
			t.Errorf("the secret is in %s", text)
		}
	}
}

func TestVariables(t *testing.T) {
	for _, s := range configSettings() {
		// Every setting has a variable, and a variable that is set is not ignored.
		_, err := Parse("/state", "", []string{s.variable() + "=\x00"})
		if err == nil || !strings.Contains(err.Error(), s.key) &&
			!strings.Contains(err.Error(), s.variable()) {
			t.Errorf("%s: %v", s.variable(), err)
		}
	}
}

// TestCheckFiles: --check-config says which files cannot be used, and nothing of what they hold.
func TestCheckFiles(t *testing.T) {
	dir := t.TempDir()
	certificate, key := pair(t)
	_, other := pair(t)
	write := func(name string, b []byte, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		check(t, os.WriteFile(path, b, 0o600))
		check(t, os.Chmod(path, mode))
		return path
	}
	crt, good := write("crt", certificate, 0o644), write("key", key, 0o640)
	c := &Config{TLS: TLS{crt, good}, Peers: Peers{Authority: crt, Certificate: crt, Key: good}}
	check(t, c.CheckFiles())
	check(t, (&Config{}).CheckFiles())
	for name, c := range map[string]*Config{
		"tls.key: has mode 0644":              {TLS: TLS{crt, write("open", key, 0o644)}},
		"tls.certificate: does not fit":       {TLS: TLS{crt, write("other", other, 0o600)}},
		"tls.certificate: does not fit to":    {TLS: TLS{write("no", key, 0o600), good}},
		"tls.key: stat":                       {TLS: TLS{crt, filepath.Join(dir, "missing")}},
		"tls.key: is not a regular file":      {TLS: TLS{crt, dir}},
		"peers.authority: has no certificate": {Peers: Peers{Authority: good}},
		"peers.authority: open":               {Peers: Peers{Authority: filepath.Join(dir, "none")}},
		"telemetry.headers: has mode 0644":    {Telemetry: Telemetry{Headers: write("h", nil, 0o644)}},
		"telemetry.headers: line 2 is not": {Telemetry: Telemetry{Headers: write("h2",
			append([]byte("A: b\n"), key...), 0o600)}},
		"peers.certificate: does not fit": {Peers: Peers{Certificate: crt, Key: crt}},
	} {
		check(t, os.Chmod(crt, 0o640))
		err := c.CheckFiles()
		if err == nil || !strings.Contains(err.Error(), name) ||
			turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for line := range strings.Lines(string(key) + string(other)) {
			if len(line) > 40 && strings.Contains(err.Error(), line[:40]) {
				t.Errorf("%s: the error holds the key", name)
			}
		}
	}
}

// pair returns a certificate and its key as PEM.
func pair(t *testing.T) (certificate, key []byte) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	check(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	check(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	check(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	_, err := Load(dir, "", nil)
	check(t, err)
	if _, err := Load(dir, filepath.Join(dir, "other.toml"), nil); turnstone.KindOf(err) !=
		turnstone.KindInvalid {
		t.Errorf("a missing file that was named: %v", err)
	}
	path := filepath.Join(dir, File)
	for _, c := range []struct {
		text string
		mode os.FileMode
		want string
	}{
		{"name = \"x\"", 0o644, ""},
		{"name = \"x\"", 0o664, "other users can write it"},
		{"name = \"x\"", 0o602, "other users can write it"},
		{strings.Repeat("#", maxFile+1), 0o600, "is larger than"},
		{"nam = 1", 0o600, path + ":1: nam: is not a setting"},
	} {
		check(t, os.WriteFile(path, []byte(c.text), 0o600))
		check(t, os.Chmod(path, c.mode))
		_, err := Load(dir, "", nil)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.20q, %v: %v", c.text, c.mode, err)
		}
	}
	check(t, os.Remove(path))
	check(t, os.Mkdir(path, 0o700))
	if _, err := Load(dir, "", nil); err == nil {
		t.Error("a folder is a file")
	}
}

// TestEveryBound sets each number, duration and size to its bounds.
func TestEveryBound(t *testing.T) {
	for _, all := range [][]setting{configSettings(), issuerSettings(), tenantSettings(), poolSettings()} {
		for _, s := range all {
			bounded := s.form() == "number" || s.form() == "duration" || s.form() == "size"
			if (s.field.Tag.Get("min") != "") != bounded {
				t.Errorf("%s has bounds: %v", s.key, !bounded)
			}
			for _, text := range []string{s.field.Tag.Get("min"), s.field.Tag.Get("max")} {
				if !bounded {
					continue
				}
				v, err := s.fromText(text)
				check(t, err)
				if err := s.set(reflect.New(s.field.Type).Elem(), v); err != nil {
					t.Errorf("%s = %s %v", s.key, text, err)
				}
			}
		}
	}
}

// TestTable compares docs/server.md with the settings. -update writes the page's tables.
func TestTable(t *testing.T) {
	keys := map[string]bool{}
	for _, s := range configSettings() {
		keys[s.key] = true
	}
	for _, list := range configSettings() {
		for _, s := range list.tables() {
			keys[list.key+"."+s.key] = true
		}
	}
	for key := range keys {
		if help[key] == "" {
			t.Errorf("%s has no description", key)
		}
	}
	for key := range help {
		if !keys[key] {
			t.Errorf("help describes %s, which is no setting", key)
		}
	}
	const path, begin, end = "../../../docs/server.md", "<!-- settings -->\n", "<!-- end -->"
	b, err := os.ReadFile(path)
	check(t, err)
	head, rest, ok := strings.Cut(string(b), begin)
	table, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no marks %q and %q", path, begin, end)
	}
	if *update {
		check(t, os.WriteFile(path, []byte(head+begin+"\n"+Table()+"\n"+end+tail), 0o644))
	} else if strings.TrimSpace(table) != strings.TrimSpace(Table()) {
		t.Error("run: go test ./internal/server/config -run TestTable -update")
	}
}
