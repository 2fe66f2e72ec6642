package source

import (
	"context"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/source/pgoutput"
)

// Command is one entry of the log as the log reader would get it next.
type Command struct {
	XID       change.XID
	CommitLSN change.LSN
	EndLSN    change.LSN // commit only
	Kind      pgoutput.Kind
	Schema    string // of row changes
	Table     string
	Truncated []string // tables of a truncate
	Columns   []change.Column
	Old, New  []change.Value // owned
}

// PeekCommands returns the next transactions of a slot, whole ones, until they
// are at least limit messages. It reads a temporary copy of the slot
// (pg_copy_logical_replication_slot, PostgreSQL 12 and later), so the slot
// itself does not move and may be in use.
func PeekCommands(ctx context.Context, conn *pgconn.PgConn, slot string, publications []string, limit int) ([]Command, error) {
	name := fmt.Sprintf("walferry_peek_%d", conn.PID())
	if _, err := query(ctx, conn, "copy slot "+slot, "SELECT pg_catalog.pg_copy_logical_replication_slot("+
		sqlw.QuoteLiteral(slot)+", "+sqlw.QuoteLiteral(name)+", true)"); err != nil {
		return nil, err
	}
	defer func() {
		_, _ = query(context.WithoutCancel(ctx), conn, "drop copy", "SELECT pg_catalog.pg_drop_replication_slot("+sqlw.QuoteLiteral(name)+")")
	}()
	names := ""
	for i, p := range publications {
		if i > 0 {
			names += ","
		}
		names += sqlw.QuoteIdent(p)
	}
	rows, err := query(ctx, conn, "peek at slot "+slot, "SELECT pg_catalog.encode(data, 'hex') FROM pg_catalog.pg_logical_slot_peek_binary_changes("+
		sqlw.QuoteLiteral(name)+", NULL, "+strconv.Itoa(limit)+", 'proto_version', '1', 'publication_names', "+sqlw.QuoteLiteral(names)+")")
	if err != nil {
		return nil, err
	}
	var p peeker
	for _, r := range rows {
		msg, err := hex.DecodeString(r[0])
		if err != nil {
			return nil, fmt.Errorf("peek at slot %s: %w", slot, err)
		}
		if err := p.message(msg); err != nil {
			return nil, fmt.Errorf("peek at slot %s: %w", slot, err)
		}
	}
	return p.commands, nil
}

// peeker collects commands.
type peeker struct {
	dec      pgoutput.Decoder
	rels     map[change.OID]*change.Relation
	xid      change.XID
	commit   change.LSN
	commands []Command
}

func (p *peeker) message(msg []byte) error {
	m, err := p.dec.Decode(msg)
	if err != nil {
		return err
	}
	c := Command{Kind: m.Kind, Old: m.Old, New: m.New}
	switch m.Kind {
	case pgoutput.Relation:
		if p.rels == nil {
			p.rels = map[change.OID]*change.Relation{}
		}
		p.rels[m.RelationOID] = m.Relation
		return nil
	case pgoutput.Begin:
		p.xid, p.commit = m.XID, m.LSN
	case pgoutput.Commit:
		c.EndLSN = m.EndLSN
	case pgoutput.Insert, pgoutput.Update, pgoutput.Delete:
		if r := p.rels[m.RelationOID]; r != nil {
			c.Schema, c.Table, c.Columns = r.Schema, r.Name, r.Columns
		}
		// Each message has its own bytes; only the slices are the decoder's.
		c.Old = append([]change.Value(nil), m.Old...)
		c.New = append([]change.Value(nil), m.New...)
	case pgoutput.Truncate:
		for _, oid := range m.Relations {
			if r := p.rels[oid]; r != nil {
				c.Truncated = append(c.Truncated, sqlw.QuoteIdent(r.Schema)+"."+sqlw.QuoteIdent(r.Name))
			}
		}
	default:
		return nil
	}
	c.XID, c.CommitLSN = p.xid, p.commit
	p.commands = append(p.commands, c)
	return nil
}
