package apply

import (
	"os"
	"testing"

	"github.com/walferry/walferry/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }
