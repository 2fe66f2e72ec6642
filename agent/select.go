package agent

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/config"
	"github.com/walferry/walferry/source"
	"github.com/walferry/walferry/source/snapshot"
)

// publications names what a publisher's slot reads: the configured ones, or
// the one that walferry makes.
func publications(p *config.Publisher) []string {
	if len(p.Publications) > 0 {
		return p.Publications
	}
	return []string{ownPublication(p)}
}

func ownPublication(p *config.Publisher) string { return "walferry_" + p.Name }

// selectSubscriptions returns the named subscriptions, or all.
func selectSubscriptions(cfg *config.Config, names []string) ([]*config.Subscription, error) {
	if len(names) == 0 {
		out := make([]*config.Subscription, len(cfg.Subscriptions))
		for i := range cfg.Subscriptions {
			out[i] = &cfg.Subscriptions[i]
		}
		return out, nil
	}
	var out []*config.Subscription
	for _, n := range names {
		s := cfg.SubscriptionByName(n)
		if s == nil {
			var have []string
			for i := range cfg.Subscriptions {
				have = append(have, cfg.Subscriptions[i].Name)
			}
			return nil, fmt.Errorf("subscription %q is not in the configuration, which has: %s", n, strings.Join(have, ", "))
		}
		out = append(out, s)
	}
	return out, nil
}

// mapTable says where a subscription puts a table of its publisher; ok is
// false when it does not take it.
func mapTable(s *config.Subscription, schema, table string) (targetSchema, targetTable string, ok bool) {
	if ownSchema(schema) || !s.Tables.Match(schema, table) {
		return "", "", false
	}
	targetSchema, targetTable = s.Rename.Target(schema, table)
	return targetSchema, targetTable, true
}

// selectTables asks the publisher which tables are published for the
// subscription.
func selectTables(ctx context.Context, pub *pgconn.PgConn, p *config.Publisher, s *config.Subscription) ([]target, []snapshot.TableMap, error) {
	published, err := source.PublishedTables(ctx, pub, publications(p))
	if err != nil {
		return nil, nil, err
	}
	var targets []target
	var maps []snapshot.TableMap
	for _, t := range published {
		schema, table, ok := mapTable(s, t.Schema, t.Name)
		if !ok {
			continue
		}
		targets = append(targets, target{source: tableName{t.Schema, t.Name}, oid: t.OID, schema: schema, table: table})
		m := snapshot.TableMap{
			SourceSchema: t.Schema, SourceName: t.Name, TargetSchema: schema, TargetName: table,
			Columns: make([]string, len(t.Columns)), RowFilter: t.RowFilter, Kind: 'r',
		}
		for i, c := range t.Columns {
			m.Columns[i] = c.Name
		}
		if t.Partitioned {
			m.Kind = 'p'
		}
		maps = append(maps, m)
	}
	return targets, maps, nil
}
