package trace

import (
	"bytes"
	"testing"

	"turnstone.dev/turnstone/internal/lang/syntax"
)

// hostile fills a step's memory with an attacker's data: first the header, then sites, records,
// input and state, each with a share of data.
func hostile(data []byte) shared {
	s := make(shared, lenShared)
	for i, off := range []int{offReason, offSites, offRecords, offAux, offEnv} {
		n := len(data) / (5 - i)
		end := []int{4096, offRecords, offAux, offEnv, lenShared}[i]
		copy(s[off:end], data[:n])
		data = data[n:]
	}
	return s
}

func FuzzDecode(f *testing.F) {
	f.Add(bytes.Repeat([]byte{1, 0, 0, 0}, 500))
	f.Add(bytes.Repeat([]byte{0xff}, 3000))
	f.Add(bytes.Repeat([]byte{2, 0, 0, 0, 1, 0, 0, 0}, 400))
	script := syntax.Parse([]byte("echo a\nfor i in 1; do false; done\nif x; then y | z; fi\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := &Recorder{mem: hostile(data), delivered: make([]bool, MaxRecords),
			sites: make(map[int]Site)}
		live := r.Drain()
		rep := r.collect(0)
		if len(live) > MaxRecords || len(rep.Records) > MaxRecords || len(rep.Sites) > MaxSites {
			t.Fatal("more than there can be")
		}
		for _, rec := range rep.Records {
			if rec.Parent >= rec.ID || rec.Duration < 0 || rec.Start < 0 || rec.Exit < 0 ||
				rec.Exit > 255 {
				t.Fatalf("%+v", rec)
			}
			if rec.Stdout.Known && (rec.Stdout.Start < 0 || rec.Stdout.End < rec.Stdout.Start) {
				t.Fatalf("%+v", rec)
			}
			if len(rec.Words) > MaxText || len(rec.Stdin.Bytes) > shownInput {
				t.Fatalf("%+v", rec)
			}
		}
		Resolve(script, rep)
		for _, rec := range rep.Records {
			if rec.Command < -1 || rec.Command >= len(script.Commands) {
				t.Fatalf("%+v", rec)
			}
		}
	})
}

// FuzzInstruction: the decoder never claims more bytes than an instruction has, nor fewer than 5 in
// total.
func FuzzInstruction(f *testing.F) {
	f.Add([]byte{0x41, 0x57, 0x41, 0x56, 0x41, 0x55, 0x41, 0x54, 0x55, 0x53, 0x48, 0x81, 0xec, 0xc8,
		0, 0, 0, 0})
	f.Add([]byte{0xf3, 0x0f, 0x1e, 0xfa, 0x41, 0x57, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10, 0x90,
		0x90, 0x90})
	f.Fuzz(func(t *testing.T, code []byte) {
		if n := instruction(code); n < 0 || n > 8 || n > len(code) {
			t.Fatalf("%d bytes of % x", n, code)
		}
		relocatable(code)
	})
}

func TestInstruction(t *testing.T) {
	for _, c := range []struct {
		code string
		want bool
	}{
		{"\x41\x57\x41\x56\x41\x55\x41\x54", true},                 // Debian 11 and 12
		{"\xf3\x0f\x1e\xfa\x41\x57\x41\x56", true},                 // Debian 13
		{"\x55\x48\x89\xe5\x41\x57\x41\x56", true},                 // with a frame pointer
		{"\x48\x83\xec\x18\x48\x89\xfb\x90", true},                 //
		{"\xe9\x00\x00\x00\x00\x90\x90\x90", false},                // already a jump
		{"\x41\x57\xe8\x00\x00\x00\x00\x90", false},                // a call
		{"\x48\x8b\x05\x00\x00\x00\x00\x90", false},                // relative to the address
		{"\x41\x57\x8b\x05\x00\x00\x00\x00", false},                //
		{"\xcc\x57\x41\x56\x41\x55\x41\x54", false},                // a breakpoint
		{"\x48\x50\x50\x50\x50\x50\x50\x50", false},                // an odd prefix
		{"\x41\x57\x74\x02\x41\x55\x41\x54", false},                // a branch
		{"\x41\x57\x64\x48\x8b\x04\x25\x28", false},                // a segment
		{"\x66\x90\x66\x90\x66\x90\x66\x90", false},                // filler
		{"\x41\x57\x48\x8d\x64\x24\xf8\x90\x90\x90\x90\x90", true}, // lea
	} {
		code := append([]byte(c.code), 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90)
		if got := relocatable(code); got != c.want {
			t.Errorf("% x: %v", c.code, got)
		}
	}
}
