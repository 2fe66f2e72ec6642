package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/internal/pgquery"
)

// ledger is what a subscriber's database knows of one subscription: schema
// walferry, made by package sqlw. The connection belongs to the caller, or to
// the ledger when it has the url.
type ledger struct {
	conn *pgconn.PgConn
	name string
	url  string
}

// connect makes sure that there is a connection.
func (l *ledger) connect(ctx context.Context) error {
	if l.conn != nil && !l.conn.IsClosed() {
		return nil
	}
	var err error
	if l.conn, err = connect(ctx, l.url, "agent"); err != nil {
		return fmt.Errorf("connect to the subscriber: %w", err)
	}
	return nil
}

// tableState is a row of walferry.subscription_table. Names are the
// publisher's.
type tableState struct {
	schema, table string
	state         string
	copyLSN       change.LSN
	oid           change.OID // in the publisher's database; 0: not known
}

// States of a table in the ledger.
const (
	tableCopying = "copying" // waits for its copy
	tableCopied  = "copied"  // the rows are there, indexes and constraints may be missing
	tableReady   = "ready"   // copied; changes before copy_lsn are in the copy
	tableRemoved = "removed" // left the publication after it was ready
)

// exists reports whether the schema is there.
func (l *ledger) exists(ctx context.Context) (bool, error) {
	r, err := pgquery.One(ctx, l.conn, `select to_regclass('walferry.subscription_table') is not null and to_regclass('walferry.subscription_state') is not null`)
	if err != nil {
		return false, fmt.Errorf("look for schema walferry: %w", err)
	}
	return r[0] == "t", nil
}

func (l *ledger) tables(ctx context.Context) (map[tableName]tableState, error) {
	rows, err := pgquery.Rows(ctx, l.conn, `select schema_name, table_name, state, coalesce(copy_lsn::text, '0/0'), coalesce(relation_oid, 0)
		from walferry.subscription_table where subscription = $1`, l.name)
	if err != nil {
		return nil, fmt.Errorf("read walferry.subscription_table: %w", err)
	}
	m := make(map[tableName]tableState, len(rows))
	for _, r := range rows {
		lsn, err := change.ParseLSN(r[3])
		if err != nil {
			return nil, fmt.Errorf("read walferry.subscription_table: %w", err)
		}
		oid, err := strconv.ParseUint(r[4], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("read walferry.subscription_table: %w", err)
		}
		m[tableName{r[0], r[1]}] = tableState{schema: r[0], table: r[1], state: r[2], copyLSN: lsn, oid: change.OID(oid)}
	}
	return m, nil
}

// remove records that a table has left the publication: changes committed
// before at are still applied.
func (l *ledger) remove(ctx context.Context, name tableName, at change.LSN) error {
	_, err := pgquery.Rows(ctx, l.conn, `update walferry.subscription_table set state = 'removed', removed_lsn = $4::pg_catalog.pg_lsn
		where subscription = $1 and schema_name = $2 and table_name = $3`, l.name, name.schema, name.table, at.String())
	if err != nil {
		return fmt.Errorf("record table %s: %w", name, err)
	}
	return nil
}

// setTables records the state of tables, in one transaction. Rows are made if
// they are missing.
func (l *ledger) setTables(ctx context.Context, state string, lsn change.LSN, targets ...target) error {
	if len(targets) == 0 {
		return nil
	}
	columns := make([][]string, 5)
	for _, t := range targets {
		for i, v := range []string{t.source.schema, t.source.table, t.schema, t.table, strconv.FormatUint(uint64(t.oid), 10)} {
			columns[i] = append(columns[i], v)
		}
	}
	args := []string{l.name, state, lsn.String()}
	for _, c := range columns {
		args = append(args, pgquery.TextArray(c))
	}
	_, err := pgquery.Rows(ctx, l.conn, `insert into walferry.subscription_table
			(subscription, schema_name, table_name, target_schema, target_table, state, copy_lsn, relation_oid)
		select $1, t.schema, t.name, t.target_schema, t.target_name, $2, $3::pg_catalog.pg_lsn, t.oid::pg_catalog.oid
		from unnest($4::text[], $5::text[], $6::text[], $7::text[], $8::text[]) as t(schema, name, target_schema, target_name, oid)
		on conflict (subscription, schema_name, table_name) do update
		set target_schema = excluded.target_schema, target_table = excluded.target_table,
		    state = excluded.state, copy_lsn = excluded.copy_lsn, relation_oid = excluded.relation_oid`, args...)
	if err != nil {
		return fmt.Errorf("record %s: %w", someTables(targets), err)
	}
	return nil
}

// someTables names a few of the tables.
func someTables(targets []target) string {
	if len(targets) == 1 {
		return "table " + targets[0].source.String()
	}
	return fmt.Sprintf("%d tables, the first %s", len(targets), targets[0].source)
}

