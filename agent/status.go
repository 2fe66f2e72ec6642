package agent

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/internal/pgquery"
	"github.com/walferry/walferry/monitor"
)

// statusTimeout bounds what is asked of one database.
const statusTimeout = 5 * time.Second

// Status is what the running processes of this data_dir report, completed from
// the databases for what no process reports.
func Status(ctx context.Context, cfg *config.Config) (*monitor.Document, error) {
	// A process that does not answer is as good as none: the databases know.
	docs, _ := monitor.Query(ctx, cfg.DataDir)
	doc := monitor.Merge(docs)
	running := map[string]bool{}
	for _, p := range doc.Publishers {
		running["p "+p.Name] = p.State != monitor.Unknown
	}
	for _, s := range doc.Subscriptions {
		running["s "+s.Name] = true
	}
	var wg sync.WaitGroup
	publishers := make([]*monitor.PublisherStatus, len(cfg.Publishers))
	subscriptions := make([]*monitor.SubscriptionStatus, len(cfg.Subscriptions))
	for i := range cfg.Publishers {
		if p := &cfg.Publishers[i]; !running["p "+p.Name] {
			wg.Go(func() { publishers[i] = publisherFromDatabase(ctx, p) })
		}
	}
	for i := range cfg.Subscriptions {
		if s := &cfg.Subscriptions[i]; !running["s "+s.Name] {
			wg.Go(func() { subscriptions[i] = subscriptionFromDatabase(ctx, s) })
		}
	}
	wg.Wait()
	extra := monitor.Document{}
	for _, p := range publishers {
		if p != nil {
			extra.Publishers = append(extra.Publishers, *p)
		}
	}
	for _, s := range subscriptions {
		if s != nil {
			extra.Subscriptions = append(extra.Subscriptions, *s)
		}
	}
	return monitor.Merge(append(docs, extra)), nil
}

// publisherFromDatabase describes a publisher without a running reader by its
// slot.
func publisherFromDatabase(ctx context.Context, p *config.Publisher) *monitor.PublisherStatus {
	st := &monitor.PublisherStatus{Name: p.Name, State: monitor.Stopped, Slot: p.Slot}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	conn, err := connect(ctx, p.URL, "status")
	if err != nil {
		st.LastError = "connect to the publisher: " + err.Error()
		return st
	}
	defer closeConn(conn)
	rows, err := pgquery.Rows(ctx, conn, `select coalesce(confirmed_flush_lsn::text, ''), active::text, coalesce(wal_status, ''),
			case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end::text
		from (select) one left join pg_replication_slots on slot_name = $1`, p.Slot)
	if err != nil {
		st.LastError = "read the slot: " + err.Error()
		return st
	}
	r := rows[0]
	st.ServerLSN, _ = change.ParseLSN(r[3])
	switch {
	case r[0] == "":
		st.LastError = "slot " + p.Slot + " does not exist"
	case r[2] == "lost":
		st.LastError = "slot " + p.Slot + " is lost: the WAL that it needs was removed"
	case r[1] == "true":
		st.State = monitor.Streaming // by a process with another data_dir
	}
	st.ConfirmedLSN, _ = change.ParseLSN(r[0])
	if st.ConfirmedLSN != 0 && st.ServerLSN > st.ConfirmedLSN {
		st.LagBytes = int64(st.ServerLSN - st.ConfirmedLSN)
	}
	return st
}

// subscriptionFromDatabase describes a subscription without a running applier
// by its ledger.
func subscriptionFromDatabase(ctx context.Context, s *config.Subscription) *monitor.SubscriptionStatus {
	st := &monitor.SubscriptionStatus{Name: s.Name, Publisher: s.Publisher, State: monitor.Stopped}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	if err := readLedger(ctx, s, st); err != nil {
		st.Error = cardOf(s.Name, err)
	}
	return st
}

func readLedger(ctx context.Context, s *config.Subscription, st *monitor.SubscriptionStatus) error {
	conn, err := connect(ctx, s.URL, "status")
	if err != nil {
		return fmt.Errorf("connect to the subscriber: %w", err)
	}
	defer closeConn(conn)
	l := &ledger{conn: conn, name: s.Name}
	if ok, err := l.exists(ctx); err != nil || !ok {
		return err
	}
	if st.Position, _, err = l.position(ctx); err != nil {
		return err
	}
	state, err := l.state(ctx)
	if err != nil {
		return err
	}
	if active, err := applierConnected(ctx, conn, s.Name); err == nil && active {
		st.State = state.State // by a process with another data_dir
	}
	if len(state.Error) > 0 {
		if st.Error, err = monitor.ParseCard(state.Error); err != nil {
			return err
		}
	}
	return nil
}

// applierConnected reports whether an applier of the subscription is connected
// to this database.
func applierConnected(ctx context.Context, conn *pgconn.PgConn, subscription string) (bool, error) {
	r, err := pgquery.One(ctx, conn, `select exists (select from pg_stat_activity
		where datname = current_database() and application_name = $1)`, applierName(subscription))
	if err != nil {
		return false, err
	}
	return r[0] == "t", nil
}

// applierName is the application_name of a subscription's applier.
func applierName(subscription string) string {
	name := "walferry applier " + subscription
	return strings.ToValidUTF8(name[:min(len(name), 63)], "")
}
