package auth

import (
	"testing"

	"go.uber.org/goleak"

	"turnstone.dev/turnstone/internal/leaktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient(m)) }
