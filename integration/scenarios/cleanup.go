package scenarios

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// cleanup removes the databases with all that keeps them from being dropped.
func (x *execution) cleanup(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	x.closeSessions(-1)
	x.ferry.kill()
	var errs []error
	for side, srv := range x.servers {
		if err := dropDatabase(ctx, srv, x.db); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", Side(side), err))
		}
	}
	origin := "walferry_" + x.ferry.name
	if _, err := admin(ctx, x.servers[Sub], "postgres", "SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE roname = '"+origin+"'"); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// dropDatabase drops slots, prepared transactions and the database.
func dropDatabase(ctx context.Context, srv Server, db string) error {
	exists, err := admin(ctx, srv, "postgres", "SELECT 1 FROM pg_database WHERE datname = '"+db+"'")
	if err != nil || exists == "" {
		return err
	}
	prepared, err := admin(ctx, srv, db, "SELECT format('ROLLBACK PREPARED %L', gid) FROM pg_prepared_xacts WHERE database = current_database()")
	if err != nil {
		return err
	}
	for cmd := range strings.Lines(prepared) {
		if _, err := admin(ctx, srv, db, cmd); err != nil {
			return err
		}
	}
	// A walsender needs a moment to end and let go of its slot.
	for {
		_, err := admin(ctx, srv, "postgres",
			"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = '"+db+"' AND active_pid IS NOT NULL",
			"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '"+db+"' AND active_pid IS NULL",
			"DROP DATABASE "+db+" WITH (FORCE)")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}
