package apply

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/apply/sqlw"
	"github.com/walferry/walferry/change"
)

// SetPosition gives a subscription its position, an end LSN. Transactions whose
// commit LSN is lower count as applied.
func SetPosition(ctx context.Context, conn *pgconn.PgConn, subscription string, pos change.LSN) error {
	r := conn.ExecParams(ctx, `INSERT INTO walferry.subscription AS s (name, position) VALUES ($1, $2::pg_lsn)
		ON CONFLICT (name) DO UPDATE SET position = excluded.position, epoch = s.epoch + 1, updated_at = now()`,
		[][]byte{[]byte(subscription), []byte(pos.String())}, nil, nil, nil).Read()
	if r.Err != nil {
		return fmt.Errorf("set position of subscription %s: %w", subscription, r.Err)
	}
	return nil
}

func readPosition(s *sqlw.Session, subscription string) (change.LSN, error) {
	rows, err := s.Query(`SELECT position::text FROM walferry.subscription WHERE name = $1`, subscription)
	if err != nil {
		return 0, fmt.Errorf("read walferry.subscription: %w", err)
	}
	if len(rows) == 0 || rows[0][0] == nil {
		return 0, ErrNoPosition
	}
	return change.ParseLSN(string(rows[0][0]))
}

// OriginName is the replication origin that marks the commits of a
// subscription.
func OriginName(subscription string) string { return "walferry_" + subscription }
