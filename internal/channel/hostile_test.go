package channel

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
)

// A tape is a stream whose two directions are apart: it reads what the test puts in, and keeps what
// is written.
type tape struct {
	in  io.Reader
	out bytes.Buffer
}

func (s *tape) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s *tape) Write(p []byte) (int, error) { return s.out.Write(p) }
func (s *tape) Close() error                { return nil }

// every is the number of frames under one key in tests on tapes.
const every = 4

// taped returns the ends of a channel whose frames go to tapes after the handshake. read gives a
// reader of frames to the server.
func taped(t testing.TB) (client, server *Conn, sent, back *tape, read func(frames ...[]byte)) {
	t.Helper()
	client, server = pair(t)
	sent, back = &tape{in: new(bytes.Buffer)}, &tape{in: new(bytes.Buffer)}
	client.stream, server.stream = sent, back
	for _, h := range []*half{client.send, client.recv, server.send, server.recv} {
		h.every = every
	}
	return client, server, sent, back, func(frames ...[]byte) {
		server.in.Reset(bytes.NewReader(bytes.Join(frames, nil)))
	}
}

// split returns the frames in b.
func split(b []byte) (all [][]byte) {
	for len(b) > 0 {
		n := headSize + int(b[0])<<8 + int(b[1])
		all = append(all, b[:n:n])
		b = b[n:]
	}
	return all
}

// TestFrames does one thing after the other to the frames of a channel.
func TestFrames(t *testing.T) {
	flip := func(f []byte, at int) []byte {
		f = slices.Clone(f)
		f[at] ^= 1
		return f
	}
	// f has frames 1 to 4 with data, and 5 is the end; frame 0 was the confirmation, and frames
	// from 4 have the next key. own has frames 0 to 3 of the server.
	for what, c := range map[string]struct {
		fault  Fault
		frames func(f, own [][]byte) [][]byte
	}{
		"nothing":       {"", func(f, _ [][]byte) [][]byte { return f }},
		"after the end": {"", func(f, own [][]byte) [][]byte { return append(f, f[0], own[0]) }},
		"data changed": {FaultAltered,
			func(f, _ [][]byte) [][]byte { f[1] = flip(f[1], headSize); return f }},
		"tag changed": {FaultAltered,
			func(f, _ [][]byte) [][]byte { f[1] = flip(f[1], len(f[1])-1); return f }},
		"number changed": {FaultAltered,
			func(f, _ [][]byte) [][]byte { f[1] = flip(f[1], 9); return f }},
		"number far off": {FaultAltered,
			func(f, _ [][]byte) [][]byte { f[1] = flip(f[1], 2); return f }},
		"shorter by its length": {FaultAltered,
			func(f, _ [][]byte) [][]byte { f[1] = flip(f[1], 1); return f }},
		"empty": {FaultAltered, func(f, _ [][]byte) [][]byte {
			return slices.Insert(f, 1, make([]byte, headSize))
		}},
		"twice": {FaultRepeated,
			func(f, _ [][]byte) [][]byte { return slices.Insert(f, 1, f[0]) }},
		"again, later": {FaultRepeated,
			func(f, _ [][]byte) [][]byte { return slices.Insert(f, 2, f[0]) }},
		"again, under an old key": {FaultAltered,
			func(f, _ [][]byte) [][]byte { return slices.Insert(f, 4, f[0]) }},
		"one lost": {FaultReordered,
			func(f, _ [][]byte) [][]byte { return slices.Delete(f, 1, 2) }},
		"the first lost": {FaultReordered, func(f, _ [][]byte) [][]byte { return f[1:] }},
		"lost at a new key": {FaultReordered,
			func(f, _ [][]byte) [][]byte { return slices.Delete(f, 2, 3) }},
		"swapped": {FaultReordered,
			func(f, _ [][]byte) [][]byte { f[0], f[1] = f[1], f[0]; return f }},
		"own, at its number": {FaultReflected,
			func(f, own [][]byte) [][]byte { return slices.Insert(f, 1, own[2]) }},
		"own, elsewhere": {FaultReflected,
			func(f, own [][]byte) [][]byte { return slices.Insert(f, 1, own[0]) }},
		"end lost":      {FaultTruncated, func(f, _ [][]byte) [][]byte { return f[:4] }},
		"all lost":      {FaultTruncated, func(_, _ [][]byte) [][]byte { return nil }},
		"cut in a head": {FaultTruncated, func(f, _ [][]byte) [][]byte { f[2] = f[2][:3]; return f[:3] }},
		"cut in a frame": {FaultTruncated,
			func(f, _ [][]byte) [][]byte { f[2] = f[2][:20]; return f[:3] }},
	} {
		t.Run(what, func(t *testing.T) {
			client, server, sent, back, read := taped(t)
			data := []byte("0123456789ab")
			for i := range 4 {
				if _, err := client.Write(data[3*i : 3*i+3]); err != nil {
					t.Fatal(err)
				}
				if i < 3 {
					_, _ = server.Write(data[i:])
				}
			}
			if err := client.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			read(c.frames(split(sent.out.Bytes()), split(back.out.Bytes()))...)
			got, err := io.ReadAll(server)
			if c.fault == "" {
				if err != nil || !bytes.Equal(got, data) {
					t.Fatalf("%q, %v", got, err)
				}
				return
			}
			want(t, err, c.fault)
			if !bytes.HasPrefix(data, got) {
				t.Errorf("read %q", got)
			}
			if _, again := server.Read(make([]byte, 1)); !errors.Is(again, err) {
				t.Errorf("the second error is %v, the first %v", again, err)
			}
			if _, err := server.Write(data); FaultOf(err) != c.fault {
				t.Errorf("the channel writes after a fault: %v", err)
			}
			client.in.Reset(bytes.NewReader(back.out.Bytes()))
			_, err = io.ReadAll(client)
			want(t, err, c.fault) // the server has told it
		})
	}
}

