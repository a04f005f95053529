package network

import (
	"fmt"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
)

func TestParseSecretHeader(t *testing.T) {
	for text, want := range map[string]string{
		"api.example.com=Authorization: Bearer abcd":          "https://api.example.com=Authorization",
		"API.example.com.:8443=x-api-key:k=v:w,1":             "https://api.example.com:8443=X-Api-Key",
		"http://192.0.2.1:80=Cookie: a=b; c=d":                "http://192.0.2.1:80=Cookie",
		"https://[2001:db8::1]:443=Authorization: Basic Zm9v": "https://2001:db8::1:443=Authorization",
	} {
		h, err := ParseSecretHeader(text)
		if err != nil || h.Label() != want {
			t.Errorf("%s: %s, %v", text, h.Label(), err)
		}
	}
	if h, _ := ParseSecretHeader("a.example=X: k=v:w,1"); h.Value != "k=v:w,1" {
		t.Errorf("value %q", h.Value)
	}
	for _, text := range []string{"", "sesame-open", "a.example=sesame-open",
		"a.example=: sesame-open", "a.example=X:", "a.example=X: abc",
		"*.example.com=X: sesame-open",
		"10.0.0.0/8=X: sesame-open", "ftp://a.example=X: sesame-open",
		"a.example=Host: sesame-open", "a.example=Content-Length: sesame-open", "=X: sesame-open",
		"a.example=X Y: sesame-open", "a.example=X: sesame\r\nopen: y",
		"a.example=X: " + strings.Repeat("s", maxHeaderValue+1)} {
		h, err := ParseSecretHeader(text)
		if turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%.40q: %v", text, err)
			continue
		}
		if strings.Contains(err.Error()+turnstone.HintOf(err)+fmt.Sprintf("%v %+v %#v", h, h, h),
			"sesame") {
			t.Errorf("%q: the error holds the value: %v", text, err)
		}
	}
	h, err := ParseSecretHeader("a.example=Authorization: Bearer sesame-open")
	if err != nil || strings.Contains(fmt.Sprintf("%v %+v %#v %s", h, h, h, h), "sesame") ||
		fmt.Sprint(HeaderTexts(h)) != "[Bearer sesame-open sesame-open]" {
		t.Errorf("printed: %v, %q, %v", h, HeaderTexts(h), err)
	}
}
