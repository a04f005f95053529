// Command bundle builds the page of turn ui from its TypeScript and Preact's source, with esbuild and
// without Node.js. Its argument is the folder of the sources, internal/ui/web. The bundle is in the
// repository: a test fails if the bundle differs from what its sources give.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/evanw/esbuild/pkg/api"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: bundle FOLDER")
		os.Exit(2)
	}
	files, err := build(os.Args[1])
	for name, data := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(os.Args[1], "dist", name), data, 0o644))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bundle:", err)
		os.Exit(1)
	}
}

// build returns the files of the bundle by name.
func build(dir string) (map[string][]byte, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	license, err := os.ReadFile(filepath.Join(dir, "preact", "LICENSE"))
	if err != nil {
		return nil, err
	}
	r := api.Build(api.BuildOptions{
		AbsWorkingDir: dir, Outdir: filepath.Join(dir, "dist"), EntryPoints: []string{"src/app.tsx", "src/app.css"},
		Bundle: true, Format: api.FormatESModule, Target: api.ES2022, Charset: api.CharsetUTF8,
		MinifyWhitespace: true, MinifyIdentifiers: true, MinifySyntax: true,
		JSX: api.JSXTransform, JSXFactory: "h", JSXFragment: "Fragment",
		Alias: map[string]string{"preact": filepath.Join(dir, "preact/src/index.js"),
			"preact/hooks": filepath.Join(dir, "preact/hooks/src/index.js")},
		Banner: map[string]string{"js": "/* Includes Preact.\n" + string(license) + "*/"},
		// No file of a folder above selects another output.
		TsconfigRaw: "{}", LogLevel: api.LogLevelSilent})
	for _, m := range r.Errors {
		err = errors.Join(err, errors.New(m.Text+where(m)))
	}
	files := map[string][]byte{}
	for _, f := range r.OutputFiles {
		files[filepath.Base(f.Path)] = f.Contents
	}
	return files, err
}

func where(m api.Message) string {
	if m.Location == nil {
		return ""
	}
	return fmt.Sprintf(" (%s:%d)", m.Location.File, m.Location.Line)
}
