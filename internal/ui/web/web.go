// Package web is the page of turn ui: its sources in src, Preact's in preact, and in dist the bundle
// that the program serves. Command bundle makes the bundle.
package web

import _ "embed"

//go:generate go run ./bundle .

// Page, Script and Style are the files of the page.
var (
	//go:embed src/index.html
	Page []byte
	//go:embed dist/app.js
	Script []byte
	//go:embed dist/app.css
	Style []byte
)
