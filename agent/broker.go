package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"

	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/queue"
	"github.com/walferry/walferry/queue/natsd"
)

// broker is the connection to the distribution queue, and the embedded server
// when there is no other.
type broker struct {
	server *natsd.Server // nil: external
	conn   *nats.Conn
	cfg    *config.Config
	logger *slog.Logger
}

// embeddedPayload is the largest message of the embedded server in bytes.
const embeddedPayload = 8 << 20

// openBroker connects to the configured server, which it waits for, or starts
// the embedded one.
func openBroker(ctx context.Context, cfg *config.Config, logger *slog.Logger) (*broker, error) {
	b := &broker{cfg: cfg, logger: logger}
	if !cfg.Queue.Embedded() {
		conn, err := dial(ctx, cfg, logger)
		if err != nil {
			return nil, fmt.Errorf("connect to the queue: %w", err)
		}
		b.conn = conn
		return b, nil
	}
	server, err := natsd.Start(natsd.Options{
		StoreDir:   filepath.Join(cfg.DataDir, "queue"),
		MaxPayload: embeddedPayload,
		Listen:     cfg.Queue.Listen,
		Token:      cfg.Queue.Token,
		Logger:     logger,
	})
	if err != nil {
		return nil, fmt.Errorf("start the embedded queue: %w", err)
	}
	conn, err := server.Connect()
	if err != nil {
		server.Shutdown()
		return nil, fmt.Errorf("connect to the embedded queue: %w", err)
	}
	b.server, b.conn = server, conn
	return b, nil
}

// dial connects to the configured server. One that cannot be reached is tried
// until it can: all agents of a system may be started at the same time.
func dial(ctx context.Context, cfg *config.Config, logger *slog.Logger) (*nats.Conn, error) {
	retryIn := backoff.NewExponentialBackOff()
	retryIn.InitialInterval, retryIn.MaxInterval = minRetry, maxRetry
	for {
		conn, err := queue.Connect(cfg.Queue.URL, cfg.Queue.Credentials, logger)
		if err == nil || !queue.Unreachable(err) {
			return conn, err
		}
		pause := retryIn.NextBackOff()
		logger.Warn("the queue cannot be reached", "error", err, "retry_in", pause.Round(time.Millisecond))
		if sleep(ctx, pause) != nil {
			return nil, err
		}
	}
}

// queue opens the stream of one publisher; it does not create it.
func (b *broker) queue(ctx context.Context, publisher string) (*queue.Queue, error) {
	q, err := queue.Open(ctx, b.conn, queue.Options{
		Name:     publisher,
		MaxBytes: int64(b.cfg.Queue.MaxBytes),
		Replicas: b.cfg.Queue.Replicas,
		Embedded: b.server != nil,
		Logger:   b.logger,
	})
	if err != nil {
		return nil, fmt.Errorf("open the queue of publisher %s: %w", publisher, err)
	}
	return q, nil
}

// close ends the connection and then the embedded server.
func (b *broker) close() {
	b.conn.Close()
	if b.server != nil {
		b.server.Shutdown()
	}
}

var errEmbeddedElsewhere = errors.New("the queue is embedded in another process: set queue.url to its listen address")
