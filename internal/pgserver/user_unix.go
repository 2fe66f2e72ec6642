//go:build unix

package pgserver

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"sync"
	"syscall"
)

const exeSuffix = ""

// serverUser is who runs servers: PostgreSQL refuses root. Nil means the user of
// this process.
var serverUser = sync.OnceValue(func() *syscall.Credential {
	if os.Getuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	return &syscall.Credential{Uid: 65534, Gid: 65534} // nobody, by custom
})

// asServerUser prepares a command to run as the server's user, outside of the
// terminal's process group, with nothing of the user's environment.
func asServerUser(cmd *exec.Cmd) *exec.Cmd {
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: serverUser(), Setpgid: true}
	return cmd
}

// own gives a folder to the server's user.
func own(dir string) error {
	u := serverUser()
	if u == nil {
		return nil
	}
	if err := os.Chown(dir, int(u.Uid), int(u.Gid)); err != nil {
		return fmt.Errorf("give folder to the server's user: %w", err)
	}
	return nil
}
