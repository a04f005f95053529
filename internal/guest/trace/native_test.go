package trace

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// compiler returns a C compiler, or skips.
func compiler(t *testing.T) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	return cc
}

// TestLayout: the C compiler compares its layout with the layout here.
func TestLayout(t *testing.T) {
	cc := compiler(t)
	source, err := filepath.Abs("tracer.c")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "#include %q\n", source)
	is := func(expr string,
		want int) {
		fmt.Fprintf(&b, "_Static_assert(%s == %d, \"%s\");\n", expr, want, expr)
	}
	for field, off := range map[string]int{"reason": offReason, "pid": offPid, "start": offStart,
		"next_record": offNextRecord,
		"next_site":   offNextSite, "commands": offCommands, "dropped": offDropped,
		"siteless": offSiteless, "state": offState,
		"state_len": offStateLen, "replaced": offReplaced, "replaced_len": offReplaceLen,
		"name": offName, "ended": offEnded,
		"streams": offStreams} {
		is("offsetof(struct header, "+field+")", off)
	}
	for field, off := range map[string]int{"hash": 0, "ready": 8, "kind": 12, "line": 16, "len": 20,
		"records": 24, "cut": 28, "count": 32,
		"failures": 40, "time": 48, "text": offText} {
		is("offsetof(struct site, "+field+")", off)
	}
	for field, off := range map[string]int{"state": 0, "site": 4, "parent": 8, "flags": 12,
		"pid": 16, "child": 20, "start": 24, "end": 32,
		"exit": 40, "in_kind": 44, "out": 48, "err": 64, "in_off": 80, "in_len": 84, "in_size": 88,
		"in_known": 96} {
		is("offsetof(struct record, "+field+")", off)
	}
	for field, off := range map[string]int{"sites": offSites, "records": offRecords, "aux": offAux,
		"state": offEnv} {
		is("offsetof(struct shared, "+field+")", off)
	}
	for expr, want := range map[string]int{"sizeof(struct shared)": lenShared,
		"sizeof(struct stream)": lenStream, "offsetof(struct stream, count)": 8,
		"MAX_SITES": MaxSites, "MAX_RECORDS": MaxRecords, "PER_SITE": maxPerSite, "TEXT": MaxText,
		"AUX": lenAux, "STATE": maxState,
		"INPUT": maxInput, "NAME": lenName, "odd_command": reasonOddCommand, "f_trap": flagTrap,
		"f_out0": flagOut0, "k_list": len(kinds) - 1,
		"in_other": len(sources) - 1, "rec_closed": recordClosed} {
		is(expr, want)
	}
	path := filepath.Join(t.TempDir(), "layout.c")
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(cc, "-std=gnu11", "-fsyntax-only", "-ffreestanding",
		path).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestInstructionsAgree: Check and the library know the same instructions.
func TestInstructionsAgree(t *testing.T) {
	cc := compiler(t)
	source, err := filepath.Abs("tracer.c")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	text := fmt.Sprintf(`#include %q
extern int printf(const char *, ...);
extern int getchar(void);
int main(void)
{
	unsigned char code[8];
	for (;;) {
		for (int i = 0; i < 8; i++) {
			int c = getchar();
			if (c < 0)
				return 0;
			code[i] = (unsigned char)c;
		}
		printf("%%d\n", instruction(code));
	}
}
`, source)
	path, bin := filepath.Join(dir, "i.c"), filepath.Join(dir, "i")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(cc, "-std=gnu11", "-w", "-o", bin, path).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var in []byte
	var want strings.Builder
	rng := rand.New(rand.NewPCG(1, 2))
	starts := [][]byte{{}, {0x41}, {0x48}, {0x48, 0x83}, {0x48, 0x81}, {0x48, 0x8d, 0x64},
		{0x48, 0x8d, 0xa4}, {0xf3, 0x0f, 0x1e}, {0x89}, {0x4c, 0x8b}}
	for i := range 50_000 {
		code := make([]byte, 8)
		for j := range code {
			code[j] = byte(rng.Uint32())
		}
		copy(code, starts[i%len(starts)])
		in = append(in, code...)
		fmt.Fprintln(&want, instruction(code))
	}
	cmd := exec.Command(bin)
	cmd.Stdin = bytes.NewReader(in)
	out, err = cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if string(out) != want.String() {
		t.Error("the decoders differ")
	}
}

// TestEnvironmentOrder: the library finds its entry at any position.
func TestEnvironmentOrder(t *testing.T) {
	dir := t.TempDir()
	rec, err := newTracer(t).Record(baseEnv(dir))
	if err != nil {
		t.Fatal(err)
	}
	rec.env = append(rec.env, "LATER=1")
	out, err := startWith(rec, "/bin/bash", "-c",
		"echo ${LD_PRELOAD-none} $LATER; env | grep -c LD_PRELOAD")
	if out != "none 1\n0\n" {
		t.Errorf("%q, %v", out, err)
	}
	if rep := rec.Finish(0); rep.Untraced != "" || len(rep.Records) == 0 {
		t.Errorf("%+v", rep)
	}
}
