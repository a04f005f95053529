package auth

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"
)

// reveals reports a text that holds a part of a token that is long enough to matter.
func reveals(t testing.TB, text, token string) {
	t.Helper()
	for _, secret := range strings.Split(token, ".") {
		if len(secret) >= 16 && strings.Contains(text, secret[:16]) {
			t.Errorf("an error holds a part of the token: %.300s", text)
		}
	}
}

func TestAccepted(t *testing.T) {
	s := newSetup(t)
	c := s.usual()
	c.Sandbox = "sb_0123456789abcdefgh"
	i := s.issue(t, c)
	p := s.accepted(t, i.Token.Reveal())
	if p.Issuer != server || p.Tenant != "acme" || p.Subject != "ci" || p.TokenID != i.ID ||
		p.Sandbox != c.Sandbox || !p.Expires.Equal(c.Expires) || len(p.Scopes) != 2 ||
		len(p.Sessions) != 2 || len(p.Templates) != 1 {
		t.Errorf("the principal is %+v", p)
	}
	s.accepted(t, s.craft(t, s.header(), s.payload()))
	for _, ok := range []map[string]any{
		with(s.payload(), "aud", []string{"other", server}),
		with(s.payload(), "nbf", s.time.wallTime().Unix()+20), // within the leeway
		with(s.payload(), "exp", float64(s.time.wallTime().Unix())+10.5),
		with(s.payload(), "scope", "openid turns:run unheard:of"),
		with(s.payload(), "scope", ""),
		with(s.payload(), "more", map[string]any{"a": []int{1, 2}}),
	} {
		s.accepted(t, s.craft(t, s.header(), ok))
	}
	s.accepted(t, s.craft(t, with(s.header(), "typ", "application/AT+JWT"), s.payload()))
	s.accepted(t, s.craft(t, with(s.header(), "x5t", "AAAA"), s.payload()))
}

func TestExpired(t *testing.T) {
	s := newSetup(t)
	token := s.issue(t, s.usual()).Token.Reveal()
	s.time.pass(time.Hour - time.Second)
	check(t, s.publisher.Beat(t.Context()))
	p := s.accepted(t, token)
	s.time.pass(time.Second)
	s.refused(t, token, Expired) // the leeway is for the clocks of other issuers
	if err := s.verifier.Still(p); ReasonOf(err) != Expired {
		t.Error(err)
	}
}

func TestNotYetValid(t *testing.T) {
	s := newSetup(t)
	for _, claim := range []string{"nbf", "iat"} {
		token := s.craft(t, s.header(), with(s.payload(), claim, s.time.wallTime().Unix()+31))
		s.refused(t, token, NotYet)
	}
}

func TestLifetime(t *testing.T) {
	s := newSetup(t)
	for _, exp := range []any{nil, "soon", "1893456000", -1, 1e300, true, []int{1}} {
		s.refused(t, s.craft(t, s.header(), with(s.payload(), "exp", exp)), BadClaims)
	}
	far := s.time.wallTime().Add(MaxTTL + time.Hour).Unix()
	s.refused(t, s.craft(t, s.header(), with(s.payload(), "exp", far)), BadClaims)
}

func TestWrongAudience(t *testing.T) {
	s := newSetup(t)
	for _, aud := range []any{nil, "https://other.example.org", server + "/", []string{}, 5,
		[]string{"a", "b"}, strings.ToUpper(server), make([]string, 17)} {
		s.refused(t, s.craft(t, s.header(), with(s.payload(), "aud", aud)), Audience)
	}
}

func TestWrongIssuer(t *testing.T) {
	s := newSetup(t)
	for _, iss := range []any{"https://other.example.org", server + "/", "TURN\nx"} {
		want := WrongIssuer
		if strings.Contains(iss.(string), "\n") {
			want = BadClaims
		}
		s.refused(t, s.craft(t, s.header(), with(s.payload(), "iss", iss)), want)
	}
	s.refused(t, s.craft(t, s.header(), with(s.payload(), "iss", nil)), BadClaims)
}

func TestAlgorithmNone(t *testing.T) {
	s := newSetup(t)
	for _, alg := range []string{"none", "None", "NONE", "nOnE"} {
		h, p := part(t, with(s.header(), "alg", alg)), part(t, s.payload())
		good := strings.Split(s.craft(t, s.header(), s.payload()), ".")
		s.refused(t, h+"."+p+".", Algorithm)
		s.refused(t, h+"."+p+"."+good[2], Algorithm)
	}
	good := strings.Split(s.craft(t, s.header(), s.payload()), ".")
	s.refused(t, good[0]+"."+good[1]+".", Malformed) // no signature
}

