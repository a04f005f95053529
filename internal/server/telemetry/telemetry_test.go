package telemetry

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/trail"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open opens a Telemetry whose page is served until the test ends.
func open(t *testing.T, s config.Telemetry) *Telemetry {
	t.Helper()
	tel, err := Open(t.Context(), Options{Settings: s, Roles: []string{"node"}, Node: "one"})
	check(t, err)
	served := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { served <- tel.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		check(t, <-served)
		check(t, tel.Close())
	})
	return tel
}

// page returns the page as text.
func page(t *testing.T, tel *Telemetry) string {
	t.Helper()
	r, err := http.Get("http://" + tel.Address() + Path)
	check(t, err)
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	check(t, err)
	if r.StatusCode != http.StatusOK {
		t.Fatalf("%d: %s", r.StatusCode, text)
	}
	return string(text)
}

// families returns the names and the kinds of the metrics of a page.
func families(t *testing.T, text string) map[string]Kind {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	all, err := parser.TextToMetricFamilies(strings.NewReader(text))
	check(t, err)
	kinds := map[string]Kind{}
	for name, f := range all {
		kinds[name] = Kind(strings.ToLower(f.GetType().String()))
	}
	return kinds
}

// everything is a Measurer with all metrics that are measured.
type everything struct{}

func (everything) Measure(emit func(name string, value float64, labels ...string)) {
	for _, m := range Metrics() {
		if m.measured {
			emit(m.Name, 1, slices.Repeat([]string{"a"}, len(m.Labels))...)
		}
	}
	emit("turnstone_unknown", 1)
}

// fill makes each metric have a value.
func fill(t *testing.T, tel *Telemetry) {
	t.Helper()
	tel.Watch(everything{})
	h, client := caller(t, tel, nil)
	_, _ = client.GetSandbox(t.Context(), connect.NewRequest(&v1.GetSandboxRequest{}))
	r, err := http.Get(h + "/healthz")
	check(t, err)
	_ = r.Body.Close()
	_, _ = tel.Turns("acme", fake{}).Run(t.Context(), executor.Request{}, nil)
	tel.Handshook(t.Context(), time.Now(), nil)
	tel.Wrote(time.Millisecond, time.Millisecond, nil)
	(&sent{t: tel, signal: "traces"}).note(t.Context(), nil)
	tel.meters.add(streams, 1, "controller", "x")
}

// A fake runs turns.
type fake struct {
	report *turnstone.TurnReport
	seen   func(context.Context)
}

func (f fake) Run(ctx context.Context, _ executor.Request, _ executor.Observer) (
	*turnstone.TurnReport, error) {
	if f.seen != nil {
		f.seen(ctx)
	}
	if f.report == nil {
		return &turnstone.TurnReport{Result: turnstone.ResultPassed, Phases: []turnstone.Phase{
			{Name: "restore", Took: turnstone.Millis(time.Millisecond)}, {Name: "of a later version"}}}, nil
	}
	return f.report, nil
}

func (f fake) Times(ctx context.Context, r executor.Request, _ int, o executor.Observer) (
	*turnstone.TurnReport, error) {
	return f.Run(ctx, r, o)
}

// A service answers calls.
type service struct {
	connectv1.UnimplementedSandboxServiceHandler
	seen func(context.Context)
	err  error
}

func (s service) GetSandbox(ctx context.Context, _ *connect.Request[v1.GetSandboxRequest]) (
	*connect.Response[v1.GetSandboxResponse], error) {
	if s.seen != nil {
		s.seen(ctx)
	}
	if s.err != nil {
		return nil, s.err
	}
	return connect.NewResponse(&v1.GetSandboxResponse{Sandbox: &v1.Sandbox{SandboxId: "sb_1"}}), nil
}

// caller returns the address of a gateway with a controller, and a client of it.
func caller(t *testing.T, tel *Telemetry, seen func(context.Context), err ...error) (string,
	connectv1.SandboxServiceClient) {
	t.Helper()
	s := service{seen: seen}
	if len(err) > 0 {
		s.err = err[0]
	}
	mux := http.NewServeMux()
	mux.Handle(connectv1.NewSandboxServiceHandler(s,
		connect.WithInterceptors(tel.Calls(config.Controller))))
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	h := httptest.NewServer(tel.Requests(mux))
	t.Cleanup(h.Close)
	return h.URL, connectv1.NewSandboxServiceClient(h.Client(), h.URL)
}

