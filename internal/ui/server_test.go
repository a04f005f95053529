package ui_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// request sends a request with exactly the given headers, and returns the response.
func request(t *testing.T, at, method, path string, headers []string, body string) (int, http.Header, string) {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(bound))
	host := "Host: " + u.Host
	for _, h := range headers {
		if strings.HasPrefix(h, "Host:") {
			host = ""
		}
	}
	lines := append([]string{method + " " + path + " HTTP/1.1"}, headers...)
	if host != "" {
		lines = append(lines, host)
	}
	lines = append(lines, "Content-Length: "+itoa(len(body)), "Connection: close", "", body)
	_, _ = io.WriteString(conn, strings.Join(lines, "\r\n"))
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(b)
}

func itoa(n int) string {
	b, _ := json.Marshal(n)
	return string(b)
}

// TestAdmission is the table of accepted and rejected requests. The guard has a test of its own in
// package cdp: this one shows that all paths are behind it.
func TestAdmission(t *testing.T) {
	at := serve(t, newPlace())
	u, _ := url.Parse(at)
	token := u.Path // with its slashes
	asJSON := "Content-Type: application/json"
	for _, tt := range []struct {
		name, method, path string
		headers            []string
		body               string
		want               int
	}{
		{"the page", "GET", token, nil, "", 200},
		{"the script", "GET", token + "app.js", nil, "", 200},
		{"the style", "GET", token + "app.css", nil, "", 200},
		{"no token", "GET", "/", nil, "", 401},
		{"no token, the script", "GET", "/app.js", nil, "", 401},
		{"no token, data", "GET", "/api/sessions", nil, "", 401},
		{"no token, an action", "POST", "/api/fork", []string{asJSON}, `{"ref":"research","branch":"x"}`, 401},
		{"wrong token", "GET", "/" + strings.Repeat("0", 64) + "/api/sessions", nil, "", 401},
		{"data", "GET", token + "api/sessions", nil, "", 200},
		{"bearer", "GET", "/api/sessions", []string{"Authorization: Bearer " + strings.Trim(token, "/")}, "", 200},
		{"another name", "GET", token, []string{"Host: evil.example:" + u.Port()}, "", 403},
		{"another origin", "GET", token + "api/sessions", []string{"Origin: http://evil.example"}, "", 403},
		{"no origin", "POST", token + "api/fork", []string{"Origin: null", asJSON}, `{}`, 403},
		{"a page of another site", "GET", token + "api/sessions", []string{"Sec-Fetch-Site: cross-site"}, "", 403},
		{"another server of this machine", "GET", token + "app.js", []string{"Sec-Fetch-Site: same-site"}, "", 403},
		{"a link of another site", "GET", token, []string{"Sec-Fetch-Site: cross-site"}, "", 200},
		{"its own page", "GET", token + "api/sessions", []string{"Sec-Fetch-Site: same-origin",
			"Origin: http://" + u.Host}, "", 200},
		{"preflight", "OPTIONS", token + "api/fork", []string{"Origin: http://" + u.Host}, "", 405},
		{"GET of an action", "GET", token + "api/fork", nil, "", 405},
		{"POST of data", "POST", token + "api/sessions", []string{asJSON}, "{}", 405},
		{"a form", "POST", token + "api/fork", []string{"Content-Type: text/plain"}, `{"ref":"research","branch":"x"}`, 400},
		{"no type", "POST", token + "api/fork", nil, `{"ref":"research","branch":"x"}`, 400},
		{"an unknown field", "POST", token + "api/fork", []string{asJSON}, `{"reff":"research"}`, 400},
		{"two values", "POST", token + "api/fork", []string{asJSON}, `{"ref":"research","branch":"x"}{}`, 400},
		{"a large body", "POST", token + "api/run", []string{asJSON}, `{"document":"` +
			strings.Repeat("x", 3<<20) + `"}`, 413},
		{"a large document", "POST", token + "api/run", []string{asJSON}, `{"document":"` +
			strings.Repeat("x", 1<<20+1) + `"}`, 400},
		{"files of this machine", "POST", token + "api/run", []string{asJSON},
			`{"document":"---\nfiles: [/etc/passwd]\n---\n` + "```bash\\nid\\n```" + `"}`, 400},
		{"no such page", "GET", token + "../etc/passwd", nil, "", 404},
		{"no such session", "GET", token + "api/log?session=none", nil, "", 404},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, header, body := request(t, at, tt.method, tt.path, tt.headers, tt.body)
			if status != tt.want && !(tt.want == 404 && status == 301 || tt.want == 404 && status == 307) {
				t.Errorf("status %d, want %d: %.200s", status, tt.want, body)
			}
			for name, want := range map[string]string{
				"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff",
				"Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
				"Cross-Origin-Resource-Policy": "same-origin"} {
				if !strings.HasPrefix(header.Get(name), want) {
					t.Errorf("%s: %q", name, header.Get(name))
				}
			}
			for name := range header {
				if strings.HasPrefix(name, "Access-Control-") {
					t.Errorf("%s: %s", name, header.Get(name))
				}
			}
			if status == 401 || status == 403 {
				if strings.Contains(body, strings.Trim(token, "/")) || strings.Contains(body, "research") {
					t.Errorf("the refusal says too much: %s", body)
				}
			}
		})
	}
}

