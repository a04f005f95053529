package sniff_test

import (
	"bufio"
	"bytes"
	"net/http"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone/internal/network/networktest"
	"turnstone.dev/turnstone/internal/network/sniff"
)

func TestClassify(t *testing.T) {
	for text, want := range map[string]struct{ first, atEnd sniff.Protocol }{
		"":                                 {sniff.Blank, sniff.Blank},
		"\r\n \t":                          {sniff.Blank, sniff.Blank},
		"\x85\xa0\x1c":                     {sniff.Blank, sniff.Blank},
		"\x16":                             {sniff.TLS, sniff.TLS},
		"\x16\x03\x01\x00\x05hello":        {sniff.TLS, sniff.TLS},
		"GET / HTTP/1.1\r\n":               {sniff.HTTP, sniff.HTTP},
		"\r\n\xa0GET / HTTP/1.1\n":         {sniff.HTTP, sniff.HTTP},
		"get\t/\x1chttp/9 and more\n":      {sniff.HTTP, sniff.HTTP},
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": {sniff.HTTP, sniff.HTTP},
		"G3T / HTTP/1.1\r\n":               {sniff.HTTP, sniff.HTTP},
		"GET /\r\n":                        {sniff.HTTP, sniff.HTTP},
		"PUT https://a.example/x\n":        {sniff.HTTP, sniff.HTTP},
		"GET ftp://a.example/x\n":          {sniff.HTTP, sniff.HTTP},
		"SOURCE /mount ICE/1.0\r\n":        {sniff.HTTP, sniff.HTTP},
		"connect a.example:1 X/1\n":        {sniff.HTTP, sniff.HTTP},
		"GET":                              {sniff.Partial, sniff.Other},
		"GET /":                            {sniff.Partial, sniff.Partial},
		"GET / HTTP/1.1":                   {sniff.Partial, sniff.Partial},
		"GET / HTTP/1.1\r":                 {sniff.Partial, sniff.Partial},
		"EHLO a.example":                   {sniff.Partial, sniff.Other},
		"EHLO a.example\r\n":               {sniff.Other, sniff.Other},
		"SSH-2.0-OpenSSH_9.6\r\n":          {sniff.Other, sniff.Other},
		"get key\r\n":                      {sniff.Other, sniff.Other},
		"put /a\r\n":                       {sniff.Other, sniff.Other},
		"OPTIONS rtsp://x/ RTSP/1.0\r\n":   {sniff.Other, sniff.Other},
		"*1\r\n$4\r\nPING\r\n":             {sniff.Other, sniff.Other},
		"A1\x00 / HTTP/1.1\r\n":            {sniff.Other, sniff.Other},
		"\x00\x00\x00\x08":                 {sniff.Other, sniff.Other},
		"(GET) / HTTP/1.1\r\n":             {sniff.Other, sniff.Other},
		"\xef\xbb\xbfGET / HTTP/1.1\r\n":   {sniff.Other, sniff.Other},
	} {
		if got := sniff.Classify([]byte(text)); got != want.first {
			t.Errorf("%q: %d, want %d", text, got, want.first)
		}
		if got := sniff.ClassifyAtEnd([]byte(text)); got != want.atEnd {
			t.Errorf("%q at its end: %d, want %d", text, got, want.atEnd)
		}
	}
}

func TestPlainRequests(t *testing.T) {
	for text, want := range map[string]struct{ is, maybe bool }{
		"":                                   {false, true},
		"GET":                                {false, true},
		"GET ":                               {false, true},
		"GET /":                              {false, true},
		"GET / HTTP/1.1\r\n":                 {true, true},
		"OPTIONS * HTTP/1.0\r\n":             {true, true},
		"M-SEARCH * HTTP/1.1\r\n":            {true, true},
		"PRI * HTTP/2.0\r\n":                 {false, true},
		"PRI * HTTP/1.1\r\n":                 {false, true},
		"GET http://a.example/ HTTP/1.1\r\n": {false, true},
		"CONNECT a.example:443 HTTP/1.1\r\n": {false, true},
		"GET / HTTP/2.0\r\n":                 {false, true},
		"get / HTTP/1.1\r\n":                 {false, false},
		" GET / HTTP/1.1\r\n":                {false, false},
		"GET\t/ HTTP/1.1\r\n":                {false, false},
		"POST E\r\n":                         {false, false},
		strings.Repeat("A", 21):              {false, false},
		strings.Repeat("A", 20) + " / HTTP/1.1\n": {true, true},
	} {
		if is, maybe := sniff.IsPlainRequest([]byte(text)), sniff.MaybePlain(
			[]byte(text)); is != want.is || maybe != want.maybe {
			t.Errorf("%q: %t %t, want %t", text, is, maybe, want)
		}
	}
}

