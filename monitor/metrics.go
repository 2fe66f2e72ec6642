package monitor

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Registry returns the metrics of the state, of Go and of the process, in a
// registry of their own.
func (s *State) Registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(
		&collector{s},
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return r
}

// collector reads the state when it is scraped, so that metrics and status
// document cannot disagree.
type collector struct{ s *State }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("walferry_"+name, help, labels, nil)
}

func pubDesc(name, help string, more ...string) *prometheus.Desc {
	return desc(name, help, append([]string{"publisher"}, more...)...)
}

func subDesc(name, help string, more ...string) *prometheus.Desc {
	return desc(name, help, append([]string{"subscription", "publisher"}, more...)...)
}

var (
	dBuild   = desc("build_info", "1, with the version as label.", "version")
	dStarted = desc("start_time_seconds", "When the process started, in seconds since 1970.")
	dHealthy = desc("healthy", "1 when /healthz says ok with the default limits.")

	dReaderState  = pubDesc("reader_state", "1 for the state that the log reader is in.", "state")
	dMessages     = pubDesc("reader_messages_total", "Messages received from the publisher.")
	dBytes        = pubDesc("reader_received_bytes_total", "Bytes received from the publisher.")
	dReadTxns     = pubDesc("reader_transactions_total", "Transactions put into the queue.")
	dReadRows     = pubDesc("reader_rows_total", "Row changes put into the queue.")
	dReadBatches  = pubDesc("reader_batches_total", "Batches put into the queue.")
	dQueuedBytes  = pubDesc("reader_queued_bytes_total", "Bytes of batches put into the queue.")
	dReconnects   = pubDesc("reader_reconnects_total", "Lost replication connections.")
	dReaderErrors = pubDesc("reader_errors_total", "Errors that the log reader could not go on after.")
	dReaderLag    = pubDesc("reader_lag_bytes", "WAL between the end of the queue and the end of the publisher's log as last heard.")
	dHeard        = pubDesc("reader_last_receive_timestamp_seconds", "When the last byte came from the publisher.")
	dServerLSN    = pubDesc("publisher_server_lsn", "End of the publisher's log as last heard, in bytes.")
	dReceivedLSN  = pubDesc("reader_received_lsn", "Position received, in bytes.")
	dQueuedLSN    = pubDesc("reader_queued_lsn", "Position that is durable in the queue, in bytes.")
	dConfirmedLSN = pubDesc("reader_confirmed_lsn", "Position confirmed to the slot, in bytes.")

	dQueueMessages = pubDesc("queue_messages", "Batches in the stream.")
	dQueueBytes    = pubDesc("queue_bytes", "Bytes in the stream.")
	dQueueMax      = pubDesc("queue_max_bytes", "Size at which the stream takes no more.")
	dQueueFirst    = pubDesc("queue_first_sequence", "Sequence of the oldest batch in the stream.")
	dQueueLast     = pubDesc("queue_last_sequence", "Sequence of the newest batch in the stream.")

	dSubState   = subDesc("subscription_state", "1 for the state that the subscription is in.", "state")
	dPosition   = subDesc("subscription_position_lsn", "Position applied, in bytes.")
	dLagBytes   = subDesc("subscription_lag_bytes", "WAL between the position and the end of the queue.")
	dLagSeconds = subDesc("subscription_lag_seconds", "Age of the oldest transaction that waits to be applied; absent when not known.")
	dLagTxns    = subDesc("subscription_lag_transactions", "Transactions that wait to be applied; absent when not known.")
	dTxns       = subDesc("subscription_transactions_total", "Transactions of the publisher that were applied.")
	dRows       = subDesc("subscription_rows_total", "Row changes that were applied, by operation.", "operation")
	dBatches    = subDesc("subscription_batches_total", "Batches that were applied.")
	dGroups     = subDesc("subscription_commits_total", "Commits on the subscriber.")
	dErrors     = subDesc("subscription_errors_total", "Failed attempts, by class.", "class")

	dCopyDone  = subDesc("copy_tables_done", "Tables whose copy is complete; present while copying.")
	dCopyTotal = subDesc("copy_tables", "Tables to copy; present while copying.")
	dCopyRows  = subDesc("copy_rows", "Rows copied; present while copying.")
	dCopyBytes = subDesc("copy_bytes", "Bytes copied; present while copying.")
	dCopySize  = subDesc("copy_expected_bytes", "Estimate of the bytes to copy; present while copying.")
)

