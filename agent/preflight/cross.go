package preflight

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/queue"
)

const queueSide = "queue"

// node is a table of a database, wherever it occurs.
type node struct{ system, database, schema, table string }

type edge struct {
	from, to node
	sub      *subscriber
}

// crossChecks looks at subscriptions beside each other.
func crossChecks(pubs []*publisher, subs []*subscriber) {
	for _, p := range pubs {
		if p.conn != nil && originNone(p.cfg) && p.version < 160000 {
			p.add(Error, "origin", "set origin: any, or upgrade the server", "origin: none needs version 16")
		}
	}
	var edges []edge
	out := map[node][]edge{}
	writer := map[node]*subscriber{}
	for _, s := range subs {
		for _, pair := range s.pairs {
			e := edge{
				from: node{s.pub.systemID, s.pub.databaseID, pair.from.schema, pair.from.name},
				to:   node{s.systemID, s.databaseID, pair.name.Schema, pair.name.Table}, sub: s,
			}
			if first := writer[e.to]; first != nil && first != s {
				s.add(Error, sqlw.DisplayName(e.to.schema, e.to.table), "exclude the table from one of them, or rename it in one", "is written by %s too", first.name)
			} else {
				writer[e.to] = s
			}
			edges = append(edges, e)
			out[e.from] = append(out[e.from], e)
		}
	}
	told := map[*subscriber]bool{}
	for _, e := range edges {
		if originNone(e.sub.pub.cfg) || told[e.sub] || !reaches(out, e.to, e.from) {
			continue
		}
		told[e.sub] = true
		remedy := fmt.Sprintf("set origin: none at %s", e.sub.pub.name)
		if e.sub.pub.version < 160000 {
			remedy += " (needs version 16 there), or replicate in one direction only"
		}
		e.sub.add(Error, sqlw.DisplayName(e.to.schema, e.to.table), remedy, "its changes come back to the publisher's table %s and are sent again, without end", sqlw.DisplayName(e.from.schema, e.from.table))
	}
}

// reaches reports whether changes of one table arrive in another.
func reaches(out map[node][]edge, from, to node) bool {
	seen := map[node]bool{}
	todo := []node{from}
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if n == to {
			return true
		}
		if seen[n] {
			continue
		}
		seen[n] = true
		for _, e := range out[n] {
			todo = append(todo, e.to)
		}
	}
	return false
}

const queueTimeout = 10 * time.Second

// checkQueue looks whether the distribution queue can be used.
func checkQueue(ctx context.Context, cfg *config.Config) []Finding {
	s := side{name: queueSide}
	if cfg.Queue.Embedded() {
		s.folder(cfg.DataDir)
		return s.findings
	}
	conn, err := queue.Connect(cfg.Queue.URL, cfg.Queue.Credentials, nil)
	if err != nil {
		s.add(Error, "NATS", "start the NATS server, and check queue.url and queue.credentials", "cannot connect: %s", oneLine(err))
		return s.findings
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, queueTimeout)
	defer cancel()
	for i := range cfg.Publishers {
		p := &cfg.Publishers[i]
		q, err := queue.Open(ctx, conn, queue.Options{Name: p.Name, MaxBytes: int64(cfg.Queue.MaxBytes), Replicas: cfg.Queue.Replicas})
		if err == nil {
			_, err = q.Exists(ctx)
		}
		if err != nil {
			s.add(Error, "JetStream", "enable JetStream on the NATS server and for the account", "cannot be used: %s", oneLine(err))
			return s.findings
		}
		d, err := q.Durability(ctx)
		if err != nil {
			s.add(Error, "stream of publisher "+p.Name, "", "cannot be checked: %s", oneLine(err))
			continue
		}
		if !d.Synced && p.Confirm != config.ConfirmApplied {
			s.add(Warning, "stream of publisher "+p.Name, "set sync_interval: always in the NATS server's jetstream block, or confirm: applied at the publisher", "%s", d.Text)
		}
	}
	return s.findings
}

// folder looks whether the data folder can be written, or made.
func (s *side) folder(dir string) {
	at := dir
	for {
		fi, err := os.Stat(at)
		if err == nil && !fi.IsDir() {
			s.add(Error, "data_dir "+dir, "choose another data_dir", "%s is not a folder", at)
			return
		}
		if err == nil {
			break
		}
		up := filepath.Dir(at)
		if up == at {
			break
		}
		at = up
	}
	probe, err := os.MkdirTemp(at, ".walferry-check-")
	if err != nil {
		s.add(Error, "data_dir "+dir, "give the user that runs walferry the right to write there, or choose another data_dir", "cannot be written: %s", err)
		return
	}
	_ = os.Remove(probe) // empty
}
