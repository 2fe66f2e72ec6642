package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// Image is the image that [StartContainer] runs.
const Image = "postgres:17"

// DockerWorks says whether a Docker daemon answers.
func DockerWorks(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return exec.CommandContext(ctx, "docker", "info").Run() == nil
}

// Pull makes sure that [Image] is on this machine; progress gets what docker prints.
func Pull(ctx context.Context, progress io.Writer) error {
	if exec.CommandContext(ctx, "docker", "image", "inspect", Image).Run() == nil {
		return nil
	}
	fmt.Fprintf(progress, "docker pull %s\n", Image)
	if err := runShown(ctx, progress, "docker", "pull", "-q", Image); err != nil {
		return fmt.Errorf("pull %s: %w", Image, err)
	}
	return nil
}

// StartContainer runs a server in a container of the given name, which must be
// unique, and returns when it accepts connections. Options.Dir is not used.
func StartContainer(ctx context.Context, name string, o Options) (*Server, error) {
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	args := []string{
		"run", "--rm", "--detach", "--name", name, "--label", "walferry.demo",
		"--publish", fmt.Sprintf("127.0.0.1:%d:5432", port), "--env", "POSTGRES_HOST_AUTH_METHOD=trust", Image,
	}
	for _, k := range slices.Sorted(maps.Keys(o.Settings)) {
		args = append(args, "-c", k+"="+o.Settings[k])
	}
	s := &Server{port: port, container: name}
	if out, err := exec.CommandContext(ctx, "docker", args...).CombinedOutput(); err != nil {
		cause := fmt.Errorf("docker run %s: %w: %s", Image, err, lastLines(string(out), 3))
		if ctx.Err() != nil {
			cause = context.Cause(ctx)
		}
		return nil, errors.Join(cause, s.Stop())
	}
	// The image's first server, which sets up the database, listens on no port.
	if err := waitReady(ctx, port, nil); err != nil {
		return nil, errors.Join(fmt.Errorf("start container: %w", err), s.Stop())
	}
	return s, nil
}

func (s *Server) removeContainer() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, "docker", "rm", "--force", "--volumes", s.container).CombinedOutput()
	if err != nil && !strings.Contains(string(out), "No such container") {
		return fmt.Errorf("remove container %s: %w: %s", s.container, err, lastLines(string(out), 1))
	}
	return nil
}
