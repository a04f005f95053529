package cdp

import (
	"net"
	"testing"
	"time"

	"turnstone.dev/turnstone/wire"
)

// loose returns a browser's session without goroutines, and the client's view of it.
func loose(f *testing.F) (*session, *wire.Frames) {
	f.Helper()
	near, far := net.Pipe()
	f.Cleanup(func() { _ = near.Close() })
	s := NewServer(Options{Backend: &backend{}, Token: "t"})
	p := newPatient(near, nil, time.Minute)
	b := &browser{srv: s, socket: &socket{Frames: wire.NewFrames(p, false), conn: p},
		sessions: map[string]*session{}, channels: map[uint32]*session{}}
	agent, _ := net.Pipe()
	one := newSession(b, agent)
	one.id, one.channel, b.last = "S", 5, 5
	b.sessions["S"], b.channels[5] = one, one
	return one, wire.NewFrames(far, true)
}

// FuzzSandbox: for any data from a sandbox, its client sees only messages of the sandbox's own
// session, and only answers to its commands.
func FuzzSandbox(f *testing.F) {
	f.Add(true, []byte(`{"id":7,"result":{}}`))
	f.Add(true, []byte(`{"method":"Process.output","params":{},"sessionId":"other"}`))
	f.Add(true, []byte(`{"method":"Target.targetCreated"}`))
	f.Add(false, append(wire.Frame{Stream: 1}.Head(), "data"...))
	s, client := loose(f)
	f.Fuzz(func(t *testing.T, text bool, p []byte) {
		s.mu.Lock()
		clear(s.pending)
		s.pending[7] = 1
		s.mu.Unlock()
		passed := make(chan error, 1)
		go func() {
			err := error(nil)
			if text {
				err = s.message(p)
			} else {
				err = s.frame(p)
			}
			if err == nil {
				err = s.b.socket.WriteText([]byte(`{"method":"end"}`))
			}
			passed <- err
		}()
		type message struct {
			text bool
			data []byte
		}
		seen := make(chan message, 1)
		go func() {
			text, data, _ := client.Next(nil)
			seen <- message{text, data}
		}()
		var m message
		select {
		case err := <-passed:
			if err == nil {
				t.Fatal("it was passed on before it was read")
			}
			// No message arrived: end the reader.
			if err := s.b.socket.WriteText([]byte(`{"method":"end"}`)); err != nil {
				t.Fatal(err)
			}
			<-seen
			return
		case m = <-seen:
		}
		if m.text {
			got, err := wire.ParseMessage(m.data)
			if err != nil {
				t.Fatal(err)
			}
			if got.Method == "end" && got.SessionID == "" { // nothing was passed on
				<-passed
				return
			}
			if got.SessionID != "S" || got.ID != nil && *got.ID != 7 ||
				got.ID != nil && got.Method != "" {
				t.Errorf("the client saw %s", m.data)
			}
		} else if fr, err := wire.ParseFrame(m.data); err != nil || fr.Channel != 5 {
			t.Errorf("the client saw %x", m.data)
		}
		if _, _, err := client.Next(nil); err != nil {
			t.Fatal(err)
		}
		<-passed
	})
}

// FuzzClient: a client's message reaches the session that it names, without the name, or ends the
// connection.
func FuzzClient(f *testing.F) {
	f.Add(true, []byte(`{"id":7,"method":"Process.list","sessionId":"S","params":{"a":"<&>"}}`))
	f.Add(true, []byte(`{"id":7,"method":"Target.getTargets"}`))
	f.Add(false, append(wire.Frame{Channel: 5, Stream: 1}.Head(), "data"...))
	s, client := loose(f)
	go func() { // reads errors
		for {
			if _, _, err := client.Next(nil); err != nil {
				return
			}
		}
	}()
	f.Fuzz(func(t *testing.T, text bool, p []byte) {
		s.mu.Lock()
		clear(s.pending)
		s.mu.Unlock()
		var err error
		if text {
			err = s.b.message(p)
		} else {
			err = s.b.frame(p)
		}
		s.queue.mu.Lock()
		items := s.queue.items
		s.queue.items, s.queue.bytes = nil, 0
		s.queue.mu.Unlock()
		for _, i := range items {
			if err != nil || i.text != text {
				t.Errorf("passed on, and %v", err)
			}
			if i.text {
				m, err := wire.ParseMessage(i.data)
				if err != nil || m.SessionID != "" || m.ID == nil || m.Method == "" {
					t.Errorf("passed on: %s", i.data)
				}
			} else if fr, err := wire.ParseFrame(i.data); err != nil || fr.Channel != 0 {
				t.Errorf("passed on: %x", i.data)
			}
		}
	})
}