// TestAnyManipulationIsDetected checks that whatever happens to the frames of a channel, the reader
// gets a prefix of the data and an error, or all.
func TestAnyManipulationIsDetected(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		client, server, sent, back, read := taped(t)
		var data []byte
		for _, p := range rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 1, 40), 1, 12).Draw(rt,
			"writes") {
			data = append(data, p...)
			_, _ = client.Write(p)
			_, _ = server.Write(p)
		}
		_ = client.CloseWrite()
		whole := slices.Clone(sent.out.Bytes())
		f, own := split(whole), split(back.out.Bytes())
		for range rapid.IntRange(1, 3).Draw(rt, "manipulations") {
			f = manipulate(rt, f, own)
		}
		bytesNow := bytes.Join(f, nil)
		read(bytesNow)
		got, err := io.ReadAll(server)
		if bytes.HasPrefix(bytesNow, whole) {
			if err != nil || !bytes.Equal(got, data) {
				rt.Fatalf("nothing was changed before the end, and %v", err)
			}
			return
		}
		if FaultOf(err) == "" || !bytes.HasPrefix(data, got) {
			rt.Fatalf("%d bytes of %d, %v", len(got), len(data), err)
		}
	})
}

// manipulate does one thing to frames.
func manipulate(t *rapid.T, f, own [][]byte) [][]byte {
	if len(f) == 0 {
		return f
	}
	at := rapid.IntRange(0, len(f)-1)
	i, j := at.Draw(t, "frame"), at.Draw(t, "other")
	f = slices.Clone(f)
	switch rapid.SampledFrom([]string{"flip", "drop", "repeat", "swap", "reflect", "cut", "random"}).
		Draw(t, "what") {
	case "flip":
		f[i] = slices.Clone(f[i])
		f[i][rapid.IntRange(0, len(f[i])-1).Draw(t, "at")] ^= byte(rapid.IntRange(1, 255).Draw(t,
			"bits"))
	case "drop":
		f = slices.Delete(f, i, i+1)
	case "repeat":
		f = slices.Insert(f, i, f[j])
	case "swap":
		f[i], f[j] = f[j], f[i]
	case "reflect":
		f = slices.Insert(f, i, own[rapid.IntRange(0, len(own)-1).Draw(t, "own")])
	case "cut":
		f[i] = f[i][:rapid.IntRange(0, len(f[i])-1).Draw(t, "length")]
		f = f[:i+1]
	case "random":
		f = slices.Insert(f, i, rapid.SliceOfN(rapid.Byte(), 1, 60).Draw(t, "bytes"))
	}
	// An empty frame, left by a cut, would be split away.
	return slices.DeleteFunc(f, func(one []byte) bool { return len(one) == 0 })
}

