package proxy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/network/recording"
	"turnstone.dev/turnstone/internal/secret"
)

// rerun encodes a recording in its stored form, and returns a Player of it.
func rerun(t *testing.T, rec *recording.Recorder, path string,
	secrets *secret.Set) *recording.Player {
	t.Helper()
	index, err := json.Marshal(rec.Finish())
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	r, err := recording.Decode(index, st.Size())
	if err != nil {
		t.Fatal(err)
	}
	return recording.NewPlayer(r, f, secrets)
}

func recordInto(t *testing.T, opts recording.Options) (*recording.Recorder, string) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "bytes"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	opts.Out = f
	return recording.NewRecorder(opts), f.Name()
}

// TestRecordAndReplay runs the same requests twice, the second time without the server.
func TestRecordAndReplay(t *testing.T) {
	s, roots := testServer(t, true)
	plain, _ := testServer(t, false)
	ca := testCA(t)
	secrets, err := secret.New([]string{"KEY=key-of-the-guest"})
	if err != nil {
		t.Fatal(err)
	}
	rec, path := recordInto(t, recording.Options{Secrets: secrets})
	sites := []site{at("api.example.com", "192.0.2.1:443", s), at("web.example.com", "192.0.2.2:80",
		plain), at("down.example.com", "192.0.2.4:80", nil)}
	p := newProxied(t, Options{CA: ca, Open: true, Roots: roots, Recorder: rec, Secrets: secrets},
		sites...)
	session := func(p *proxied, ca *CA) string {
		c := p.client(ca)
		c.CheckRedirect = func(*http.Request,
			[]*http.Request) error {
			return http.ErrUseLastResponse
		}
		var all strings.Builder
		for _, url := range []string{"https://api.example.com:443/x?key=key-of-the-guest",
			"https://api.example.com:443/x?key=key-of-the-guest",
			"http://web.example.com:80/stream", "http://web.example.com:80/moved",
			"http://web.example.com:80/broken", "http://down.example.com:80/"} {
			status, body := p.get(c, url)
			if status == 0 {
				body = ""
			}
			fmt.Fprintln(&all, url, status, body)
		}
		res, err := c.Post("http://web.example.com:80/post", "text/plain",
			strings.NewReader("body with key-of-the-guest"))
		if err != nil {
			p.t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		fmt.Fprintln(&all, string(b), res.Header.Get("Date") != "", res.Header.Get("Content-Type"))
		return all.String()
	}
	first := session(p, ca)
	if !strings.Contains(first, "1 GET /x") || !strings.Contains(first, "2 GET /x") ||
		!strings.Contains(first, "half then unexpected EOF") {
		t.Fatalf("first: %s", first)
	}
	player := rerun(t, rec, path, secrets)
	kept, _ := os.ReadFile(path)
	index, _ := json.Marshal(player.Rec)
	if bytes.Contains(append(kept, index...), []byte("key-of-the-guest")) {
		t.Error("the recording holds a secret")
	}
	again := testCA(t)
	q := newProxied(t, Options{CA: again, Open: true, Player: player, Secrets: secrets}, sites...)
	second := session(q, again)
	if strings.ReplaceAll(second, "[secret KEY]", "key-of-the-guest") != first {
		t.Errorf("replayed:\n%s\nwas:\n%s", second, first)
	}
	if q.dials != 0 {
		t.Errorf("%d connections were opened", q.dials)
	}
	if r := q.refusals(); r != "" {
		t.Errorf("refused: %s", r)
	}
	if status, body := q.get(q.client(again),
		"https://api.example.com:443/x?key=key-of-the-guest"); status != http.StatusBadGateway ||
		!strings.Contains(body, recording.NotRecorded) {
		t.Errorf("a third time: %d %s", status, body)
	}
	if r := q.refusals(); !strings.Contains(r,
		"GET https://api.example.com:443/x?key=[secret KEY]: not in the recording") {
		t.Errorf("told: %s", r)
	}
}

// TestReplayStream replays a protocol other than HTTP, and a protocol in which the server begins.
func TestReplayStream(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprint(c, "220 ready\n")
				in := bufio.NewReader(c)
				for {
					line, err := in.ReadString('\n')
					if err != nil || line == "quit\n" {
						fmt.Fprint(c, "bye\n")
						return
					}
					fmt.Fprint(c, "ok ", line)
				}
			}()
		}
	}()
	mail := site{name: "mail.example.com", to: netip.MustParseAddrPort("192.0.2.1:25"),
		real: l.Addr().String()}
	secrets, _ := secret.New([]string{"KEY=key-of-the-guest"})
	talk := func(p *proxied, lines ...string) string {
		c := p.connect(mail)
		in := bufio.NewReader(c)
		var all strings.Builder
		line, _ := in.ReadString('\n')
		all.WriteString(line)
		for _, l := range lines {
			fmt.Fprintln(c, l)
			line, _ := in.ReadString('\n')
			all.WriteString(line)
		}
		rest, _ := io.ReadAll(in)
		return all.String() + string(rest)
	}
	for name, set := range map[string]*secret.Set{"plain": nil, "with secrets": secrets} {
		t.Run(name, func(t *testing.T) {
			rec, path := recordInto(t, recording.Options{Secrets: set})
			p := newProxied(t, Options{Recorder: rec, Secrets: set}, mail)
			first := talk(p, "helo", "auth key-of-the-guest", "quit")
			if first != "220 ready\nok helo\nok auth key-of-the-guest\nbye\n" {
				t.Fatalf("first: %q", first)
			}
			q := newProxied(t, Options{Player: rerun(t, rec, path, set), Secrets: set}, mail)
			if second := talk(q, "helo", "auth key-of-the-guest", "quit"); second != set.Mask(
				first) {
				t.Errorf("replayed: %q", second)
			}
			if r := q.refusals(); r != "" || q.dials != 0 {
				t.Errorf("refused: %s; %d connections opened", r, q.dials)
			}
			if talk(q); !strings.Contains(q.refusals(), recording.NotRecorded) {
				t.Error("a second connection was served")
			}
			q = newProxied(t, Options{Player: rerun(t, rec, path, set), Secrets: set}, mail)
			if got := talk(q, "helo", "something else"); !strings.HasPrefix(got,
				"220 ready\nok helo\n") || strings.Contains(got, "auth") {
				t.Errorf("something else: %q", got)
			}
			if r := q.refusals(); !strings.Contains(r, recording.ErrSentOther.Error()) {
				t.Errorf("told: %s", r)
			}
		})
	}
}

