package parked

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
)

// newStack returns the stack at sp of a process of Placeholders("bash"), as a kernel makes it, with
// its texts at text.
func newStack(sp, text uint64, auxv ...uint64) []byte {
	words := []uint64{MaxArgs}
	argv, env := Placeholders("bash")
	for _, list := range [][]string{argv, env} {
		for _, s := range list {
			words = append(words, text)
			text += uint64(len(s)) + 1
		}
		words = append(words, 0)
	}
	words = append(words, auxv...)
	var b []byte
	for _, w := range words {
		b = binary.NativeEndian.AppendUint64(b, w)
	}
	return append(b, make([]byte, stackSize-len(b))...)
}

const (
	testSP    = 0x7fff_0000_0000
	testText  = testSP + 0x2000
	testEntry = 0x5555_0000
)

var testAuxv = []uint64{6, 4096, atBase, 0x7000_0000, atEntry, testEntry, atNull, 0}

func TestLayout(t *testing.T) {
	l, err := newLayout(newStack(testSP, testText, testAuxv...), testSP, "bash")
	want := layout{sp: testSP, env: testSP + 8*(MaxArgs+2), text: testText, entry: testEntry}
	if err != nil || l != want {
		t.Errorf("%+v, %v; want %+v", l, err, want)
	}
	static := slices.Clone(testAuxv)
	static[3] = 0
	for name, b := range map[string][]byte{
		"short":               newStack(testSP, testText, testAuxv...)[:100],
		"no linker":           newStack(testSP, testText, static...),
		"no entry":            newStack(testSP, testText, atBase, 1, atNull, 0),
		"texts below":         newStack(testSP, 4096, testAuxv...),
		"texts above the end": newStack(testSP, 1<<64-100, testAuxv...),
		"empty":               make([]byte, stackSize),
	} {
		if l, err := newLayout(b, testSP, "bash"); err == nil {
			t.Errorf("%s: %+v", name, l)
		}
	}
}

// TestBlock: what a C library finds in a block is what was put into it.
func TestBlock(t *testing.T) {
	l, err := newLayout(newStack(testSP, testText, testAuxv...), testSP, "bash")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []Start{
		{Argv: []string{"bash"}},
		{Argv: []string{"bash", "-c", "echo"}, Env: []string{"A=1", "B=", "C=ü"}},
		{Argv: append([]string{"bash"}, make([]string, MaxArgs-1)...), Env: make([]string, MaxEnv)},
	} {
		b := l.block(s)
		if b.sp < l.sp || b.sp+uint64(len(b.stack)) != l.env+8*(MaxEnv+1) {
			t.Errorf("%d bytes at %x", len(b.stack), b.sp)
		}
		word := func(i int) uint64 { return binary.NativeEndian.Uint64(b.stack[8*i:]) }
		list := func(i int) (texts []string) {
			for ; word(i) != 0; i++ {
				text, _, _ := strings.Cut(string(b.text[word(i)-l.text:]), "\x00")
				texts = append(texts, text)
			}
			return texts
		}
		argc := int(word(0))
		if got := list(1); argc != len(got) || !slices.Equal(got, s.Argv) {
			t.Errorf("%d arguments: %q", argc, got)
		}
		if got := list(argc + 2); !slices.Equal(got, s.Env) ||
			b.sp+8*uint64(argc+2) != l.env {
			t.Errorf("environment %q", got)
		}
		if want := strings.Join(s.Env, "\x00"); strings.TrimSuffix(
			string(b.text[b.env-l.text:]), "\x00") != want {
			t.Errorf("text %q", b.text)
		}
	}
}

func TestFits(t *testing.T) {
	fits := Start{Argv: []string{"bash", "-c", "x"}, Env: []string{"A=1", "LDX=", "ALL_LD_X="}, Cwd: "/"}
	if !Fits("bash", fits) {
		t.Error("does not fit")
	}
	for name, change := range map[string]func(*Start){
		"no arguments":    func(s *Start) { s.Argv = nil },
		"another name":    func(s *Start) { s.Argv[0] = "sh" },
		"many arguments":  func(s *Start) { s.Argv = slices.Repeat(s.Argv, MaxArgs) },
		"many variables":  func(s *Start) { s.Env = slices.Repeat(s.Env, MaxEnv) },
		"much text":       func(s *Start) { s.Argv[2] = strings.Repeat("x", room) },
		"a zero":          func(s *Start) { s.Argv[2] = "a\x00b" },
		"a zero of env":   func(s *Start) { s.Env[0] = "A=\x00" },
		"a long path":     func(s *Start) { s.Cwd = strings.Repeat("/x", maxCwd) },
		"a linker's":      func(s *Start) { s.Env[0] = "LD_PRELOAD=x" },
		"a library's":     func(s *Start) { s.Env[0] = "GLIBC_TUNABLES=x" },
		"an allocator's":  func(s *Start) { s.Env[0] = "MALLOC_ARENA_MAX=1" },
		"a zero of paths": func(s *Start) { s.Cwd = "/\x00" },
	} {
		s := fits
		s.Argv, s.Env = slices.Clone(fits.Argv), slices.Clone(fits.Env)
		if change(&s); Fits("bash", s) {
			t.Errorf("%s fits", name)
		}
	}
}

// TestMemoryMap: a program's name may have anything in it (proc(5)).
func TestMemoryMap(t *testing.T) {
	stat := "7 (a) 1 2) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 135399 4513792 813 18446744073709551615 " +
		"26 27 28 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 45 46 47 48 49 50 51 0\n"
	b := memoryMap([]byte(stat), 99, 1, 2, 3)
	var got []uint64
	for len(b) > 0 {
		got, b = append(got, binary.NativeEndian.Uint64(b)), b[8:]
	}
	if want := []uint64{26, 27, 45, 46, 47, 99, 28, 1, 2, 2, 3, 0, (1<<32 - 1) << 32}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if b := memoryMap(nil, 1, 2, 3, 4); len(b) != mapSize {
		t.Errorf("%d bytes", len(b))
	}
}

// FuzzLayout: the process may have changed its memory.
func FuzzLayout(f *testing.F) {
	f.Add(newStack(testSP, testText, testAuxv...), uint64(testSP))
	f.Add([]byte{}, uint64(0))
	f.Fuzz(func(t *testing.T, stack []byte, sp uint64) {
		l, err := newLayout(stack, sp, "bash")
		if err == nil && (l.text < sp || l.env < sp || l.entry == 0) {
			t.Errorf("%+v", l)
		}
	})
}