// TestKeysChange checks that all frames go through when keys change, and that the key does change.
func TestKeysChange(t *testing.T) {
	client, server, sent, _, read := taped(t)
	first := client.send.state.UnsafeKey()
	data := pattern(10 * every)
	for i := range data {
		_, _ = client.Write(data[i : i+1])
	}
	_ = client.Close()
	if client.send.state.UnsafeKey() == first {
		t.Fatal("the key stays")
	}
	read(sent.out.Bytes())
	if got, err := io.ReadAll(server); err != nil || !bytes.Equal(got, data) {
		t.Fatal(err)
	}
}

// TestUnknownKinds checks that an authentic frame without a meaning ends the channel.
func TestUnknownKinds(t *testing.T) {
	for kind, data := range map[byte]string{kindConfirm: "", kindFault: "truncated", 4: "x", kindData: "", kindEnd: "x"} {
		client, server, sent, _, read := taped(t)
		_ = client.frame(kind, []byte(data))
		read(sent.out.Bytes())
		if _, err := io.ReadAll(server); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("kind %d: %v", kind, err)
		}
	}
}

// relay connects a client and a server through a function that sees each chunk of the handshake on
// its way, in both directions, and returns what both ends say.
func (e ends) relay(t *testing.T, change func(toServer bool, b []byte) []byte) (client,
	server result) {
	t.Helper()
	a, ra := net.Pipe()
	rb, b := net.Pipe()
	done := make(chan struct{}, 2)
	carry := func(toServer bool, from, to net.Conn) {
		buf := make([]byte, 4<<10)
		for {
			n, err := from.Read(buf)
			if n > 0 {
				if _, err := to.Write(change(toServer, slices.Clone(buf[:n]))); err != nil {
					break
				}
			}
			if err != nil {
				break
			}
		}
		_, _ = from.Close(), to.Close()
		done <- struct{}{}
	}
	go carry(true, ra, rb)
	go carry(false, rb, ra)
	client, server = e.shake(t.Context(), a, b)
	_, _ = a.Close(), b.Close()
	<-done
	<-done
	return client, server
}

func same(_ bool, b []byte) []byte { return b }

// changed returns a change of one byte on the way to the server, or to the client.
func changed(there bool, at int) func(bool, []byte) []byte {
	return func(toServer bool, b []byte) []byte {
		if toServer == there && at < len(b) {
			b[at] ^= 1
		}
		return b
	}
}

func TestHandshakeThroughARelay(t *testing.T) {
	if c, s := newEnds(t).relay(t, same); c.err != nil || s.err != nil {
		t.Fatal(c.err, s.err)
	}
	t.Run("its own key", func(t *testing.T) {
		e := newEnds(t)
		e.server.Key = NewKeyPair() // the relay's end, which even knows the statement
		c, s := e.relay(t, same)
		want(t, s.err, FaultKeySwapped)
		if turnstone.KindOf(c.err) != turnstone.KindIntegrity {
			t.Error(c.err)
		}
	})
	t.Run("another sandbox", func(t *testing.T) {
		e, other := newEnds(t), newEnds(t)
		e.server = other.server
		e.client.Statement = turnstone.DigestBytes([]byte("another statement"))
		c, s := e.relay(t, same)
		if turnstone.KindOf(c.err) != turnstone.KindNotFound ||
			turnstone.KindOf(s.err) != turnstone.KindNotFound {
			t.Error(c.err, s.err)
		}
	})
	for at := len(magic) + digestSize; at < prefixSize+firstSize; at += 7 {
		_, s := newEnds(t).relay(t, changed(true, at))
		want(t, s.err, FaultKeySwapped)
	}
	for at := 1; at < 1+secondSize; at += 5 {
		c, s := newEnds(t).relay(t, changed(false, at))
		want(t, c.err, FaultKeySwapped)
		if s.err == nil {
			t.Error("the server takes a client that has given up")
		}
	}
	t.Run("the first message comes back", func(t *testing.T) {
		e := newEnds(t)
		_, err := Client(t.Context(), &echo{new(bytes.Buffer), 0}, e.client)
		want(t, err, FaultReflected)
		_, err = Client(t.Context(), &echo{new(bytes.Buffer), prefixSize}, e.client)
		want(t, err, FaultReflected)
	})
	t.Run("an unknown answer", func(t *testing.T) {
		e := newEnds(t)
		_, err := Client(t.Context(), &tape{in: bytes.NewReader([]byte{9})}, e.client)
		want(t, err, FaultAltered)
	})
}

