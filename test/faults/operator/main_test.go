package operator

import (
	"os"
	"testing"

	"quorate.dev/test/faults/isolation"
)

func TestMain(m *testing.M) { os.Exit(isolation.Run(m)) }
