package main

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/walferry/walferry/change"
	"github.com/walferry/walferry/monitor"
)

// writeStatus writes a document for people. flag is what commands need to find
// the configuration.
func writeStatus(w io.Writer, d *monitor.Document, now time.Time, flag string) error {
	var b bytes.Buffer
	if d.PID != 0 {
		fmt.Fprintf(&b, "walferry %s, pid %d, up %s\n\n", d.Version, d.PID, ago(now, d.Started))
	} else {
		fmt.Fprint(&b, "no walferry process runs in this data folder\n\n")
	}
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "PUBLISHER\tSTATE\tSINCE\tSERVER\tQUEUED\tCONFIRMED\tLAG\tTX\tROWS\tQUEUE")
	for i := range d.Publishers {
		p := &d.Publishers[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\n", p.Name, p.State, ago(now, p.Since), lsn(p.ServerLSN), lsn(p.QueuedLSN),
			lsn(p.ConfirmedLSN), monitor.Bytes(p.LagBytes), p.Transactions, p.Rows, queueText(p.Queue))
	}
	fmt.Fprintln(t)
	fmt.Fprintln(t, "SUBSCRIPTION\tSTATE\tSINCE\tPUBLISHER\tPOSITION\tBATCH\tLAG\tTX WAITING\tTX\tROWS")
	for i := range d.Subscriptions {
		s := &d.Subscriptions[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\n", s.Name, s.State, ago(now, s.Since), s.Publisher, lsn(s.Position),
			number(s.QueuePosition), lagText(s), waitingText(s), s.Transactions, s.Rows)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i := range d.Publishers {
		publisherDetails(&b, &d.Publishers[i])
	}
	for i := range d.Subscriptions {
		s := &d.Subscriptions[i]
		if c := s.Copy; c != nil {
			fmt.Fprintf(&b, "\ncopy of subscription %s: %d of %d tables, %d rows, %s%s\n", s.Name, c.TablesDone, c.TablesTotal, c.Rows,
				monitor.Bytes(c.Bytes), expected(c))
		}
		if w := s.Waiting; w != nil {
			fmt.Fprintf(&b, "\nWAITING: subscription %s stands still for %s\n", s.Name, ago(now, w.Since))
			field(&b, "for", w.For)
		}
		if s.Error != nil {
			errorCard(&b, s, now, flag)
		}
	}
	_, err := w.Write(trimLines(b.Bytes()))
	return err
}

// trimLines removes the spaces that a table leaves at line ends.
func trimLines(b []byte) []byte {
	var out bytes.Buffer
	for line := range bytes.Lines(b) {
		out.Write(bytes.TrimRight(line, " \n"))
		out.WriteByte('\n')
	}
	return out.Bytes()
}

func publisherDetails(b *bytes.Buffer, p *monitor.PublisherStatus) {
	if p.Queue != nil && p.Queue.Durability != "" {
		fmt.Fprintf(b, "\nqueue of publisher %s: stream %s, batches %d-%d; an acknowledgement means: %s\n", p.Name, p.Queue.Stream,
			p.Queue.FirstSeq, p.Queue.LastSeq, p.Queue.Durability)
	}
	if p.LastError != "" {
		fmt.Fprintf(b, "\nERROR of publisher %s (slot %s)\n", p.Name, orDash(p.Slot))
		field(b, "message", p.LastError)
	}
}

// errorCard writes everything that resolves an error.
func errorCard(b *bytes.Buffer, s *monitor.SubscriptionStatus, now time.Time, flag string) {
	e := s.Error
	fmt.Fprintf(b, "\nERROR of subscription %s\n", s.Name)
	field(b, "message", e.Message)
	field(b, "detail", e.Detail)
	field(b, "class", e.Class)
	field(b, "sqlstate", e.SQLState)
	field(b, "table", e.Table)
	field(b, "constraint", e.Constraint)
	field(b, "key", string(e.Key))
	if e.CommitLSN != "" || e.XID != "" {
		tx := "commit LSN " + orDash(string(e.CommitLSN)) + ", xid " + orDash(string(e.XID))
		if e.CommitTime != nil {
			tx += ", committed " + e.CommitTime.UTC().Format(time.RFC3339Nano)
		}
		field(b, "transaction", tx)
	}
	if e.Attempts > 0 {
		text := fmt.Sprintf("%d, the first %s ago", e.Attempts, ago(now, s.Since))
		if s.Since.IsZero() {
			text = strconv.FormatInt(e.Attempts, 10)
		}
		if e.NextRetry != nil && e.NextRetry.After(now) {
			text += ", the next in " + e.NextRetry.Sub(now).Round(100*time.Millisecond).String()
		}
		field(b, "attempts", text)
	}
	// Agents do not know which file they were started with.
	field(b, "remedy", strings.NewReplacer("walferry skip --", "walferry skip"+flag+" --", "walferry drop --", "walferry drop"+flag+" --").Replace(e.Remedy))
	if e.CommitLSN != "" && !strings.Contains(e.Remedy, "walferry skip") {
		field(b, "or", fmt.Sprintf("walferry skip%s --subscription %s --lsn %s   (leaves out the whole transaction and records its rows)", flag, s.Name, e.CommitLSN))
	}
}

func field(b *bytes.Buffer, name, text string) {
	if text = strings.TrimSpace(text); text == "" {
		return
	}
	for line := range strings.SplitSeq(text, "\n") {
		fmt.Fprintf(b, "  %-12s %s\n", name, line)
		name = ""
	}
}

func ago(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return max(0, now.Sub(t)).Truncate(time.Second).String()
}

func lsn(l change.LSN) string {
	if l == 0 {
		return "-"
	}
	return l.String()
}

func number(n uint64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatUint(n, 10)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func queueText(q *monitor.QueueStatus) string {
	if q == nil {
		return "-"
	}
	text := monitor.Bytes(q.Bytes)
	if q.MaxBytes > 0 {
		text += " of " + monitor.Bytes(q.MaxBytes)
	}
	return text
}

func lagText(s *monitor.SubscriptionStatus) string {
	switch {
	case s.Position == 0:
		return "-"
	case s.LagSeconds != nil:
		return monitor.Seconds(*s.LagSeconds) + ", " + monitor.Bytes(s.LagBytes)
	}
	return monitor.Bytes(s.LagBytes)
}

func waitingText(s *monitor.SubscriptionStatus) string {
	if s.LagTransactions == nil {
		return "-"
	}
	return strconv.FormatInt(*s.LagTransactions, 10)
}

func expected(c *monitor.CopyStatus) string {
	if c.BytesTotal <= c.Bytes {
		return ""
	}
	return " of about " + monitor.Bytes(c.BytesTotal)
}
