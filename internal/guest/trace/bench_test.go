package trace

import (
	"os"
	"path/filepath"
	"testing"
)

func benchmark(b *testing.B, script string) {
	dir := b.TempDir()
	path := filepath.Join(dir, "step.sh")
	if err := os.WriteFile(path, []byte(script), 0o644); err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		tr   *Tracer
	}{{"plain", nil}, {"traced", newTracer(b)}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				if res := runScript(b, c.tr, dir, baseEnv(dir), path); res.exit != 0 ||
					res.report != nil && res.report.Untraced != "" {
					b.Fatalf("exit %d", res.exit)
				}
			}
		})
	}
}

// BenchmarkBuiltins must be at most twice as slow traced as plain.
func BenchmarkBuiltins(b *testing.B) { benchmark(b, "for ((i=0; i<100000; i++)); do :; done\n") }

// BenchmarkExternals must be at most 1.10 times as slow traced as plain.
func BenchmarkExternals(b *testing.B) {
	benchmark(b, "for ((i=0; i<2000; i++)); do /bin/true; done\n")
}
