package preflight

import (
	"context"
	"sync"

	"github.com/walferry/walferry/config"
)

// publisher and subscriber are the two kinds of sides.
type publisher struct {
	side
	cfg    *config.Publisher
	tables []*table // published; empty without a connection
	copies bool     // a subscription wants its initial copy
}

type subscriber struct {
	side
	cfg         *config.Subscription
	pub         *publisher // nil: the configuration has none of that name
	knownSystem string     // system identifier of the publisher at the last run
	pairs       []pairing
}

// Check looks at both sides of everything in the configuration. What is wrong
// is in the report; the error is only for a ctx that ended.
func Check(ctx context.Context, cfg *config.Config) (*Report, error) {
	var order []string
	var pubs []*publisher
	byName := map[string]*publisher{}
	for i := range cfg.Publishers {
		c := &cfg.Publishers[i]
		p := &publisher{side: side{name: "publisher " + c.Name, url: c.URL}, cfg: c}
		pubs, byName[c.Name] = append(pubs, p), p
		order = append(order, p.name)
	}
	var subs []*subscriber
	for i := range cfg.Subscriptions {
		c := &cfg.Subscriptions[i]
		s := &subscriber{side: side{name: "subscription " + c.Name, url: c.URL}, cfg: c, pub: byName[c.Publisher]}
		if s.pub != nil && c.Initial == config.InitialCopy {
			s.pub.copies = true
		}
		subs = append(subs, s)
		order = append(order, s.name)
	}
	var wg sync.WaitGroup
	for _, p := range pubs {
		wg.Go(func() { p.check(ctx) })
	}
	for _, s := range subs {
		wg.Go(func() { s.check(ctx) })
	}
	wg.Wait()
	r := &Report{Findings: checkQueue(ctx, cfg)}
	for _, s := range subs {
		s.compare(ctx)
	}
	crossChecks(pubs, subs)
	for _, p := range pubs {
		p.close()
		r.Findings = append(r.Findings, p.findings...)
	}
	for _, s := range subs {
		s.close()
		r.Findings = append(r.Findings, s.findings...)
	}
	r.sort(append(order, queueSide))
	return r, ctx.Err()
}

func (p *publisher) check(ctx context.Context) {
	if p.open(ctx); p.conn == nil {
		return
	}
	p.walLevel()
	p.inRecovery()
	p.walSettings()
	p.replicationRole(ctx)
	p.slot(ctx)
	p.capacity(ctx)
	p.publications(ctx)
	p.identities()
	p.rights()
	p.longTransactions(ctx)
}

func (s *subscriber) check(ctx context.Context) {
	if s.open(ctx); s.conn == nil {
		return
	}
	s.writable()
	s.ownSchema(ctx)
	s.sessionRole(ctx)
	s.origins(ctx)
}