// TestPublicKeyAsSecret signs with HMAC and with each spelling of the public key as the secret,
// which a verifier that lets the token choose the algorithm accepts.
func TestPublicKeyAsSecret(t *testing.T) {
	s := newSetup(t)
	public := s.issuer.private.Public().(ed25519.PublicKey)
	der, err := x509.MarshalPKIXPublicKey(public)
	check(t, err)
	jwk, err := jose.JSONWebKey{Key: public}.MarshalJSON()
	check(t, err)
	block := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	for _, secret := range [][]byte{public, der, block, bytes.TrimSpace(block), jwk,
		[]byte(s.issuer.id)} {
		for _, alg := range []string{"HS256", "EdDSA"} {
			input := part(t, with(s.header(), "alg", alg)) + "." + part(t, s.payload())
			mac := hmac.New(sha256.New, secret)
			mac.Write([]byte(input))
			want := map[string]Reason{"HS256": Algorithm, "EdDSA": Forged}[alg]
			s.refused(t, input+"."+b64.EncodeToString(mac.Sum(nil)), want)
		}
	}
}

// TestOtherAlgorithm: a token cannot choose another algorithm than the server's.
func TestOtherAlgorithm(t *testing.T) {
	s := newSetup(t)
	for _, alg := range []string{"RS256", "ES256", "PS512", "HS384", "eddsa", "Ed25519", "ML-DSA-44"} {
		s.refused(t, s.craft(t, with(s.header(), "alg", alg), s.payload()), Algorithm)
	}
	s.refused(t, s.craft(t, with(s.header(), "alg", nil), s.payload()), Malformed)
	s.refused(t, s.craft(t, with(s.header(), "alg", []string{"EdDSA"}), s.payload()), Malformed)
}

func TestUnknownKey(t *testing.T) {
	s := newSetup(t)
	for _, kid := range []any{nil, "", "other", "../../keys/token", "' OR 1=1 --", 7} {
		s.refused(t, s.craft(t, with(s.header(), "kid", kid), s.payload()), UnknownKey)
	}
	_, other, err := ed25519.GenerateKey(rand.Reader)
	check(t, err)
	s.refused(t, craft(t, other, s.header(), s.payload()), Forged)
}

func TestSignature(t *testing.T) {
	s := newSetup(t)
	parts := strings.Split(s.craft(t, s.header(), s.payload()), ".")
	other := part(t, with(s.payload(), "tenant", "other"))
	s.refused(t, parts[0]+"."+other+"."+parts[2], Forged)
	more := part(t, with(s.header(), "x", 1))
	s.refused(t, more+"."+parts[1]+"."+parts[2], Forged)
	sig, err := b64.DecodeString(parts[2])
	check(t, err)
	for _, i := range []int{0, 31, 32, 63} {
		sig[i] ^= 1
		s.refused(t, parts[0]+"."+parts[1]+"."+b64.EncodeToString(sig), Forged)
		sig[i] ^= 1
	}
	s.refused(t, parts[0]+"."+parts[1]+"."+b64.EncodeToString(append(sig, 0)), Forged)
	s.refused(t, parts[0]+"."+parts[1]+"."+b64.EncodeToString(sig[:63]), Forged)
	// The signature over one token's header and another one's claims.
	s.refused(t, parts[1]+"."+parts[0]+"."+parts[2], Malformed)
}

// TestDuplicateNames: a name that an object has twice is refused, also as an escape, within a claim
// and in the header. The tokens are signed.
func TestDuplicateNames(t *testing.T) {
	s := newSetup(t)
	flat := func(m map[string]any) string {
		b, err := json.Marshal(m)
		check(t, err)
		return strings.TrimSuffix(string(b), "}")
	}
	for _, claims := range []string{`,"tenant":"other"}`, `,"\u0074enant":"other"}`,
		`,"a":{"b":1,"b":1}}`, `,"a":[[{"b":1,"c":[],"b":1}]]}`, `,"":1,"":1}`} {
		s.refused(t, s.craft(t, s.header(), flat(s.payload())+claims), Malformed)
	}
	for _, header := range []string{`,"alg":"none"}`, `,"kid":"other"}`, `,"x":1,"x":1}`} {
		s.refused(t, s.craft(t, flat(s.header())+header, s.payload()), Malformed)
	}
	// A name in other case is another name: it neither counts nor replaces.
	p := s.accepted(t, s.craft(t, s.header(), flat(s.payload())+`,"TENANT":"other","Tenant":"x"}`))
	if p.Tenant != "acme" {
		t.Errorf("the tenant is %s", p.Tenant)
	}
	for _, name := range []string{"TENANT", "Iss", "Exp"} {
		m := s.payload()
		value := m[strings.ToLower(name)]
		s.refused(t, s.craft(t, s.header(), with(with(m, strings.ToLower(name), nil), name, value)),
			BadClaims)
	}
}

