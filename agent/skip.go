package agent

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/config"
)

// Skip tells a stopped subscription to leave out exactly the transaction that
// stopped it. lsn is its commit LSN, as the error card shows it: naming it
// again is the confirmation that this transaction is meant. The applier records
// every row that it leaves out in walferry.exceptions.
func Skip(ctx context.Context, cfg *config.Config, subscription string, lsn change.LSN) error {
	subs, err := selectSubscriptions(cfg, []string{subscription})
	if err != nil {
		return err
	}
	conn, err := connect(ctx, subs[0].URL, "skip")
	if err != nil {
		return fmt.Errorf("connect to the subscriber: %w", err)
	}
	defer closeConn(conn)
	l := &ledger{conn: conn, name: subscription}
	if ok, err := l.exists(ctx); err != nil || !ok {
		if err == nil {
			err = fmt.Errorf("subscription %s has never run against this database", subscription)
		}
		return err
	}
	st, err := l.state(ctx)
	if err != nil {
		return err
	}
	var card struct {
		CommitLSN string `json:"commit_lsn"`
	}
	if st.State != "error" || json.Unmarshal(st.Error, &card) != nil || card.CommitLSN == "" {
		return fmt.Errorf("subscription %s is not stopped by a transaction (state %s): there is nothing to skip", subscription, st.State)
	}
	if at, err := change.ParseLSN(card.CommitLSN); err != nil || at != lsn {
		return fmt.Errorf("subscription %s is stopped by the transaction with commit LSN %s, not by %s", subscription, card.CommitLSN, lsn)
	}
	return l.setSkip(ctx, lsn)
}