// TestPage: the page has every metric of the list with its kind, and none that is not in it.
func TestPage(t *testing.T) {
	tel := open(t, config.Telemetry{Listen: "127.0.0.1:0"})
	fill(t, tel)
	text := page(t, tel)
	found := families(t, text)
	for _, m := range Metrics() {
		if found[m.Name] != m.Kind {
			t.Errorf("%s is a %q on the page, want %s", m.Name, found[m.Name], m.Kind)
		}
		delete(found, m.Name)
		for _, l := range m.Labels {
			if !regexp.MustCompile(`(?m)^` + m.Name + `(_bucket)?\{.*\b` + l + `="`).MatchString(text) {
				t.Errorf("%s has no label %s", m.Name, l)
			}
		}
	}
	for name := range found {
		if !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			t.Errorf("%s is not in the list", name)
		}
	}
	for _, name := range []string{"go_goroutines", "process_open_fds"} {
		if found[name] != Gauge {
			t.Errorf("%s is missing", name)
		}
	}
}

// TestLabelsAreBounded: what callers and tenants choose makes no series.
func TestLabelsAreBounded(t *testing.T) {
	tel := open(t, config.Telemetry{Listen: "127.0.0.1:0", Tenants: []string{"acme"}})
	url, _ := caller(t, tel, nil)
	for _, path := range []string{"/marker", "/turnstone.v1.SandboxService/Marker",
		"/turnstone/v1/nodes/marker/channel", "/turnstone/v1/sandboxes/marker/channel",
		"/turnstone/v1/plain/marker", "/grpc.marker/Marker"} {
		r, err := http.Post(url+path, "marker", strings.NewReader("marker"))
		check(t, err)
		_ = r.Body.Close()
	}
	r, err := http.NewRequest("MARKER", url+"/", nil)
	check(t, err)
	answer, err := http.DefaultClient.Do(r)
	check(t, err)
	_ = answer.Body.Close()
	for _, tenant := range []string{"acme", "marker", "marker2"} {
		report := &turnstone.TurnReport{Result: turnstone.ResultFailed, Image: "marker",
			Phases: []turnstone.Phase{{Name: "marker"}}}
		_, err := tel.Turns(tenant, fake{report: report}).Run(t.Context(), executor.Request{}, nil)
		check(t, err)
	}
	tel.Handshook(t.Context(), time.Now(), channel.Fail("x", "marker", "marker", "marker"))
	text := page(t, tel)
	if strings.Contains(strings.ToLower(text), "marker") {
		t.Errorf("the page has the marker:\n%s", text)
	}
	for _, want := range []string{`turnstone_turns_total{result="failed",tenant="acme"} 1`,
		`turnstone_turns_total{result="failed",tenant="other"} 2`,
		`turnstone_turn_phase_seconds_count{phase="other"} 3`,
		`turnstone_handshakes_total{result="refused"} 1`,
		`turnstone_gateway_requests_total{method="channel/node",status="404"} 1`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is missing", want)
		}
	}
}

// TestCalls: calls are counted by their codes, also those whose handler panics.
func TestCalls(t *testing.T) {
	tel := open(t, config.Telemetry{Listen: "127.0.0.1:0"})
	var panics bool
	seen := func(context.Context) {
		if panics {
			panic(http.ErrAbortHandler)
		}
	}
	_, good := caller(t, tel, seen)
	_, err := good.GetSandbox(t.Context(), connect.NewRequest(&v1.GetSandboxRequest{}))
	check(t, err)
	_, bad := caller(t, tel, nil, turnstone.Errorf("x", turnstone.KindNotFound, "x", "x"))
	if _, err := bad.GetSandbox(t.Context(), connect.NewRequest(&v1.GetSandboxRequest{})); err == nil {
		t.Error("there is no error")
	}
	panics = true
	if _, err := good.GetSandbox(t.Context(), connect.NewRequest(&v1.GetSandboxRequest{})); err == nil {
		t.Error("there is no error")
	}
	text := page(t, tel)
	for _, code := range []string{"ok", "not_found", "internal"} {
		if !strings.Contains(text, `turnstone_calls_total{code="`+code+
			`",method="SandboxService/GetSandbox",role="controller"} 1`) {
			t.Errorf("%s is not counted:\n%s", code, text)
		}
	}
	if !strings.Contains(text, `turnstone_call_seconds_count{method="SandboxService/GetSandbox",role="controller"} 3`) {
		t.Error("the time is not measured")
	}
}

