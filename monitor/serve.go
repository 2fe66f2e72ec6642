package monitor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/walferry/walferry/internal/logkey"
)

// ServeOptions say what is served.
type ServeOptions struct {
	State  *State
	Limits Limits
	Logger *slog.Logger
	// Ready, if set, is called once with the TCP address (nil: none) when both
	// listeners take connections.
	Ready func(tcp net.Addr)
}

const (
	requestTimeout  = 10 * time.Second
	shutdownTimeout = 2 * time.Second
)

// Serve answers on a TCP address, if addr is not empty, and on a control socket,
// if socketPath is not empty, until ctx ends; then it returns nil. An address
// that cannot be listened on is an error at once.
func Serve(ctx context.Context, addr, socketPath string, o ServeOptions) error {
	var listeners []net.Listener
	closeAll := func() {
		for _, l := range listeners {
			l.Close()
		}
	}
	var tcp net.Addr
	if addr != "" {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
		if err != nil {
			return fmt.Errorf("listen for monitoring: %w", err)
		}
		tcp = l.Addr()
		listeners = append(listeners, l)
		o.Logger.Info("monitor listens", logkey.Address, tcp.String())
	}
	if socketPath != "" {
		l, remove, err := listenControl(ctx, socketPath)
		if err != nil {
			closeAll()
			return fmt.Errorf("listen on control socket: %w", err)
		}
		defer remove()
		listeners = append(listeners, l)
	}
	srv := &http.Server{
		Handler:           Handler(o.State, o.Limits),
		ReadHeaderTimeout: requestTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      requestTimeout,
		IdleTimeout:       time.Minute,
		ErrorLog:          slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug),
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, l := range listeners {
		g.Go(func() error {
			if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve monitoring: %w", err)
			}
			return nil
		})
	}
	g.Go(func() error {
		<-gctx.Done()
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if err := srv.Shutdown(end); err != nil {
			srv.Close()
		}
		return nil
	})
	if o.Ready != nil {
		o.Ready(tcp)
	}
	return g.Wait()
}

// Handler serves /livez, /healthz, /metrics and /status.
func Handler(s *State, l Limits) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		h := s.Health(l)
		code := http.StatusOK
		if !h.OK() {
			code = http.StatusServiceUnavailable
		}
		writeJSON(w, code, h)
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, s.Document())
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.Registry(), promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "walferry: /healthz /livez /metrics /status")
	})
	return mux
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, "encode: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write(append(b, '\n')) // the client may be gone
}
