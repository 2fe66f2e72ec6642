package agent

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/monitor"
)

// A21: a copy runs in its part of the day, lets go at the end of it, and goes on when it
// comes again.
func TestCopyWindow_A21(t *testing.T) {
	now := time.Now()
	midnight := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location())
	of := func(from, to time.Duration) config.Window { // from now on, in whole seconds
		at := func(d time.Duration) time.Duration {
			return (now.Add(d).Sub(midnight) + 24*time.Hour).Truncate(time.Second) % (24 * time.Hour)
		}
		return config.Window{From: at(from), To: at(to)}
	}
	worker := func(t *testing.T, w config.Window, log *strings.Builder) *subscriptionWorker {
		sub := &config.Subscription{Name: "s", Publisher: "p", Copy: config.Copy{Window: w}}
		return &subscriptionWorker{sub: sub, watch: applierWatch{monitor.NewState("test"), sub}, logger: slog.New(slog.NewTextHandler(log, nil))}
	}
	t.Run("waits until it opens", func(t *testing.T) {
		var log strings.Builder
		ran := false
		err := worker(t, of(3*time.Second, time.Hour), &log).inWindow(t.Context(), func(context.Context) error {
			ran = true
			return nil
		})
		if err != nil || !ran || time.Since(now) < 2*time.Second || !strings.Contains(log.String(), "waits for its window") {
			t.Errorf("ran %v after %v: %v; log: %s", ran, time.Since(now), err, log.String())
		}
	})
	t.Run("lets go when it closes", func(t *testing.T) {
		var log strings.Builder
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		runs := 0
		w := worker(t, of(time.Since(now)-time.Hour, time.Since(now)+3*time.Second), &log)
		err := w.inWindow(ctx, func(ctx context.Context) error {
			runs++
			<-ctx.Done()
			time.AfterFunc(500*time.Millisecond, cancel)
			return errors.New("connection closed")
		})
		if !errors.Is(err, context.Canceled) || runs != 1 || !strings.Contains(log.String(), "goes on with what is missing") || strings.Count(log.String(), "waits for its window") != 1 {
			t.Errorf("ran %d times, then %v; log: %s", runs, err, log.String())
		}
	})
	t.Run("the whole day", func(t *testing.T) {
		var log strings.Builder
		want := errors.New("failed")
		if err := worker(t, config.Window{}, &log).inWindow(t.Context(), func(context.Context) error { return want }); err != want {
			t.Errorf("error: %v", err)
		}
	})
}
