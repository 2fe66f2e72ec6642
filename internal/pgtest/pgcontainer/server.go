package pgcontainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"

	"github.com/walferry/walferry/internal/pgtest"
)

// timeout bounds each step of a server's life.
const timeout = 90 * time.Second

func init() { pgtest.Register(newServer) }

// Option makes pgtest run the cluster in a container also where binaries exist.
func Option() pgtest.Option { return pgtest.WithProvider(newServer) }

// Image is the name of the image of a major version.
func Image(major int) string { return fmt.Sprintf("postgres:%d", major) }

// Configure sets what testcontainers-go must know on any machine: no reaper
// container (its image would have to be pulled; every cluster is removed by its
// test) and the loopback address as the host of published ports.
func Configure() error {
	for k, v := range map[string]string{
		"TESTCONTAINERS_RYUK_DISABLED": "true",
		"TESTCONTAINERS_HOST_OVERRIDE": "127.0.0.1",
	} {
		if err := os.Setenv(k, v); err != nil {
			return fmt.Errorf("set %s: %w", k, err)
		}
	}
	return nil
}

// server is one PostgreSQL in one container.
type server struct {
	cli  *testcontainers.DockerClient
	ctr  *testcontainers.DockerContainer
	prt  int
	args []string
	img  string
}

func newServer(major int, settings map[string]string) (pgtest.Server, string, error) {
	if err := Configure(); err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	cli, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return nil, "", fmt.Errorf("connect to Docker: %w", err)
	}
	img := Image(major)
	if _, err := cli.ImageInspect(ctx, img); err != nil {
		return nil, "", errors.Join(fmt.Errorf("no image %s on this machine: %w", img, err), cli.Close())
	}
	port, err := pgtest.FreePort()
	if err != nil {
		return nil, "", errors.Join(err, cli.Close())
	}
	s := &server{cli: cli, prt: port, img: img, args: []string{"postgres"}}
	for _, k := range slices.Sorted(maps.Keys(settings)) {
		s.args = append(s.args, "-c", k+"="+settings[k])
	}
	return s, fmt.Sprintf("PostgreSQL %d (image %s)", major, img), nil
}

func (s *server) Port() int { return s.prt }

// DataDir and BinDir are not on this machine.
func (s *server) DataDir() string { return "" }

// BinDir is empty: see DataDir.
func (s *server) BinDir() string { return "" }

func (s *server) Start() error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if s.ctr != nil {
		if _, err := s.cli.ContainerStart(ctx, s.ctr.GetContainerID(), client.ContainerStartOptions{}); err != nil {
			return fmt.Errorf("start container: %w", err)
		}
		return pgtest.WaitReady(s.prt, nil)
	}
	ctr, err := testcontainers.Run(ctx, s.img,
		testcontainers.WithEnv(map[string]string{"POSTGRES_HOST_AUTH_METHOD": "trust"}),
		testcontainers.WithCmd(s.args...),
		testcontainers.WithExposedPorts("5432/tcp"),
		testcontainers.WithHostConfigModifier(func(hc *container.HostConfig) {
			// A fixed port: a random one changes with every start.
			hc.PortBindings = network.PortMap{network.MustParsePort("5432/tcp"): {{
				HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: strconv.Itoa(s.prt),
			}}}
			hc.ShmSize = 256 << 20
		}),
	)
	s.ctr = ctr
	if err != nil {
		return fmt.Errorf("run container: %w", err)
	}
	return pgtest.WaitReady(s.prt, nil)
}

func (s *server) Stop(mode string) error {
	sig, ok := map[string]string{"smart": "SIGTERM", "fast": "SIGINT", "immediate": "SIGQUIT"}[mode]
	if !ok {
		return fmt.Errorf("unknown stop mode %q", mode)
	}
	return s.signal(sig)
}

func (s *server) Kill() error { return s.signal("SIGKILL") }

// signal sends a signal to the postmaster and waits for the container's end.
func (s *server) signal(sig string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	id := s.ctr.GetContainerID()
	info, err := s.cli.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return fmt.Errorf("inspect container: %w", err)
	}
	if !info.Container.State.Running {
		return nil
	}
	wait := s.cli.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	if _, err := s.cli.ContainerKill(ctx, id, client.ContainerKillOptions{Signal: sig}); err != nil {
		return fmt.Errorf("signal container: %w", err)
	}
	select {
	case <-wait.Result:
		return nil
	case err := <-wait.Error:
		return fmt.Errorf("wait for container: %w", err)
	}
}

func (s *server) Remove() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if s.ctr != nil {
		// Nothing is left to do for a container that cannot be removed.
		_ = s.ctr.Terminate(ctx, testcontainers.StopTimeout(0))
		s.ctr = nil
	}
	_ = s.cli.Close()
}

func (s *server) LogTail() string {
	if s.ctr == nil {
		return "(the container was not made)"
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	r, err := s.ctr.Logs(ctx)
	if err != nil {
		return err.Error()
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}
