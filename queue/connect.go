package queue

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"time"

	"github.com/nats-io/nats.go"
)

// Connect opens a connection as the queue needs it. It reconnects for ever,
// notices a dead server within a minute, and refuses to publish while it is cut off
// instead of buffering: what is buffered would be stored late and unordered.
// creds is a credentials file or empty; logger may be nil.
func Connect(serverURL, creds string, logger *slog.Logger, opts ...nats.Option) (*nats.Conn, error) {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	base := []nats.Option{
		nats.Name("walferry"),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, time.Second),
		nats.ReconnectBufSize(-1),
		nats.PingInterval(15 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.FlusherTimeout(15 * time.Second),
		nats.Timeout(5 * time.Second),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				logger.Warn("connection to NATS is lost, reconnecting", "err", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			logger.Info("connection to NATS is back", "server", nc.ConnectedServerName())
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			logger.Warn("NATS reports an error", "subject", subject, "err", err)
		}),
	}
	if creds != "" {
		// The client reads it only when a server asks for it.
		f, err := os.Open(creds)
		if err != nil {
			return nil, fmt.Errorf("read NATS credentials: %w", err)
		}
		_ = f.Close() // nothing was written
		base = append(base, nats.UserCredentials(creds))
	}
	nc, err := nats.Connect(serverURL, append(base, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS at %s: %w", redact(serverURL), withoutURL(err))
	}
	return nc, nil
}

// Unreachable reports whether an error of [Connect] says that no server could be
// reached, which may pass by itself, and not that one refused or that the
// settings are wrong.
func Unreachable(err error) bool {
	if _, ok := errors.AsType[*net.OpError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return true
	}
	return errors.Is(err, nats.ErrNoServers) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, io.EOF)
}

// redact leaves user and password out of a server URL.
func redact(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "the configured URL"
	}
	u.User = nil
	return u.String()
}

// withoutURL drops the URL that a parse error would repeat.
func withoutURL(err error) error {
	if ue, ok := errors.AsType[*url.Error](err); ok {
		return ue.Err
	}
	return err
}
