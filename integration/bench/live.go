package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Latency is what one method did at one rate.
type Latency struct {
	Method    Method
	Rate      int // transactions per second that were asked for
	Achieved  float64
	P50, P99  time.Duration
	Max       time.Duration
	Sustained bool // everything was visible within a second of the end
	CPU       cost
}

// liveSchema is a small table, as an application writes it.
const liveSchema = "CREATE TABLE live (id bigint PRIMARY KEY, kind int, payload text, ts timestamptz DEFAULT now())"

const (
	liveTime   = 10 * time.Second // of each measurement
	rampTime   = 5 * time.Second  // of each step of the search
	livePoll   = 500 * time.Microsecond
	caughtUp   = time.Second
	liveDB     = "live"
	liveWriter = 16 // connections; each commit waits for the disk, as what is not on it is not sent
)

// ramp are the rates that are tried for the highest that all methods sustain.
var ramp = []int{500, 1000, 2000, 3000, 4000, 6000, 8000, 12000}

// live measures every method at some rates.
func (p *pair) live(ctx context.Context, rates []int, runs int) (out []Latency, err error) {
	p.db = liveDB
	methods := []Method{Native, Slot}
	if err := p.pub.exec(ctx, "postgres", "CREATE DATABASE "+liveDB); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.pub.dropDatabase(ctx, liveDB), p.sub.dropDatabase(ctx, "run")) }()
	if err := p.pub.exec(ctx, liveDB, liveSchema, "CREATE PUBLICATION "+publication+" FOR TABLES IN SCHEMA public"); err != nil {
		return nil, err
	}
	if len(rates) == 0 {
		highest, err := p.highest(ctx, methods)
		if err != nil {
			return nil, err
		}
		rates = []int{200, highest}
	}
	for _, rate := range rates {
		for _, m := range methods {
			var all []Latency
			for range runs {
				l, err := p.liveOnce(ctx, m, rate, liveTime)
				if err != nil {
					return nil, err
				}
				all = append(all, l)
			}
			slices.SortFunc(all, func(a, b Latency) int { return int(a.P50 - b.P50) })
			out = append(out, all[len(all)/2])
		}
	}
	return out, nil
}

// highest is the highest rate that all methods sustain.
func (p *pair) highest(ctx context.Context, methods []Method) (rate int, err error) {
	for _, r := range ramp {
		for _, m := range methods {
			l, err := p.liveOnce(ctx, m, r, rampTime)
			if err != nil || !l.Sustained {
				return rate, err
			}
		}
		rate = r
	}
	return rate, nil
}

// liveOnce measures one method at one rate.
func (p *pair) liveOnce(ctx context.Context, m Method, rate int, d time.Duration) (l Latency, err error) {
	if err := p.sub.dropDatabase(ctx, "run"); err != nil {
		return l, err
	}
	if err := p.sub.exec(ctx, "postgres", "CREATE DATABASE run", "CHECKPOINT"); err != nil {
		return l, err
	}
	if err := p.sub.exec(ctx, "run", liveSchema); err != nil {
		return l, err
	}
	if err := p.pub.exec(ctx, liveDB, "TRUNCATE live", "CHECKPOINT"); err != nil {
		return l, err
	}
	stop, ferry, err := p.subscribe(ctx, m)
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	w := &writer{rate: rate}
	if err := w.warm(ctx, p); err != nil {
		return l, err
	}
	before := 0 * time.Second
	if ferry != nil {
		before = cpuTime(ferry.pid())
	}
	cpu0 := cost{}
	if err := p.backends(ctx, &cpu0); err != nil {
		return l, err
	}
	if l, err = w.measure(ctx, p, d); err != nil {
		return l, err
	}
	l.Method, l.Rate = m, rate
	if err := p.backends(ctx, &l.CPU); err != nil {
		return l, err
	}
	l.CPU.Sender -= cpu0.Sender
	l.CPU.Apply -= cpu0.Apply
	if ferry != nil {
		l.CPU.Ferry, l.CPU.Memory = cpuTime(ferry.pid())-before, peakRSS(ferry.pid())
	}
	p.log("live %-15s %5d/s: achieved %7.0f, p50 %6.2f ms, p99 %7.2f ms, max %7.2f ms; CPU: sender %4.1f, subscriber %4.1f, walferry %4.1f", m, rate, l.Achieved,
		ms(l.P50), ms(l.P99), ms(l.Max), l.CPU.Sender.Seconds(), l.CPU.Apply.Seconds(), l.CPU.Ferry.Seconds())
	return l, nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// subscribe starts a method and returns what ends it.
func (p *pair) subscribe(ctx context.Context, m Method) (stop func() error, f *process, err error) {
	if m == Native {
		err := p.sub.exec(ctx, "run", fmt.Sprintf(`CREATE SUBSCRIPTION s CONNECTION 'host=127.0.0.1 port=%d user=postgres dbname=%s' PUBLICATION %s
			WITH (slot_name = '%s', copy_data = false, binary = off, streaming = off)`, p.pub.Port(), liveDB, publication, drainSlot))
		return func() error { return p.sub.exec(ctx, "run", "DROP SUBSCRIPTION s") }, nil, err
	}
	file, dir, err := p.config("", p.publisher("off")+fmt.Sprintf("subscriptions: [{name: bench, publisher: main, url: '%s', initial: none, schema: require}]\n", p.sub.URL("run")))
	if err != nil {
		return nil, nil, err
	}
	if f, err = p.start("run", file); err != nil {
		return nil, nil, err
	}
	return func() error { return errors.Join(f.stop(), p.dropSlot(ctx), os.RemoveAll(dir)) }, f, nil
}

// writer commits small transactions at a rate and notes when.
type writer struct {
	rate    int
	commits []time.Time // by id; each is written by one goroutine and read at the end
}

// warm writes until the subscriber shows it, so that start-up is not measured.
func (w *writer) warm(ctx context.Context, p *pair) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for i := 1; ; i++ {
		if err := p.pub.exec(ctx, liveDB, fmt.Sprintf("INSERT INTO live VALUES (%d, 0, 'warm')", -i)); err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond) // polls
		v, err := p.sub.get(ctx, "run", "SELECT count(*)::text FROM live")
		if err != nil {
			return err
		}
		if v != "0" && i > 10 {
			return nil
		}
	}
}