func TestMalformedJSON(t *testing.T) {
	s := newSetup(t)
	for _, bad := range []string{"", "null", "[]", `"x"`, "1", "{", "{}}", `{"a":1}{"b":2}`,
		`{"a":1,}`, `{"a":01}`, "{\"a\":\"\xff\"}", "{'a':1}", "\ufeff{}", `{"a":NaN}`,
		strings.Repeat(`{"a":`, 9) + "1" + strings.Repeat("}", 9),
		strings.Repeat("[", 1000) + strings.Repeat("]", 1000)} {
		s.refused(t, s.craft(t, s.header(), bad), Malformed)
		s.refused(t, s.craft(t, bad, s.payload()), Malformed)
	}
}

// TestForeignHeaders: no token brings its own key, a place to find one, or an extension. The key in
// jwk did sign the token, so a verifier that uses it would accept.
func TestForeignHeaders(t *testing.T) {
	s := newSetup(t)
	public, other, err := ed25519.GenerateKey(rand.Reader)
	check(t, err)
	for name, value := range map[string]any{
		"jwk":  map[string]any{"kty": "OKP", "crv": "Ed25519", "x": b64.EncodeToString(public)},
		"jku":  "https://evil.example.org/keys",
		"x5u":  "https://evil.example.org/chain",
		"x5c":  []string{"AAAA"},
		"crit": []string{"exp"}, "b64": false, "zip": "DEF", "cty": "JWT", "enc": "A128GCM",
	} {
		for _, key := range []ed25519.PrivateKey{other, s.issuer.private} {
			s.refused(t, craft(t, key, with(s.header(), name, value), s.payload()), BadHeader)
		}
	}
	s.refused(t, craft(t, other, with(s.header(), "crit", []string{}), s.payload()), BadHeader)
}

func TestType(t *testing.T) {
	s := newSetup(t)
	for _, typ := range []any{nil, "JWT", "logout+jwt", "dpop+jwt", "", 3} {
		s.refused(t, s.craft(t, with(s.header(), "typ", typ), s.payload()), Malformed)
	}
}

// TestBase64: a token has one spelling. Each of these decodes to the same bytes in a decoder that
// is not strict.
func TestBase64(t *testing.T) {
	s := newSetup(t)
	token := s.craft(t, s.header(), s.payload())
	parts := strings.Split(token, ".")
	if last := parts[2][len(parts[2])-1]; strings.IndexByte("AQgw", last) < 0 {
		t.Fatalf("a signature of 64 bytes ends with %c", last)
	}
	end := strings.NewReplacer("A", "B", "Q", "R", "g", "h", "w", "x")
	bits := parts[2][:len(parts[2])-1] + end.Replace(parts[2][len(parts[2])-1:])
	for n, bad := range []string{
		parts[0] + "." + parts[1] + "." + bits,
		token + "=", token + "==", token + "\n", token + "\r\n", " " + token, token + " ",
		parts[0][:4] + "\n" + parts[0][4:] + "." + parts[1] + "." + parts[2],
		parts[0] + "." + parts[1] + "." + parts[2][:8] + "\r" + parts[2][8:],
		parts[0] + "." + parts[1] + "." + parts[2][:8] + "+" + parts[2][9:],
		parts[0] + "." + parts[1] + "." + parts[2][:8] + "/" + parts[2][9:],
		parts[0] + "." + parts[1] + "." + parts[2][:8] + "%2d" + parts[2][9:],
		parts[0] + "." + parts[1] + "." + parts[2] + "\x00",
		parts[0] + "." + parts[1] + "." + parts[2] + "é",
		token + ".", "." + token, token + "." + parts[2], parts[0] + "." + parts[1],
		parts[0] + ".." + parts[2], "..", ".", parts[0],
		`{"protected":"` + parts[0] + `","payload":"` + parts[1] + `","signature":"` + parts[2] +
			`"}`,
	} {
		if _, err := s.verifier.Verify(t.Context(), bad); ReasonOf(err) != Malformed {
			t.Errorf("%d: %v", n, err)
		}
		reveals(t, fmt.Sprint(s.verifier.Verify(t.Context(), bad)), bad)
	}
	s.refused(t, "", Missing)
}

