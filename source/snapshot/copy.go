package snapshot

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/walferry/walferry/internal/pgquery"
)

const (
	// pipeBuffer is what is passed from one connection to the other at once,
	// in bytes. The publisher's rows come one by one.
	pipeBuffer    = 256 << 10
	progressEvery = 250 * time.Millisecond
)

// A CountError says that rows got lost or doubled on their way.
type CountError struct{ Sent, Forwarded, Stored int64 }

func (e *CountError) Error() string {
	return fmt.Sprintf("the publisher sent %d rows, %d were forwarded and the subscriber stored %d: nothing was kept", e.Sent, e.Forwarded, e.Stored)
}

// copyTable copies one table in one transaction of the subscriber.
func (w *worker) copyTable(ctx context.Context, p *plan) (TableResult, error) {
	r := w.r
	start := time.Now()
	res := TableResult{TableMap: p.TableMap, CopyLSN: r.point.lsn}
	r.stall.move()
	ready, lsn, err := w.out.begin(ctx, r.o.Subscription, p.TableMap)
	if err != nil {
		return res, err
	}
	if ready {
		res.Skipped, res.CopyLSN = true, lsn
		return res, nil
	}
	m := &meter{r: r, p: Progress{Table: p.TableMap, Started: start, EstimatedRows: p.estimatedRows, EstimatedBytes: p.estimatedBytes}}
	r.tell(func(e *Events) { e.tableStarted(m.p) })
	var stored int64
	if err := w.out.makeEmpty(ctx, r.o.Subscription, p); err != nil {
		w.out.rollback(ctx)
		return res, err
	}
	err = w.unlocked(ctx, func() (err error) {
		if stored, err = w.transfer(ctx, p, m); err != nil {
			return err
		}
		return w.sameFiles(ctx, p)
	})
	if err == nil {
		err = w.recheck(ctx, p)
	}
	if err == nil {
		err = w.out.commit(ctx, r.o.Subscription, p.TableMap, r.point.lsn, m.p.Rows)
	}
	if err != nil {
		w.out.rollback(ctx)
		return res, err
	}
	m.show()
	res.Rows, res.Bytes, res.Duration = m.p.Rows, m.p.Bytes, time.Since(start)
	r.copied(p, res, stored)
	return res, nil
}

// copied logs that the rows of a table are there.
func (r *run) copied(p *plan, res TableResult, stored int64) {
	if stored != res.Rows {
		r.log.Warn("a BEFORE trigger of the subscriber dropped rows", "table", p.Target(), "sent", res.Rows, "stored", stored)
	}
	r.log.Info("table copied", "table", p.Source(), "rows", res.Rows, "bytes", res.Bytes, "duration", res.Duration)
}

// transfer moves the rows and compares the counts.
func (w *worker) transfer(ctx context.Context, p *plan, m *meter) (stored int64, err error) {
	var sent int64
	if p.rowsOnly() {
		sent, stored, err = w.transferEmpty(ctx, p)
		m.p.Rows = sent
	} else {
		sent, stored, err = w.pipe(ctx, p.statements, m)
	}
	if err != nil {
		return 0, err
	}
	if sent != m.p.Rows || stored > sent || stored < sent && !p.mayDrop {
		return 0, &CountError{Sent: sent, Forwarded: m.p.Rows, Stored: stored}
	}
	return stored, nil
}

// transferEmpty copies rows without columns; the subscriber's defaults fill
// what it has more.
func (w *worker) transferEmpty(ctx context.Context, p *plan) (sent, stored int64, err error) {
	c, err := pgquery.One(ctx, w.in.conn, p.reads)
	if err != nil {
		return 0, 0, fmt.Errorf("read from publisher: %w", err)
	}
	if sent, err = strconv.ParseInt(c[0], 10, 64); err != nil {
		return 0, 0, fmt.Errorf("read from publisher: %w", err)
	}
	done := w.out.conn.ExecParams(ctx, "INSERT INTO "+p.Target()+" SELECT FROM pg_catalog.generate_series(1, $1::int8)",
		[][]byte{[]byte(c[0])}, nil, nil, nil).Read()
	if done.Err != nil {
		return 0, 0, fmt.Errorf("write to subscriber: %w", done.Err)
	}
	return sent, done.CommandTag.RowsAffected(), nil
}

// statements move rows.
type statements struct {
	// reads is a COPY ... TO STDOUT, or a count for a table without columns, of which
	// COPY has nothing to say.
	reads  string
	writes string // COPY ... FROM STDIN
	binary bool   // the format; false: text
}

// pipe runs COPY TO and COPY FROM at the same time. The end of data is passed
// on only when the publisher has finished without an error.
func (w *worker) pipe(ctx context.Context, p statements, m *meter) (sent, stored int64, err error) {
	pr, pw := io.Pipe()
	// A blocked pipe does not notice the end of ctx.
	stop := context.AfterFunc(ctx, func() { pw.CloseWithError(context.Cause(ctx)) })
	defer stop()
	var readErr error
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.w, m.wait = bufio.NewWriterSize(pw, pipeBuffer), func(n int) error { return w.r.throttle.wait(ctx, n) }
		var tag pgconn.CommandTag
		if tag, readErr = w.in.conn.CopyTo(ctx, m, p.reads); readErr == nil {
			readErr = m.w.Flush()
		}
		sent = tag.RowsAffected()
		if readErr == nil && p.binary {
			m.p.Rows-- // the last message is the trailer
		}
		if readErr == nil && sent != m.p.Rows {
			readErr = &CountError{Sent: sent, Forwarded: m.p.Rows}
		}
		pw.CloseWithError(readErr) // nil: the reader gets io.EOF
	}()
	tag, writeErr := w.out.conn.CopyFrom(ctx, pr, p.writes)
	pr.CloseWithError(errWriterGone)
	<-done
	switch {
	case ctx.Err() != nil:
		return 0, 0, context.Cause(ctx)
	case readErr != nil && !errors.Is(readErr, errWriterGone):
		return 0, 0, fmt.Errorf("read from publisher: %w", readErr)
	case writeErr != nil:
		return 0, 0, fmt.Errorf("write to subscriber: %w", writeErr)
	case readErr != nil:
		return 0, 0, readErr
	}
	return sent, tag.RowsAffected(), nil
}

var errWriterGone = errors.New("the subscriber's side has ended")

// meter counts what passes. PostgreSQL sends one CopyData message for each row,
// in binary format one more at the end, and pgconn makes one Write of it.
type meter struct {
	r    *run
	w    *bufio.Writer
	p    Progress
	next time.Time

	task  *task    // not nil: p is that of a part
	quiet bool     // not rows of the table
	told  Progress // what the task knows of p

	wait func(n int) error // until n more bytes may be read
}

func (m *meter) Write(b []byte) (int, error) {
	m.p.Rows++
	m.p.Bytes += int64(len(b))
	if now := time.Now(); now.After(m.next) {
		m.next = now.Add(progressEvery)
		m.r.stall.move()
		m.show()
	}
	if err := m.wait(len(b)); err != nil {
		return 0, err
	}
	return m.w.Write(b)
}

// show tells how far the table is.
func (m *meter) show() {
	if m.quiet {
		return
	}
	p := m.p
	if t := m.task; t != nil {
		t.mu.Lock()
		t.shown.Rows += m.p.Rows - m.told.Rows
		t.shown.Bytes += m.p.Bytes - m.told.Bytes
		m.told = m.p
		p = t.shown
		t.mu.Unlock()
	}
	m.r.tell(func(e *Events) { e.tableProgress(p) })
}
