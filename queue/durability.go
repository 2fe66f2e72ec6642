package queue

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Durability says what an acknowledgement of the queue is worth.
type Durability struct {
	// Synced says that every acknowledged batch is known to be on disk.
	Synced        bool
	ServerVersion string
	APILevel      int // of JetStream
	Replicas      int
	// Text explains it to an operator.
	Text string
}

// Durability finds out what an acknowledgement is worth. A client cannot ask a
// server when it syncs its files, so that only an embedded server is known to
// do it first.
func (q *Queue) Durability(ctx context.Context) (Durability, error) {
	d := Durability{ServerVersion: q.nc.ConnectedServerVersion(), Replicas: q.opts.Replicas, Synced: q.opts.Embedded}
	acc, err := q.js.AccountInfo(ctx)
	if err != nil {
		return d, q.apiError(ctx, "read account", err)
	}
	d.APILevel = acc.API.Level
	if info, err := q.streamInfo(ctx); err == nil {
		d.Replicas = info.Config.Replicas
	}
	switch {
	case d.Synced:
		d.Text = "embedded queue: every batch is synced to disk before it is acknowledged"
	case d.Replicas > 1:
		d.Text = fmt.Sprintf("nats-server %s, %d replicas: a batch is acknowledged when a majority has it. "+
			"Whether it is on disk then cannot be read through the client: by default nats-server syncs every two minutes, and servers that fail together lose acknowledged batches. "+
			"Set sync_interval: always, or use confirm: applied", d.ServerVersion, d.Replicas)
	default:
		d.Text = fmt.Sprintf("nats-server %s, one replica: whether an acknowledged batch is on disk cannot be read through the client. "+
			"By default nats-server syncs every two minutes, and a power failure loses what it acknowledged since. "+
			"Set sync_interval: always in the server's jetstream block, or use confirm: applied", d.ServerVersion)
	}
	return d, nil
}

// Foreign lists what else the NATS account stores that could get in the way:
// streams that walferry did not name, and streams that take subjects under
// walferry. The account should belong to walferry alone.
func (q *Queue) Foreign(ctx context.Context) ([]string, error) {
	var warnings []string
	l := q.js.ListStreams(ctx)
	for info := range l.Info() {
		if w := foreign(info); w != "" {
			warnings = append(warnings, w)
		}
	}
	if err := l.Err(); err != nil {
		return nil, q.apiError(ctx, "list streams", err)
	}
	slices.Sort(warnings)
	return warnings, nil
}

func foreign(info *jetstream.StreamInfo) string {
	name := info.Config.Name
	own := strings.HasPrefix(name, "WALFERRY_") || strings.HasPrefix(name, "KV_walferry_")
	for _, s := range info.Config.Subjects {
		under := strings.HasPrefix(s, "walferry.") || strings.HasPrefix(s, "*") || s == ">"
		if under && !own {
			return fmt.Sprintf("stream %s takes subject %s, which belongs to walferry: give it other subjects or another account", name, s)
		}
	}
	if !own {
		return fmt.Sprintf("stream %s is not walferry's: use a NATS account of its own for walferry", name)
	}
	return ""
}
