package firecracker

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{"", "{}", `{"fault_message":"no"}`, `{"fault_message":1}`,
		`{"state":"Running","vmm_version":"1"}`, `[`, "\x00", `{"state":{}}`} {
		f.Add(200, []byte(seed))
		f.Add(400, []byte(seed))
		f.Add(204, []byte(seed))
	}
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		var info instanceInfo
		err := decodeAnswer(status, body, &info)
		if err == nil && status != 200 {
			t.Errorf("an answer of %d has content", status)
		}
		var refused *apiError
		if good := status >= 200 && status <= 299; errors.As(err, &refused) == good {
			t.Errorf("%d: %v", status, err)
		}
		if refused != nil && (len(refused.Message) > maxMessage+3 ||
			strings.ContainsFunc(refused.Message,
				func(r rune) bool { return r < 0x20 || r > 0x7e })) {
			t.Errorf("a message for nobody's terminal: %q", refused.Message)
		}
		if (decodeAnswer(status, body, nil) == nil) != (status >= 200 && status <= 299) {
			t.Errorf("%d without content", status)
		}
	})
}

func FuzzConnected(f *testing.F) {
	for _, seed := range []string{"OK 1073741824\n", "OK 1\nrest", "OK\n", "OK -1\n", "", "\n",
		"OK 99999999999999999999\n", strings.Repeat("x", 100)} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		r := bytes.NewReader(answer)
		line, err := readLine(r)
		if err != nil {
			return
		}
		if read := len(answer) - r.Len(); read != len(line)+1 || len(line) > maxLine {
			t.Errorf("read %d bytes for %q", read, line)
		}
		if checkOK(line) == nil && !strings.HasPrefix(line, "OK ") {
			t.Errorf("%q passes", line)
		}
	})
}

func FuzzRelease(f *testing.F) {
	for _, seed := range []string{"Firecracker v1.17.0", "Firecracker v1.17.0-dev", "firecracker 1",
		"Firecracker v99999.1.1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if r, err := parseRelease(text); err == nil && (r.major < 0 || r.minor < 0 || r.patch < 0 ||
			!strings.HasPrefix(text, "Firecracker v")) {
			t.Errorf("%q is %v", text, r)
		}
	})
}
