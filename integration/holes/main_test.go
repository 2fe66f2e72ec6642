package holes

import (
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
	code := pgtest.Run(m)
	if program.dir != "" {
		_ = os.RemoveAll(program.dir)
	}
	os.Exit(code)
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