// TestReferences rejects what names no turn and no file, before the place is asked.
func TestReferences(t *testing.T) {
	p := newPlace()
	at := serve(t, p)
	u, _ := url.Parse(at)
	for _, ref := range []string{"", "-", "--help", "@3", "a b", "a\nb", "a\x00b", "\xff", strings.Repeat("x", 301)} {
		for _, path := range []string{"api/turn?ref=", "api/receipt?ref=", "api/commands?ref=",
			"api/files?path=/&ref=", "api/file?path=/x&ref=", "api/diff?from=", "api/log?session="} {
			if status, _, body := request(t, at, "GET", u.Path+path+url.QueryEscape(ref), nil, ""); status != 400 {
				t.Errorf("%s%q: status %d: %s", path, ref, status, body)
			}
		}
		in, _ := json.Marshal(map[string]string{"ref": ref, "branch": "x"})
		if ref == "\xff" {
			continue // JSON has no such text
		}
		if status, _, _ := request(t, at, "POST", u.Path+"api/fork",
			[]string{"Content-Type: application/json"}, string(in)); status != 400 {
			t.Errorf("fork of %q: status %d", ref, status)
		}
	}
	for _, path := range []string{"", "x", "../x", "/a\x00b", "/" + strings.Repeat("x", 4095)} {
		for _, name := range []string{"files", "file"} {
			if status, _, _ := request(t, at, "GET", u.Path+"api/"+name+"?ref=research&path="+
				url.QueryEscape(path), nil, ""); status != 400 {
				t.Errorf("%s %q: status %d", name, path, status)
			}
		}
	}
	if asked := p.notes(); asked != "" {
		t.Errorf("the place was asked: %s", asked)
	}
}

// TestBounds asks for more than an answer may have.
func TestBounds(t *testing.T) {
	at := serve(t, newPlace())
	u, _ := url.Parse(at)
	ask := func(path string, out any) {
		t.Helper()
		status, _, body := request(t, at, "GET", u.Path+path, nil, "")
		if status != 200 {
			t.Fatalf("%s: status %d: %.300s", path, status, body)
		}
		if len(body) > 4<<20 {
			t.Errorf("%s: %d bytes", path, len(body))
		}
		if err := json.Unmarshal([]byte(body), out); err != nil {
			t.Fatal(err)
		}
	}
	var list struct {
		Files []any
		More  bool
	}
	if ask("api/files?ref=research&path=/many", &list); len(list.Files) != 2000 || !list.More {
		t.Errorf("%d files, more %v", len(list.Files), list.More)
	}
	var file struct {
		Text         string
		Binary, More bool
	}
	if ask("api/file?ref=research&path=/zeros", &file); !file.Binary || !file.More || file.Text != "" {
		t.Errorf("an endless file: %v %v", file.Binary, file.More)
	}
	if ask("api/file?ref=research&path=/long", &file); file.Binary || !file.More ||
		len(file.Text) > 256<<10 || strings.Trim(file.Text, "é") != "" {
		t.Errorf("a long text: binary %v, more %v, %d bytes", file.Binary, file.More, len(file.Text))
	}
	var diff struct {
		Files []struct{ Patch string }
		More  int
	}
	ask("api/diff?from=research&to=x", &diff)
	if patches := 0; len(diff.Files) != 2000 || diff.More != 1001 {
		t.Errorf("%d files differ, %d more", len(diff.Files), diff.More)
	} else {
		for _, f := range diff.Files {
			patches += len(f.Patch)
		}
		if patches > 1<<20+3*2000 {
			t.Errorf("patches of %d bytes", patches)
		}
	}
}

// TestJobs runs turns until there are too many, cancels one, and ends the server while others run.
func TestJobs(t *testing.T) {
	p := newPlace()
	at := serve(t, p)
	u, _ := url.Parse(at)
	asJSON := []string{"Content-Type: application/json"}
	const run = `{"document":"` + "```bash\\nid\\n```" + `","session":"research","branch":"main"}`
	for i := range 5 {
		status, _, body := request(t, at, "POST", u.Path+"api/run", asJSON, run)
		if want := 200; status != want && (i < 4 || status != 500 || !strings.Contains(body, "exhausted")) ||
			i == 4 && status == want {
			t.Errorf("run %d: status %d: %s", i, status, body)
		}
	}
	var got struct {
		Events []struct {
			Kind, Text string
			Failed     *struct{ Kind string }
		}
		Next int
		Done bool
	}
	follow := func(id string, until string) {
		t.Helper()
		for after := 0; ; after = got.Next {
			_, _, body := request(t, at, "GET", u.Path+"api/job?id="+id+"&after="+itoa(after), nil, "")
			if err := json.Unmarshal([]byte(body), &got); err != nil {
				t.Fatal(err)
			}
			for _, e := range got.Events {
				if e.Kind == until {
					return
				}
			}
			if got.Done {
				t.Fatalf("job %s has no event %s", id, until)
			}
		}
	}
	follow("1", "output")
	if status, _, _ := request(t, at, "POST", u.Path+"api/cancel", asJSON, `{"id":"1"}`); status != 200 {
		t.Errorf("cancel: status %d", status)
	}
	follow("1", "end")
	if !got.Done {
		t.Error("a cancelled job is not done")
	}
	follow("4", "output")
	for path, want := range map[string]int{"api/job?id=9&after=0": 404, "api/job?id=1&after=-1": 400,
		"api/job?id=1&after=x": 400, "api/job?id=1&after=999": 200, "api/jobs": 200} {
		if status, _, body := request(t, at, "GET", u.Path+path, nil, ""); status != want {
			t.Errorf("%s: status %d: %s", path, status, body)
		}
	}
}
