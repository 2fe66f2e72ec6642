package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/internal/pgquery"
)

const (
	lockPause  = 100 * time.Millisecond
	lockNotice = 10 * time.Second // between two lines about what drop waits for
)

// lockBriefly is run in an open transaction: half of deadlock_timeout bounds the time
// in which drop holds one table and waits for another, so that PostgreSQL never
// finds a session of the subscriber's users in a deadlock with it.
// lock_timeout would bound the wait for each table only.
const lockBriefly = `select set_config('statement_timeout', greatest(setting::int / 2, 1)::text, true) from pg_settings where name = 'deadlock_timeout'`

// forget deletes what the subscriber knows of the subscription, and with Empty
// its rows, in one transaction: tables that are empty and count as copied would
// never be filled again. It waits for sessions that use the tables.
func forget(ctx context.Context, l *ledger, o DropOptions) error {
	var tables []string
	if o.Empty {
		var err error
		if tables, err = l.copied(ctx); err != nil {
			return err
		}
	}
	var told time.Time
	for {
		err := forgetOnce(ctx, l, tables)
		pe, ok := errors.AsType[*pgconn.PgError](err)
		switch {
		case err == nil:
			if len(tables) > 0 {
				fmt.Fprintf(o.Out, "subscription %s: %d tables emptied\n", l.name, len(tables))
			}
			return nil
		case !ok || pe.Code != "57014" && pe.Code != "40P01": // query_canceled, deadlock_detected
			return err
		}
		if _, err := pgquery.Rows(ctx, l.conn, "rollback"); err != nil {
			return err
		}
		if time.Since(told) >= lockNotice {
			told = time.Now()
			tellHolders(ctx, l, tables, o.Out)
		}
		if err := sleep(ctx, lockPause); err != nil {
			return err
		}
	}
}

// forgetOnce is one try; after an error the transaction is still open.
func forgetOnce(ctx context.Context, l *ledger, tables []string) error {
	if _, err := pgquery.Rows(ctx, l.conn, "begin"); err != nil {
		return err
	}
	if len(tables) > 0 {
		list := strings.Join(tables, ", ")
		// In one statement, so that foreign keys between the tables do not matter.
		for _, sql := range []string{lockBriefly, "lock table " + list, "set local statement_timeout = 0", "truncate " + list} {
			if _, err := pgquery.Rows(ctx, l.conn, sql); err != nil {
				return fmt.Errorf("empty the tables: %w", err)
			}
		}
	}
	for _, t := range []string{"subscription", "subscription_state", "subscription_table", "subscription_part", "subscription_pending", "exceptions"} {
		column := "subscription"
		if t == "subscription" || t == "subscription_state" {
			column = "name"
		}
		if _, err := pgquery.Rows(ctx, l.conn, "delete from walferry."+t+" where "+column+" = $1", l.name); err != nil {
			return fmt.Errorf("delete from walferry.%s: %w", t, err)
		}
	}
	if _, err := pgquery.Rows(ctx, l.conn, "commit"); err != nil {
		return fmt.Errorf("forget the subscription: %w", err)
	}
	return nil
}

// copied are the quoted names of the tables that the subscription has copied or
// followed and that are still there.
func (l *ledger) copied(ctx context.Context) ([]string, error) {
	rows, err := pgquery.Rows(ctx, l.conn, `select distinct target_schema, target_table from walferry.subscription_table
		where subscription = $1 and to_regclass(format('%I.%I', target_schema, target_table)) is not null order by 1, 2`, l.name)
	if err != nil {
		return nil, fmt.Errorf("read walferry.subscription_table: %w", err)
	}
	names := make([]string, len(rows))
	for i, r := range rows {
		names[i] = sqlw.QuoteName(r[0], r[1])
	}
	return names, nil
}

// tellHolders says which sessions use the tables. It is only for the reader of
// out: an error leaves the names away.
func tellHolders(ctx context.Context, l *ledger, tables []string, out io.Writer) {
	who := ""
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = sqlw.QuoteLiteral(t)
	}
	if r, err := pgquery.One(ctx, l.conn, `select coalesce(string_agg(distinct format('pid %s (%s)', a.pid, coalesce(nullif(a.application_name, ''), a.usename)), ', '), '')
		from pg_locks k join pg_stat_activity a using (pid)
		where k.granted and k.locktype = 'relation' and k.pid <> pg_backend_pid() and k.database = (select oid from pg_database where datname = current_database())
		and k.relation in (select coalesce(p.relid, t) from unnest(array[`+strings.Join(names, ", ")+`]::regclass[]) t left join lateral pg_partition_tree(t) p on true)`); err == nil && r[0] != "" {
		who = ": " + r[0]
	}
	fmt.Fprintf(out, "subscription %s: waiting for the sessions that use its tables%s\n", l.name, who)
}
