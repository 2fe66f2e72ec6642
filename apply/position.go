package apply

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/change"
)

// SetPosition gives a subscription its position, an end LSN. Transactions whose
// commit LSN is lower count as applied. system is the identifier of the
// publisher's cluster, 0 if it is not known: the first batch tells then.
func SetPosition(ctx context.Context, conn *pgconn.PgConn, subscription string, pos change.LSN, system uint64) error {
	var id []byte
	if system != 0 {
		id = strconv.AppendUint(nil, system, 10)
	}
	r := conn.ExecParams(ctx, `INSERT INTO walferry.subscription AS s (name, position, system_id) VALUES ($1, $2::pg_lsn, $3)
		ON CONFLICT (name) DO UPDATE SET position = excluded.position, system_id = excluded.system_id,
		  last_commit = NULL, last_xid = NULL, last_time = NULL, epoch = s.epoch + 1, updated_at = now()`,
		[][]byte{[]byte(subscription), []byte(pos.String()), id}, nil, nil, nil).Read()
	if r.Err != nil {
		return fmt.Errorf("set position of subscription %s: %w", subscription, r.Err)
	}
	return nil
}

// readPosition reads the position and what it stands on.
func readPosition(s *sqlw.Session, subscription string) (change.LSN, footing, error) {
	var f footing
	rows, err := s.Query(`SELECT position::text, coalesce(system_id, '0'), coalesce(last_commit, '0/0')::text, coalesce(last_xid, 0)::text,
		(extract(epoch FROM last_time) * 1000000)::int8::text FROM walferry.subscription WHERE name = $1`, subscription)
	if err != nil {
		return 0, f, fmt.Errorf("read walferry.subscription: %w", err)
	}
	if len(rows) == 0 || rows[0][0] == nil {
		return 0, f, ErrNoPosition
	}
	pos, err := change.ParseLSN(string(rows[0][0]))
	if err != nil {
		return 0, f, fmt.Errorf("read position: %w", err)
	}
	if f, err = parseFooting(rows[0][1:]); err != nil {
		return 0, f, fmt.Errorf("read walferry.subscription: %w", err)
	}
	return pos, f, nil
}

func parseFooting(v [][]byte) (f footing, err error) {
	if f.system, err = strconv.ParseUint(string(v[0]), 10, 64); err != nil {
		return f, fmt.Errorf("system identifier: %w", err)
	}
	if f.commit, err = change.ParseLSN(string(v[1])); err != nil {
		return f, err
	}
	xid, err := strconv.ParseUint(string(v[2]), 10, 32)
	if err != nil {
		return f, fmt.Errorf("xid: %w", err)
	}
	f.xid = change.XID(xid)
	if v[3] != nil {
		us, err := strconv.ParseInt(string(v[3]), 10, 64)
		if err != nil {
			return f, fmt.Errorf("commit time: %w", err)
		}
		f.time = time.UnixMicro(us).UTC()
	}
	return f, nil
}

// OriginName is the replication origin that marks the commits of a
// subscription.
func OriginName(subscription string) string { return "walferry_" + subscription }