// gaps are the bytes that separate fields for some server.
const gaps = " \t\v\f\r\x1c\x1d\x1e\x1f\x85\xa0"

// drawText draws up to n bytes of an alphabet.
func drawText(t *rapid.T, name, alphabet string, least, most int) string {
	return string(rapid.SliceOfN(rapid.SampledFrom([]byte(alphabet)), least, most).Draw(t, name))
}

// TestEveryRequestIsHTTP checks that a request that any server accepts is HTTP, and that no part of
// it is taken for another protocol.
func TestEveryRequestIsHTTP(t *testing.T) {
	const letters = "GETgetPOSTpost-_"
	rapid.Check(t, func(t *rapid.T) {
		request := drawText(t, "before", gaps+"\n", 0, 4) +
			drawText(t, "method", letters, 1, 12) + drawText(t, "gap", gaps, 1, 3) +
			drawText(t, "target", "/*:ah%\"(\x00\xff", 1, 30) + drawText(t, "gap", gaps, 1, 3) +
			rapid.SampledFrom([]string{"HTTP/1.1", "http/1.0", "Http/", "HTTP/2.0x",
				"HTTP/1.1 \x00"}).Draw(t, "version") +
			rapid.SampledFrom([]string{"\n", "\r\n"}).Draw(t, "end")
		if got := sniff.Classify([]byte(request)); got != sniff.HTTP {
			t.Fatalf("%q: %d", request, got)
		}
		for i := range request {
			got := sniff.Classify([]byte(request[:i]))
			if got != sniff.Partial && got != sniff.Blank {
				t.Fatalf("%q of %q: %d", request[:i], request, got)
			}
		}
	})
}

// FuzzClassify checks that what net/http reads as a request is HTTP, and that more bytes do not
// change a verdict.
func FuzzClassify(f *testing.F) {
	for _, s := range networktest.Smuggling {
		f.Add([]byte(s))
	}
	for _, s := range []string{networktest.GoodRequest, "SSH-2.0-x\r\n", "\x16\x03\x01",
		"G!T / HTTP/1.1\r\nHost: a\r\n\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		b = b[:min(len(b), 1<<10)] // each beginning is classified
		whole := sniff.Classify(b)
		plain := sniff.MaybePlain(b)
		for i := range b {
			switch said := sniff.Classify(b[:i]); {
			case said != whole && said != sniff.Partial && said != sniff.Blank:
				t.Fatalf("%q is %d, and %q is %d", b[:i], said, b, whole)
			case said == sniff.Partial && whole == sniff.Blank:
				t.Fatalf("%q is partial, and %q is blank", b[:i], b)
			}
			if plain && !sniff.MaybePlain(b[:i]) {
				t.Fatalf("%q cannot become %q", b[:i], b)
			}
		}
		if end := sniff.ClassifyAtEnd(b); end != whole && whole != sniff.Partial ||
			end == sniff.HTTP && whole == sniff.Partial {
			t.Fatalf("%q is %d, at its end %d", b, whole, end)
		}
		req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b)))
		if err == nil && whole != sniff.HTTP {
			t.Fatalf("%s %s is %d", req.Method, req.RequestURI, whole)
		}
		if sniff.IsPlainRequest(b) && (whole == sniff.TLS || whole == sniff.Blank) {
			t.Fatalf("%q is a plain request and %d", b, whole)
		}
	})
}