// An echo returns what is written, after an answer and from an offset if there is one.
type echo struct {
	*bytes.Buffer
	from int
}

func (e *echo) Write(p []byte) (int, error) {
	if e.from > 0 {
		e.WriteByte(answerSecond)
	}
	_, _ = e.Buffer.Write(p[e.from:])
	return len(p), nil
}

func (e *echo) Close() error { return nil }

// A spy keeps what goes through a stream.
type spy struct {
	net.Conn
	seen bytes.Buffer
}

func (s *spy) Write(p []byte) (int, error) {
	s.seen.Write(p)
	return s.Conn.Write(p)
}

// TestReplay sends the recorded bytes of a client to its server again: the server returns no
// connection, so no command of the record is performed.
func TestReplay(t *testing.T) {
	e := newEnds(t)
	a, b := net.Pipe()
	recorded := &spy{Conn: a}
	c, s := e.shake(t.Context(), recorded, b)
	if c.err != nil || s.err != nil {
		t.Fatal(c.err, s.err)
	}
	go func() { _, _ = c.conn.Write([]byte("a command")); _ = a.Close() }()
	if got, _ := io.ReadAll(s.conn); string(got) != "a command" {
		t.Fatalf("%q", got)
	}
	all := recorded.seen.Bytes()
	_, err := Server(t.Context(), &tape{in: bytes.NewReader(all)}, e.server)
	want(t, err, FaultReplayed)
	_, err = Server(t.Context(), &tape{in: bytes.NewReader(all[:prefixSize+firstSize])}, e.server)
	want(t, err, FaultTruncated)
}

func TestServerRefuses(t *testing.T) {
	t.Run("another client", func(t *testing.T) {
		e := newEnds(t)
		e.client.Key = NewKeyPair()
		c, s := e.relay(t, same)
		if turnstone.KindOf(c.err) != turnstone.KindInvalid || turnstone.HintOf(c.err) == "" ||
			turnstone.KindOf(s.err) != turnstone.KindInvalid {
			t.Error(c.err, s.err)
		}
	})
	t.Run("an expired statement", func(t *testing.T) {
		e := newEnds(t)
		e.server.Registry.(*Statements).now = func() time.Time { return time.Now().Add(2 * time.Hour) }
		c, s := e.relay(t, same)
		want(t, s.err, FaultExpired)
		if turnstone.KindOf(c.err) != turnstone.KindInvalid {
			t.Error(c.err)
		}
	})
	for what, b := range map[string]string{"nothing": "", "HTTP": "GET / HTTP/1.1\r\n",
		"half": "TSC1"} {
		e := newEnds(t)
		stream := &tape{in: bytes.NewReader([]byte(b))}
		if _, err := Server(t.Context(), stream, e.server); turnstone.KindOf(err) ==
			turnstone.KindInternal || err == nil || stream.out.Len() > 0 {
			t.Errorf("%s: %v, answered %q", what, err, stream.out.Bytes())
		}
	}
	for _, err := range []error{
		func() error { _, err := Server(t.Context(), &tape{}, ServerConfig{}); return err }(),
		func() error { _, err := Client(t.Context(), &tape{}, ClientConfig{}); return err }(),
	} {
		if turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Error(err)
		}
	}
}

// TestLostWhileWriting: a side whose stream is lost while it writes names that as one that reads does,
// and more data does not follow the part of a frame that was written.
func TestLostWhileWriting(t *testing.T) {
	client, server := pair(t)
	if err := server.stream.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := client.Write([]byte("x"))
		want(t, err, FaultTruncated)
		if turnstone.KindOf(err) != turnstone.KindDead || turnstone.HintOf(err) == "" {
			t.Error(err)
		}
	}
	_ = client.Close()
}