// TestTooLarge: the size is checked before anything is parsed, so a token of 1 MB costs what one of
// 20 KB does.
func TestTooLarge(t *testing.T) {
	s := newSetup(t)
	cost := func(n int) float64 {
		token := strings.Repeat("A", n)
		s.refused(t, token, TooLarge)
		return testing.AllocsPerRun(100, func() { _, _ = s.verifier.Verify(t.Context(), token) })
	}
	small, large := cost(MaxToken+1), cost(1<<20)
	if large > small+2 { // fmt keeps buffers, and drops some
		t.Errorf("%v and %v allocations", small, large)
	}
	// A valid token of 1 MB, with dots and JSON.
	s.refused(t, s.craft(t, s.header(), with(s.payload(), "x", strings.Repeat("x", 1<<20))), TooLarge)
	s.refused(t, strings.Repeat(".", 1<<20), TooLarge)
	s.refused(t, s.craft(t, with(s.header(), "x", strings.Repeat("x", 3000)), s.payload()), Malformed)
	s.refused(t, strings.Repeat(".", MaxToken), Malformed)
}

func TestBadClaims(t *testing.T) {
	s := newSetup(t)
	long := make([]string, maxPatterns+1)
	for i := range long {
		long[i] = "x"
	}
	for name, values := range map[string][]any{
		"sub":    {nil, "", 5, strings.Repeat("x", 300), "a\nb", "a\x00"},
		"jti":    {nil, "", 5, strings.Repeat("x", 300)},
		"iat":    {nil, "now"},
		"nbf":    {"now", -1},
		"tenant": {nil, "", "../x", "a b", 5, strings.Repeat("x", 65), []string{"acme"}},
		"scope":  {5, []string{"turns:run"}, strings.Repeat("x ", 2000)},
		"sessions": {"*", []string{"["}, []string{""}, []int{1}, long,
			[]string{strings.Repeat("x", 201)}},
		"templates": {"*", []string{"["}, map[string]any{}},
		"sandbox":   {"", "x", "sb_", "sb_0123456789ABCDEFGH", 5, "*"},
	} {
		for _, v := range values {
			s.refused(t, s.craft(t, s.header(), with(s.payload(), name, v)), BadClaims)
		}
	}
	for _, name := range []string{"sessions", "templates", "sandbox", "tenant", "scope"} {
		p := maps.Clone(s.payload())
		b, err := json.Marshal(with(p, name, nil))
		check(t, err)
		null := strings.TrimSuffix(string(b), "}") + `,"` + name + `":null}`
		s.refused(t, s.craft(t, s.header(), null), BadClaims)
	}
}

func TestBearer(t *testing.T) {
	for _, c := range []struct {
		headers []string
		token   string
		reason  Reason
	}{
		{[]string{"Bearer abc"}, "abc", ""},
		{[]string{"bearer abc"}, "abc", ""},
		{nil, "", Missing},
		{[]string{""}, "", Malformed},
		{[]string{"Bearer"}, "", Malformed},
		{[]string{"Bearer "}, "", Malformed},
		{[]string{"Basic abc"}, "", Malformed},
		{[]string{"abc"}, "", Malformed},
		{[]string{"Bearer a", "Bearer b"}, "", Malformed},
	} {
		token, err := Bearer(http.Header{"Authorization": c.headers})
		if token != c.token || ReasonOf(err) != c.reason {
			t.Errorf("%q: %q, %v", c.headers, token, err)
		}
	}
}

// TestSecretsStaySecret formats, logs and encodes what holds a token or a key.
func TestSecretsStaySecret(t *testing.T) {
	s := newSetup(t)
	i := s.issue(t, s.usual())
	var out bytes.Buffer
	for _, log := range []*slog.Logger{slog.New(slog.NewTextHandler(&out, nil)),
		slog.New(slog.NewJSONHandler(&out, nil))} {
		log.Info("x", "issued", i, "token", i.Token, "issuer", s.issuer, "pointer", &i,
			"publisher", s.publisher)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb+verb+verb+verb, i, &i, i.Token, s.issuer)
	}
	b, err := json.Marshal(i)
	check(t, err)
	out.Write(b)
	reveals(t, out.String(), i.Token.Reveal())
	seed := s.issuer.private.Seed()
	for _, secret := range []string{b64.EncodeToString(seed), fmt.Sprintf("%x", seed),
		strings.Trim(fmt.Sprint(seed), "[]"), fmt.Sprintf("%x", i.Token.Reveal()[:20]), "issuer)("} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("%q is in %s", secret, out.String())
		}
	}
}
