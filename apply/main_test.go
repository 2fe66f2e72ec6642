package apply

import (
	"os"
	"testing"
	"time"

	"github.com/walferry/walferry/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

// waitLong is for things that happen at once on an idle machine.
const waitLong = 20 * time.Second
