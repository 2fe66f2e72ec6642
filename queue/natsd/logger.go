package natsd

import (
	"fmt"
	"log/slog"
	"sync"
)

// bridge hands the server's log lines to slog and keeps the last fatal one,
// which says why a start failed.
type bridge struct {
	log *slog.Logger

	mu    sync.Mutex
	fatal string
}

func (b *bridge) Noticef(f string, v ...any) { b.log.Debug("nats-server: " + fmt.Sprintf(f, v...)) }
func (b *bridge) Debugf(string, ...any)      {}
func (b *bridge) Tracef(string, ...any)      {}
func (b *bridge) Warnf(f string, v ...any)   { b.log.Warn("nats-server: " + fmt.Sprintf(f, v...)) }
func (b *bridge) Errorf(f string, v ...any)  { b.log.Error("nats-server: " + fmt.Sprintf(f, v...)) }

func (b *bridge) Fatalf(f string, v ...any) {
	s := fmt.Sprintf(f, v...)
	b.log.Error("nats-server: " + s)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fatal = s
}

func (b *bridge) lastFatal() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fatal
}
