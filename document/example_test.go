package document_test

import (
	"fmt"
	"log"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
)

const greeting = "---\nimage: python\n---\n# Greeting\n\n```bash name=hello\necho hello\n```\n"

// Parse reads a document: its front matter and its steps.
func ExampleParse() {
	doc, err := document.Parse("greeting.md", []byte(greeting))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("image:", doc.Front.Image)
	for _, s := range doc.Steps {
		fmt.Printf("line %d, step %s: %s", s.Line, s.Name, s.Script)
	}
	// Output:
	// image: python
	// line 6, step hello: echo hello
}

// An invalid document is reported with the line and the column of each error.
func ExampleParse_error() {
	_, err := document.Parse("bad.md", []byte("---\ntimeout: soon\n---\n"))
	fmt.Println(err)
	// Output:
	// bad.md:2:10: timeout: "soon" is not a duration
}

// Receipt writes the results of the steps below the steps. Clean removes the results again.
func ExampleDocument_Receipt() {
	doc, err := document.Parse("greeting.md", []byte(greeting))
	if err != nil {
		log.Fatal(err)
	}
	code, out := 0, []byte("hello\n")
	results := []document.StepResult{{Status: turnstone.StepPassed, ExitCode: &code,
		Duration: 12 * time.Millisecond,
		Stdout: document.Output{Head: out, Size: int64(len(out)), Lines: 1,
			Digest: turnstone.DigestBytes(out)}}}
	receipt := doc.Receipt(document.TurnInfo{ID: "t_1", Result: turnstone.ResultPassed}, results)
	again, err := document.Parse("receipt.md", receipt)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(again.Clean()) == greeting)
	// Output:
	// true
}