// Describe sends nothing: which metrics exist depends on what runs.
func (*collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	healthy := c.s.Health(Limits{}).OK()
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	send := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, v, labels...)
	}
	send(dBuild, prometheus.GaugeValue, 1, c.s.version)
	send(dStarted, prometheus.GaugeValue, float64(c.s.started.UnixMilli())/1000)
	send(dHealthy, prometheus.GaugeValue, number(healthy))
	for _, p := range c.s.publishers {
		p.collect(send)
	}
	for _, b := range c.s.subscriptions {
		b.collect(send)
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

type sender func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string)

func (p *Publisher) collect(send sender) {
	counter := func(d *prometheus.Desc, v int64) { send(d, prometheus.CounterValue, float64(v), p.name) }
	gauge := func(d *prometheus.Desc, v float64) { send(d, prometheus.GaugeValue, v, p.name) }
	if p.reader {
		send(dReaderState, prometheus.GaugeValue, 1, p.name, p.shown(p.s.now()))
		counter(dMessages, p.messages)
		counter(dBytes, p.bytes)
		counter(dReadTxns, p.txns)
		counter(dReadRows, p.rows)
		counter(dReadBatches, p.batches)
		counter(dQueuedBytes, p.queuedBytes)
		counter(dReconnects, p.reconnects)
		counter(dReaderErrors, p.errors)
		gauge(dReaderLag, float64(p.lag()))
		gauge(dHeard, float64(p.heard.UnixMilli())/1000)
		gauge(dServerLSN, float64(p.server))
		gauge(dReceivedLSN, float64(p.received))
		gauge(dConfirmedLSN, float64(p.confirmed))
	}
	gauge(dQueuedLSN, float64(p.queued))
	if q := p.queue; q != nil {
		gauge(dQueueMessages, float64(q.Messages))
		gauge(dQueueBytes, float64(q.Bytes))
		if q.MaxBytes > 0 {
			gauge(dQueueMax, float64(q.MaxBytes))
		}
		gauge(dQueueFirst, float64(q.FirstSeq))
		gauge(dQueueLast, float64(q.LastSeq))
	}
}

func (b *Subscription) collect(send sender) {
	counter := func(d *prometheus.Desc, v int64, more ...string) {
		send(d, prometheus.CounterValue, float64(v), append([]string{b.name, b.publisher}, more...)...)
	}
	gauge := func(d *prometheus.Desc, v float64, more ...string) {
		send(d, prometheus.GaugeValue, v, append([]string{b.name, b.publisher}, more...)...)
	}
	st := b.status()
	gauge(dSubState, 1, st.State)
	gauge(dPosition, float64(st.Position))
	gauge(dLagBytes, float64(st.LagBytes))
	if st.LagSeconds != nil {
		gauge(dLagSeconds, *st.LagSeconds)
	}
	if st.LagTransactions != nil {
		gauge(dLagTxns, float64(*st.LagTransactions))
	}
	counter(dTxns, b.txns)
	counter(dRows, b.ops.Inserts, "insert")
	counter(dRows, b.ops.Updates, "update")
	counter(dRows, b.ops.Deletes, "delete")
	counter(dRows, b.ops.Truncates, "truncate")
	counter(dRows, b.ops.Skipped, "skip")
	counter(dBatches, b.batches)
	counter(dGroups, b.groups)
	for class, n := range b.errors {
		counter(dErrors, n, class)
	}
	if c := st.Copy; c != nil {
		gauge(dCopyDone, float64(c.TablesDone))
		gauge(dCopyTotal, float64(c.TablesTotal))
		gauge(dCopyRows, float64(c.Rows))
		gauge(dCopyBytes, float64(c.Bytes))
		gauge(dCopySize, float64(c.BytesTotal))
	}
}
