package turn

import (
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// TestHintImage: a program that cannot be started comes with an image that has it.
func TestHintImage(t *testing.T) {
	start := turnstone.Errorf(wire.MethodProcessStart, turnstone.KindNotFound, "pip",
		"no such program")
	if err := hintImage("base", "pip", start); turnstone.HintOf(err) != "--image python has pip" {
		t.Error(turnstone.HintOf(err))
	}
}
