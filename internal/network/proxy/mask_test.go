package proxy

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"turnstone.dev/turnstone/internal/network"
)

func TestSecretHeadersOfOneName(t *testing.T) {
	all := secretHeaders{{Name: "Cookie", Value: "a=one"}, {Name: "Cookie", Value: "b=two"},
		{Name: "X-Key", Value: "three"}}
	h := http.Header{"Cookie": {"of the guest"}, "X-Key": {"of the guest", "again"},
		"Accept-Encoding": {"gzip"}}
	all.set(h)
	if fmt.Sprint(h["Cookie"], h["X-Key"],
		h["Accept-Encoding"]) != "[a=one b=two] [three] [identity]" {
		t.Errorf("%v", h)
	}
}

// TestMaskReader checks that values that span several reads are masked.
func TestMaskReader(t *testing.T) {
	needles := [][]byte{[]byte("sesame-open"), []byte("sesame")}
	text := "sesame-open sesame-ope sesame sesam " + strings.Repeat("x", 40_000) + "sesame-open" +
		strings.Repeat("s", 10) + "sesame-o"
	want := "*********** ******-ope ****** sesam " + strings.Repeat("x", 40_000) + "***********" +
		strings.Repeat("s", 10) + "******-o"
	for name, in := range map[string]io.Reader{"whole": strings.NewReader(text),
		"bytes":        iotest.OneByteReader(strings.NewReader(text)),
		"halves":       iotest.HalfReader(strings.NewReader(text)),
		"with the end": iotest.DataErrReader(strings.NewReader(text))} {
		got, err := io.ReadAll(newMaskReader(io.NopCloser(in), needles))
		if err != nil || string(got) != want {
			t.Errorf("%s: %d bytes, %v: %.60s … %s", name, len(got), err, got,
				got[max(0, len(got)-40):])
		}
	}
}

func FuzzMaskReader(f *testing.F) {
	f.Add([]byte("abcabcabcd abcab"), []byte("abcabcd"), uint8(3))
	f.Fuzz(func(t *testing.T, text, needle []byte, step uint8) {
		if len(needle) < network.MinHeaderValue || bytes.ContainsRune(needle, '*') {
			return
		}
		in := io.Reader(bytes.NewReader(text))
		if step%2 == 1 {
			in = iotest.OneByteReader(in)
		}
		got, err := io.ReadAll(newMaskReader(io.NopCloser(in), [][]byte{needle}))
		if err != nil || len(got) != len(text) || bytes.Contains(got, needle) {
			t.Errorf("%q of %q: %q, %v", needle, text, got, err)
		}
	})
}
