package channel

import (
	"bytes"
	"io"
	"testing"

	"turnstone.dev/turnstone"
)

// fixed are random numbers that repeat, so that what a fuzzer found stays found.
type fixed byte

func (f fixed) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(f) + byte(i)
	}
	return len(p), nil
}

func fixedKey(t testing.TB, f fixed) KeyPair {
	t.Helper()
	b := make([]byte, KeySize)
	_, _ = f.Read(b)
	k, err := LoadKeyPair(b)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func fixedEnds(t testing.TB) ends {
	t.Helper()
	e := newEnds(t)
	client := fixedKey(t, 1)
	e.server.Key, e.client.Key = fixedKey(t, 2), client
	e.client.Server = e.server.Key.Public
	e.client.random, e.server.random = fixed(3), fixed(4)
	e.server.Registry = one{client.Public}
	return e
}

// one is a registry that admits a key under each statement.
type one [1]PublicKey

func (o one) Clients(turnstone.Digest) ([]PublicKey, error) { return o[:], nil }

// record returns what a client and a server send in a handshake, and the client's first frames.
func record(t testing.TB) (hello, second, rest []byte) {
	t.Helper()
	e := fixedEnds(t)
	stream := &tape{in: new(bytes.Buffer)}
	_, _ = Client(t.Context(), stream, e.client)
	hello = bytes.Clone(stream.out.Bytes())
	stream = &tape{in: bytes.NewReader(hello)}
	_, _ = Server(t.Context(), stream, e.server)
	second = bytes.Clone(stream.out.Bytes())
	stream = &tape{in: bytes.NewReader(second)}
	c, err := Client(t.Context(), stream, e.client)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write([]byte("data"))
	_ = c.CloseWrite()
	return hello, second, stream.out.Bytes()[len(hello):]
}

// FuzzServer gives a server the bytes of a client. What it reads is what a client can have written.
func FuzzServer(f *testing.F) {
	hello, _, rest := record(f)
	f.Add(append(bytes.Clone(hello), rest...))
	f.Add(hello)
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Server(t.Context(), &tape{in: bytes.NewReader(b)}, fixedEnds(t).server)
		if err != nil {
			if turnstone.KindOf(err) == turnstone.KindInternal {
				t.Fatal(err)
			}
			return
		}
		got, err := io.ReadAll(c)
		if !bytes.HasPrefix([]byte("data"), got) || err == nil && string(got) != "data" {
			t.Fatalf("read %q, %v", got, err)
		}
	})
}

// FuzzClient gives a client the answer of a server.
func FuzzClient(f *testing.F) {
	hello, second, rest := record(f)
	f.Add(second)
	f.Add(append(bytes.Clone(second), rest...))
	f.Add(hello)
	f.Fuzz(func(t *testing.T, b []byte) {
		e := fixedEnds(t)
		c, err := Client(t.Context(), &tape{in: bytes.NewReader(b)}, e.client)
		if err != nil {
			if turnstone.KindOf(err) == turnstone.KindInternal {
				t.Fatal(err)
			}
			return
		}
		if !bytes.HasPrefix(b, second) {
			t.Fatal("the client takes the answer of another server")
		}
		if got, err := io.ReadAll(c); err == nil || len(got) > 0 {
			t.Fatalf("read %q, %v", got, err)
		}
	})
}

// FuzzPublicKey checks that a key has one spelling.
func FuzzPublicKey(f *testing.F) {
	f.Add(NewKeyPair().Public.String())
	f.Add("AAAA")
	f.Fuzz(func(t *testing.T, text string) {
		var k PublicKey
		if err := k.UnmarshalText([]byte(text)); err == nil && k.String() != text {
			t.Fatalf("%q is read as %s", text, k)
		}
	})
}