// TestEncryptedIsEvidenceOnly records encrypted TLS, and checks the reason why it cannot be
// replayed.
func TestEncryptedIsEvidenceOnly(t *testing.T) {
	s, roots := testServer(t, true)
	rec, path := recordInto(t, recording.Options{})
	api := at("api.example.com", "192.0.2.1:443", s)
	p := newProxied(t, Options{Recorder: rec}, api)
	c := p.client(nil)
	c.Transport.(*http.Transport).TLSClientConfig.RootCAs = roots
	if status, body := p.get(c, "https://api.example.com:443/"); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	c.CloseIdleConnections()
	player := rerun(t, rec, path, nil)
	if player.Rec.Encrypted() != 1 || player.Opened() {
		t.Errorf("recorded: %s", player.Rec.Facts())
	}
	q := newProxied(t, Options{Player: player}, api)
	if status, _ := q.get(q.client(nil), "https://api.example.com:443/"); status != 0 {
		t.Errorf("replayed: %d", status)
	}
	if r := q.refusals(); !strings.Contains(r, "intercept: true") {
		t.Errorf("told: %s", r)
	}
}

// TestRecordingIsBounded checks that connections continue after the recording has ended.
func TestRecordingIsBounded(t *testing.T) {
	plain, _ := testServer(t, false)
	rec, _ := recordInto(t, recording.Options{Limit: 100})
	web := at("web.example.com", "192.0.2.2:80", plain)
	p := newProxied(t, Options{Recorder: rec}, web)
	c := p.client(nil)
	for range 4 {
		if status, body := p.get(c, "http://web.example.com:80/"); status != 200 ||
			!strings.Contains(body, "GET /") {
			t.Errorf("%d %s", status, body)
		}
	}
	if r := rec.Finish(); r.Cut != "it has more than 100 B" &&
		!strings.HasPrefix(r.Cut, "it has more than") || r.Bytes > 100 {
		t.Errorf("cut: %q, %d bytes", r.Cut, r.Bytes)
	}
}
