package plan

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
)

// admitted returns the plan of a request on a host with this configuration.
func admitted(t *testing.T, configuration string, req Request) (*Plan, error) {
	t.Helper()
	c, err := config.Parse(configuration)
	if err != nil {
		t.Fatal(err)
	}
	host := Host{Config: c, Limits: c.Limits.For(config.HostOf(t.TempDir()))}
	return Make(&Authority{Request: req, Host: host}, "", "/workspace")
}

// TestLimitsOfStrict: the disk of a machine of the tier strict counts as memory.
func TestLimitsOfStrict(t *testing.T) {
	const small = "[limits]\nmemory = \"2GiB\"\ndisk = \"100GiB\"\n"
	const strict = "deterministic: true\ntier: strict\n"
	for front, says := range map[string]string{
		strict:                                           "1.0 GiB and 4.0 GiB are more than the 2.0 GiB of memory",
		strict + "disk: 50GiB":                           "1.0 GiB and 50.0 GiB are more than the 2.0 GiB of memory",
		strict + "memory: 2GiB\ndisk: 16MiB":             "2.0 GiB and 16.0 MiB are more than",
		strict + "disk: 1GiB":                            "",
		strict + "memory: 512MiB\ndisk: 1536MiB":         "",
		"disk: 50GiB":                                    "",
		"deterministic: true\ntier: seeded\ndisk: 50GiB": "",
	} {
		req := Request{Document: parse(t, "---\n"+front+"\n---\n")}
		p, err := admitted(t, small, req)
		if says == "" {
			if err != nil {
				t.Errorf("%q: %v", front, err)
			} else {
				p.Close()
			}
			continue
		}
		if turnstone.KindOf(err) != turnstone.KindInvalid ||
			!strings.Contains(err.Error(), says) ||
			!strings.Contains(turnstone.HintOf(err), "disk:") {
			t.Errorf("%q: %v (%s), want %q", front, err, turnstone.HintOf(err), says)
		}
	}
}

func TestLimits(t *testing.T) {
	const small = "[limits]\ncpus = 1\nmemory = \"512MiB\"\ndisk = \"1GiB\"\ntimeout = \"10m\"\n"
	for name, c := range map[string]struct {
		front, config string
		req           Request
		says          string
	}{
		"more disk than the host": {front: "disk: 16TiB", says: "disk: 16.0 TiB is more than the "},
		"more disk": {front: "disk: 2GiB", config: small,
			says: "disk: 2.0 GiB is more than the 1.0 GiB"},
		"more memory": {front: "memory: 600MiB", config: small,
			says: "memory: 600.0 MiB is more than the 512.0 MiB"},
		"more cpus": {front: "cpus: 3", config: small,
			says: "cpus: 3 is more than the 1"},
		"more time": {front: "timeout: 11m", config: small,
			says: "timeout: 11m0s is more than the 10m0s"},
		"the default, asked for": {front: "timeout: 1h", config: small,
			says: "timeout: 1h0m0s is more than the 10m0s"},
		"the default, by a flag": {req: Request{Timeout: defaultTimeout}, config: small,
			says: "timeout: 1h0m0s is more than the 10m0s"},
		"many cpus": {front: fmt.Sprintf("cpus: %d", 4*max(2, runtime.NumCPU())+1),
			says: fmt.Sprintf(" is more than the %d that this host gives a sandbox",
				max(2, runtime.NumCPU()))},
		"some cpus": {front: fmt.Sprintf("cpus: %d", 4*max(2, runtime.NumCPU())),
			says: fmt.Sprintf(" is more than the %d that this host gives a sandbox",
				max(2, runtime.NumCPU()))},
		"more memory than there is": {front: "memory: 1000GiB",
			says: "memory: 1000.0 GiB is more than the "},
		"a flag does not help": {req: Request{Disk: 2 << 30}, config: small,
			says: "disk: 2.0 GiB is more"},
		"a long time": {req: Request{Timeout: 25 * time.Hour},
			says: "timeout: 25h0m0s is more than the 24h0m0s"},
		"within": {front: "disk: 1GiB\nmemory: 512MiB\ncpus: 1\ntimeout: 10m",
			config: small},
		"nothing":        {config: small},
		"nothing at all": {},
	} {
		c.req.Document = parse(t, "---\n"+c.front+"\n---\n")
		p, err := admitted(t, c.config, c.req)
		if c.says != "" {
			if turnstone.KindOf(err) != turnstone.KindInvalid ||
				!strings.Contains(err.Error(), c.says) ||
				!strings.Contains(turnstone.HintOf(err), "[limits]") {
				t.Errorf("%s: %v (%s), want %q", name, err, turnstone.HintOf(err), c.says)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if c.config == small && (p.Shape != turnstone.Shape{CPUs: 1,
			Memory: 512 << 20, Disk: 1 << 30, Network: true} || p.Timeout != 10*time.Minute) {
			t.Errorf("%s: %+v, %s", name, p.Shape, p.Timeout)
		}
	}
}