// follow brings the ledger up to date with names and identities of the
// publisher's tables: a table that was renamed is the same table, and one that
// was dropped and made again under its name goes on under its name.
func (l *ledger) follow(ctx context.Context, known map[tableName]tableState, targets []target) error {
	published := make(map[tableName]bool, len(targets))
	byOID := make(map[change.OID]tableName, len(known))
	for _, t := range targets {
		published[t.source] = true
	}
	for name, k := range known {
		if k.oid != 0 {
			byOID[k.oid] = name
		}
	}
	for _, t := range targets {
		k, ok := known[t.source]
		old, renamed := byOID[t.oid]
		switch {
		case ok && k.oid != t.oid:
			if _, err := pgquery.Rows(ctx, l.conn, `update walferry.subscription_table set relation_oid = $4::pg_catalog.oid
				where subscription = $1 and schema_name = $2 and table_name = $3`,
				l.name, t.source.schema, t.source.table, strconv.FormatUint(uint64(t.oid), 10)); err != nil {
				return fmt.Errorf("record table %s: %w", t.source, err)
			}
			k.oid = t.oid
			known[t.source] = k
		case !ok && renamed && !published[old] && known[old].state == tableReady:
			if _, err := pgquery.Rows(ctx, l.conn, `update walferry.subscription_table
				set schema_name = $4, table_name = $5, target_schema = $6, target_table = $7
				where subscription = $1 and schema_name = $2 and table_name = $3`,
				l.name, old.schema, old.table, t.source.schema, t.source.table, t.schema, t.table); err != nil {
				return fmt.Errorf("record new name of table %s: %w", old, err)
			}
			known[t.source] = known[old]
			delete(known, old)
		}
	}
	return nil
}

// position returns the subscription's position. ok is false when it has none
// yet.
func (l *ledger) position(ctx context.Context) (pos change.LSN, ok bool, err error) {
	rows, err := pgquery.Rows(ctx, l.conn, `select coalesce(position::text, '') from walferry.subscription where name = $1`, l.name)
	if err != nil {
		return 0, false, fmt.Errorf("read walferry.subscription: %w", err)
	}
	if len(rows) == 0 || rows[0][0] == "" {
		return 0, false, nil
	}
	pos, err = change.ParseLSN(rows[0][0])
	if err != nil {
		return 0, false, fmt.Errorf("read position: %w", err)
	}
	return pos, true, nil
}

// subscriptionState is a row of walferry.subscription_state.
type subscriptionState struct {
	State      string
	Error      json.RawMessage
	ErrorCount int64
}

func (l *ledger) state(ctx context.Context) (subscriptionState, error) {
	rows, err := pgquery.Rows(ctx, l.conn, `select state, coalesce(error::text, ''), coalesce(error_count, 0)
		from walferry.subscription_state where name = $1`, l.name)
	if err != nil {
		return subscriptionState{}, fmt.Errorf("read walferry.subscription_state: %w", err)
	}
	var s subscriptionState
	if len(rows) == 0 {
		s.State = "initial"
		return s, nil
	}
	s.State = rows[0][0]
	if rows[0][1] != "" {
		s.Error = json.RawMessage(rows[0][1])
	}
	s.ErrorCount, err = strconv.ParseInt(rows[0][2], 10, 64)
	return s, err
}

// setState records the state of the subscription; a nil card clears the error.
func (l *ledger) setState(ctx context.Context, state string, card any) error {
	text, count := "", "0"
	if card != nil {
		b, err := json.Marshal(card)
		if err != nil {
			return fmt.Errorf("record state: %w", err)
		}
		text, count = string(b), "1"
	}
	_, err := pgquery.Rows(ctx, l.conn, `insert into walferry.subscription_state as s (name, state, error, error_count, updated_at)
		values ($1, $2, nullif($3, '')::jsonb, $4::bigint, now())
		on conflict (name) do update set state = excluded.state, error = excluded.error,
		  error_count = s.error_count + excluded.error_count, updated_at = now()`,
		l.name, state, text, count)
	if err != nil {
		return fmt.Errorf("record state: %w", err)
	}
	return nil
}

// setSkip asks the applier to skip the transaction with this commit LSN.
func (l *ledger) setSkip(ctx context.Context, lsn change.LSN) error {
	rows, err := pgquery.Rows(ctx, l.conn, `update walferry.subscription_state set skip_lsn = $2::pg_catalog.pg_lsn, updated_at = now()
		where name = $1 returning name`, l.name, lsn.String())
	if err != nil {
		return fmt.Errorf("record skip: %w", err)
	}
	if len(rows) == 0 {
		return errors.New("the subscription has no row in walferry.subscription_state: it has never run against this database")
	}
	return nil
}
