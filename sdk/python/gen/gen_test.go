package main

import "testing"

// TestGenerated checks that the committed files are those that the definitions give.
func TestGenerated(t *testing.T) {
	if err := run("../../..", true); err != nil {
		t.Fatal(err)
	}
}
