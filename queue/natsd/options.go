package natsd

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// DefaultMaxPayload is the largest message the embedded server takes, in
// bytes, headers included. nats-server warns above this size.
const DefaultMaxPayload = 8 << 20

// maxMemory bounds the state that JetStream keeps in memory, in bytes. The
// queue stores nothing there but the state of readers.
const maxMemory = 64 << 20

// Options configure the embedded server.
type Options struct {
	// StoreDir is the directory of the streams. It is required; it is
	// created with mode 0700.
	StoreDir string
	// MaxStore bounds the streams together, in bytes. Zero is four fifths of
	// what the file system has free or StoreDir already uses.
	MaxStore int64
	// MaxPayload is the largest message in bytes; zero is DefaultMaxPayload.
	MaxPayload int32
	// Listen is a host:port for clients outside of the process, port 0 for
	// any. Empty: in-process connections only.
	Listen string
	// Token is what clients must present, in-process ones excepted. Listen
	// on an address other than loopback needs one.
	Token string
	// StartTimeout bounds recovery of the store at start; zero is 5 minutes.
	StartTimeout time.Duration
	// Logger gets the server's warnings and errors; nil discards them.
	Logger *slog.Logger
}

func (o *Options) setDefaults() {
	if o.MaxPayload == 0 {
		o.MaxPayload = DefaultMaxPayload
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = 5 * time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

func (o *Options) validate() error {
	var errs []error
	if o.StoreDir == "" {
		errs = append(errs, errors.New("store directory is empty: name the directory that holds the queue"))
	}
	if o.MaxStore < 0 {
		errs = append(errs, fmt.Errorf("max store %d is negative", o.MaxStore))
	}
	if o.MaxPayload < 16<<10 || o.MaxPayload > 64<<20 {
		errs = append(errs, fmt.Errorf("max payload %d is not between 16 KiB and 64 MiB", o.MaxPayload))
	}
	return errors.Join(errs...)
}

// serverOptions translates o for nats-server.
func (o *Options) serverOptions() (*server.Options, error) {
	so := &server.Options{
		ServerName:         "walferry",
		DontListen:         true,
		JetStream:          true,
		StoreDir:           o.StoreDir,
		SyncAlways:         true,
		JetStreamMaxStore:  o.MaxStore,
		JetStreamMaxMemory: maxMemory,
		MaxPayload:         o.MaxPayload,
		MaxPending:         64 << 20,
		NoSigs:             true,
		NoLog:              true,
		Authorization:      o.Token,
	}
	if o.Listen == "" {
		return so, nil
	}
	host, port, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return nil, fmt.Errorf("parse listen address: %w", err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("parse listen address %q: port %q is not a number up to 65535", o.Listen, port)
	}
	if o.Token == "" && !isLoopback(host) {
		return nil, fmt.Errorf("listen on %q: whoever reaches this port could read and delete the queue: set a token, or listen on 127.0.0.1", o.Listen)
	}
	so.DontListen, so.Host, so.Port = false, host, int(n)
	if n == 0 {
		so.Port = server.RANDOM_PORT
	}
	return so, nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