// TestRecords: results of writes have a label each.
func TestRecords(t *testing.T) {
	tel := open(t, config.Telemetry{Listen: "127.0.0.1:0"})
	for _, err := range []error{nil, errors.New("x"), turnstone.Errorf("x", turnstone.KindExhausted, "x", "x"),
		turnstone.Errorf("x", turnstone.KindNotFound, "x", "x"),
		turnstone.Errorf("x", turnstone.KindIntegrity, "x", "x")} {
		tel.Wrote(0, time.Second, err)
	}
	text := page(t, tel)
	for _, result := range []string{"ok", "failed", "full", "refused", "damaged"} {
		if !strings.Contains(text, `turnstone_records_writes_total{result="`+result+`"} 1`) {
			t.Errorf("%s is not counted:\n%s", result, text)
		}
	}
}

// TestForeignPage: a page of another site does not read the metrics through a name that leads here.
func TestForeignPage(t *testing.T) {
	tel := open(t, config.Telemetry{Listen: "127.0.0.1:0"})
	for host, want := range map[string]int{"": 200, "localhost:1": 200, "[::1]:5": 200,
		"evil.example": 421, "evil.example:80": 421} {
		r, err := http.NewRequest(http.MethodGet, "http://"+tel.Address()+Path, nil)
		check(t, err)
		r.Host = host
		answer, err := http.DefaultClient.Do(r)
		check(t, err)
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%q: %d", host, answer.StatusCode)
		}
	}
}

// TestOff: without settings there is no page, requests have a trail, and nothing is measured.
func TestOff(t *testing.T) {
	tel := open(t, config.Telemetry{})
	if tel.Address() != "" || tel.meters != nil {
		t.Error("there is something")
	}
	tel.Watch(everything{})
	tel.Wrote(0, 0, nil)
	var there string
	url, client := caller(t, tel, func(ctx context.Context) { there = trail.ID(ctx) })
	answer, err := client.GetSandbox(t.Context(), connect.NewRequest(&v1.GetSandboxRequest{}))
	check(t, err)
	if id := answer.Header().Get(trail.Header); len(id) != 32 || id != there {
		t.Errorf("the caller knows %q, the handler %q", id, there)
	}
	r, err := http.Get(url + "/healthz")
	check(t, err)
	_ = r.Body.Close()
	if _, err := tel.Turns("a", fake{}).Times(t.Context(), executor.Request{}, 2, nil); err != nil {
		t.Error(err)
	}
}

// TestNoPage: a page that cannot be opened is an error with the setting.
func TestNoPage(t *testing.T) {
	tel := open(t, config.Telemetry{Listen: "127.0.0.1:0"})
	_, err := Open(t.Context(), Options{Settings: config.Telemetry{Listen: tel.Address()}})
	if turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(turnstone.HintOf(err), "telemetry.listen") {
		t.Errorf("%v", err)
	}
	_, err = Open(t.Context(), Options{Settings: config.Telemetry{Listen: "0.0.0.0:0"}})
	if turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("%v", err)
	}
}

// TestPhases: each phase that a turn can have has a label of its own.
func TestPhases(t *testing.T) {
	lap := regexp.MustCompile(`\.Lap\("([a-z]+)"\)`)
	n := 0
	for _, dir := range []string{"turn", "turn/paused", "sandbox", "provision"} {
		entries, err := os.ReadDir("../../" + dir)
		check(t, err)
		for _, e := range entries {
			if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
				continue
			}
			text, err := os.ReadFile("../../" + dir + "/" + e.Name())
			check(t, err)
			for _, m := range lap.FindAllStringSubmatch(string(text), -1) {
				if n++; !slices.Contains(phases, m[1]) {
					t.Errorf("%s has the phase %s", e.Name(), m[1])
				}
			}
		}
	}
	if n < 15 {
		t.Errorf("only %d phases are found", n)
	}
}
