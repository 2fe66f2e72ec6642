package holes

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/walferry/walferry/internal/natstest"
	"github.com/walferry/walferry/internal/pgtest"
)

func TestMain(m *testing.M) {
	natstest.Serve()
	waitTogether()
	code := pgtest.Run(m)
	if program.dir != "" {
		_ = os.RemoveAll(program.dir)
	}
	os.Exit(code)
}

// waitTogether lets more tests run at once than there are processors: most of
// their time they wait for retries and grace periods.
func waitTogether() {
	flag.Parse()
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "test.parallel" })
	if !asked {
		_ = flag.Set("test.parallel", "8") // exists
	}
}

// program is the command line tool, built once.
var program struct {
	once sync.Once
	dir  string
	err  error
}

func binary(t testing.TB) string {
	t.Helper()
	program.once.Do(func() {
		if program.dir, program.err = os.MkdirTemp("", "walferry-holes"); program.err != nil {
			return
		}
		cmd := exec.Command("go", "build", "-o", program.dir, "github.com/walferry/walferry/cmd/walferry")
		cmd.Stderr = os.Stderr
		program.err = cmd.Run()
	})
	if program.err != nil {
		t.Fatalf("build walferry: %v", program.err)
	}
	return filepath.Join(program.dir, "walferry")
}