// measure writes for some time and looks at the subscriber all the while.
func (w *writer) measure(ctx context.Context, p *pair, d time.Duration) (l Latency, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	total := int(float64(w.rate) * d.Seconds())
	w.commits = make([]time.Time, total+1)
	reader, err := pgx.Connect(ctx, p.sub.URL("run"))
	if err != nil {
		return l, err
	}
	defer reader.Close(context.WithoutCancel(ctx))
	began := time.Now()
	var wg sync.WaitGroup
	errs := make(chan error, liveWriter)
	for c := range liveWriter {
		wg.Go(func() {
			if err := w.write(ctx, p, c, began, total); err != nil {
				errs <- err
				cancel()
			}
		})
	}
	ended := make(chan time.Time, 1)
	go func() {
		wg.Wait()
		ended <- time.Now()
	}()
	seen := make([]time.Time, total+1)
	next := 1
	var end time.Time
	for {
		select {
		case end = <-ended:
		default:
		}
		rows, err := reader.Query(ctx, "SELECT id FROM live WHERE id >= $1 ORDER BY id", next)
		if err != nil {
			return l, errors.Join(err, first(errs))
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[int])
		now := time.Now()
		if err != nil {
			return l, errors.Join(err, first(errs))
		}
		for _, id := range ids {
			if seen[id].IsZero() {
				seen[id] = now
			}
		}
		for next <= total && !seen[next].IsZero() {
			next++
		}
		if next > total {
			break
		}
		if !end.IsZero() && now.Sub(end) > 60*time.Second {
			return l, fmt.Errorf("only %d of %d transactions arrived", next-1, total)
		}
		time.Sleep(livePoll)
	}
	if end.IsZero() {
		end = <-ended
	}
	last := time.Time{}
	lat := make([]time.Duration, 0, total)
	for id := 1; id <= total; id++ {
		lat = append(lat, max(0, seen[id].Sub(w.commits[id])))
		if seen[id].After(last) {
			last = seen[id]
		}
	}
	slices.Sort(lat)
	l.P50, l.P99, l.Max = lat[total/2], lat[total*99/100], lat[total-1]
	l.Achieved = float64(total) / end.Sub(began).Seconds()
	l.Sustained = last.Sub(end) < caughtUp && l.Achieved > 0.97*float64(w.rate)
	return l, nil
}

func first(errs chan error) error {
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// write commits every liveWriter-th transaction at its time.
func (w *writer) write(ctx context.Context, p *pair, c int, began time.Time, total int) error {
	conn, err := pgx.Connect(ctx, p.pub.URL(liveDB))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for id := c + 1; id <= total; id += liveWriter {
		at := began.Add(time.Duration(float64(id) / float64(w.rate) * float64(time.Second)))
		if pause := time.Until(at); pause > 0 {
			time.Sleep(pause)
		}
		if _, err := conn.Exec(ctx, "INSERT INTO live VALUES ($1, $2, $3)", id, id%100, "payload-xxxxxxxxxxxxxxxxxxxxxxxxx"); err != nil {
			return err
		}
		w.commits[id] = time.Now()
	}
	return nil
}
