package main

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/lmittmann/tint"

	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/monitor"
)

// newLogger writes to w: coloured text on a terminal, JSON elsewhere, unless
// the configuration says which.
func newLogger(c config.Log, w io.Writer) *slog.Logger {
	level, err := logLevel(c.Level)
	if err != nil {
		level = slog.LevelInfo // checked when the configuration was read
	}
	terminal := monitor.IsTerminal(w)
	if c.Format == "json" || c.Format == "auto" && !terminal {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
	}
	return slog.New(tint.NewTextHandler(w, &tint.Options{
		Level:      level,
		TimeFormat: time.TimeOnly,
		NoColor:    !terminal || os.Getenv("NO_COLOR") != "",
	}))
}

// lineLogger turns lines into log records.
type lineLogger struct{ logger *slog.Logger }

func (l lineLogger) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		l.logger.Info(string(bytes.TrimSpace(line)))
	}
	return len(p), nil
}
