package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// median is the run with the middle time.
func median(c []cost) (cost, bool) {
	if len(c) == 0 {
		return cost{}, false
	}
	s := slices.Clone(c)
	slices.SortFunc(s, func(a, b cost) int { return int(a.Wall - b.Wall) })
	return s[len(s)/2], true
}

// Markdown writes the report as tables.
func (r *Report) Markdown(w io.Writer) {
	fmt.Fprintf(w, "PostgreSQL %s on both sides, %d CPUs, %s; scale %g, median of %d.\n\n", r.Server, r.CPUs, r.Date.UTC().Format("2006-01-02"), r.Scale, r.Runs)
	if len(r.Results) > 0 {
		r.drains(w)
		r.cpu(w)
	}
	if len(r.Copies) > 0 {
		r.copies(w)
	}
	if len(r.Live) > 0 {
		r.live(w)
	}
}

func (r *Report) copies(w io.Writer) {
	fmt.Fprintln(w, "Initial copy: seconds until the tables are ready and have their indexes, and that divided by walferry's: above 1, walferry is faster.")
	fmt.Fprintln(w)
	fmt.Fprint(w, "| set | tables | rows | MB |")
	for _, m := range CopyMethods {
		fmt.Fprintf(w, " %s | |", m)
	}
	fmt.Fprintln(w, " CPU of walferry | memory |")
	fmt.Fprintln(w, "|---|---:|---:|---:|"+strings.Repeat("---:|", 2*len(CopyMethods))+"---:|---:|")
	for _, res := range r.Copies {
		fmt.Fprintf(w, "| %s | %d | %d | %d |", res.Set, res.Tables, res.Rows, res.Bytes>>20)
		ferry, _ := median(res.Costs[CopyFerry])
		for _, m := range CopyMethods {
			c, ok := median(res.Costs[m])
			cell(w, c, ok)
			fmt.Fprintf(w, " %s |", ratio(c, ferry))
		}
		fmt.Fprintf(w, " %.1f s | %d MiB |\n", ferry.Ferry.Seconds(), ferry.Memory>>20)
	}
	fmt.Fprintln(w)
}

func (r *Report) drains(w io.Writer) {
	fmt.Fprintln(w, "Seconds until the subscriber shows everything. Ratios are native text and native binary divided by walferry: above 1, walferry is faster.")
	fmt.Fprintln(w)
	fmt.Fprintln(w, "| workload | changes | transactions | native | native binary | slot backlog | ratios | queue backlog | ratios |")
	fmt.Fprintln(w, "|---|---:|---:|---:|---:|---:|---:|---:|---:|")
	for _, res := range r.Results {
		fmt.Fprintf(w, "| %s | %d | %d |", res.Workload, res.Changes, res.Txns)
		text, haveText := median(res.Costs[Native])
		bin, haveBin := median(res.Costs[NativeBin])
		cell(w, text, haveText)
		cell(w, bin, haveBin)
		for _, m := range []Method{Slot, Queue} {
			c, ok := median(res.Costs[m])
			cell(w, c, ok)
			fmt.Fprintf(w, " %s, %s |", ratio(text, c), ratio(bin, c))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
}

func cell(w io.Writer, c cost, ok bool) {
	if !ok {
		fmt.Fprint(w, " |")
		return
	}
	fmt.Fprintf(w, " %.2f |", c.Wall.Seconds())
}

func ratio(native, c cost) string {
	if native.Wall == 0 || c.Wall == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", native.Wall.Seconds()/c.Wall.Seconds())
}

func (r *Report) cpu(w io.Writer) {
	fmt.Fprintln(w, "CPU seconds of all processes together: walsender + subscriber's process (+ walferry), and walferry's peak memory.")
	fmt.Fprintln(w)
	fmt.Fprintln(w, "| workload | native | native binary | slot backlog | queue backlog (no walsender) | memory, slot | memory, queue |")
	fmt.Fprintln(w, "|---|---:|---:|---:|---:|---:|---:|")
	for _, res := range r.Results {
		fmt.Fprintf(w, "| %s |", res.Workload)
		for _, m := range Methods {
			c, ok := median(res.Costs[m])
			switch {
			case !ok:
				fmt.Fprint(w, " |")
			case m == Native || m == NativeBin:
				fmt.Fprintf(w, " %.1f + %.1f |", c.Sender.Seconds(), c.Apply.Seconds())
			case m == Slot:
				fmt.Fprintf(w, " %.1f + %.1f + %.1f |", c.Sender.Seconds(), c.Apply.Seconds(), c.Ferry.Seconds())
			default:
				fmt.Fprintf(w, " %.1f + %.1f |", c.Apply.Seconds(), c.Ferry.Seconds())
			}
		}
		for _, m := range []Method{Slot, Queue} {
			c, _ := median(res.Costs[m])
			fmt.Fprintf(w, " %d MiB |", c.Memory>>20)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
}

func (r *Report) live(w io.Writer) {
	fmt.Fprintln(w, "Latency from commit on the publisher to visibility on the subscriber, one row per transaction.")
	fmt.Fprintln(w)
	fmt.Fprintln(w, "| method | transactions/s | p50 ms | p99 ms | max ms | CPU s: walsender + subscriber + walferry, for "+liveTime.String()+" |")
	fmt.Fprintln(w, "|---|---:|---:|---:|---:|---:|")
	for _, l := range r.Live {
		name := "native"
		if l.Method != Native {
			name = "walferry"
		}
		fmt.Fprintf(w, "| %s | %d | %.2f | %.2f | %.2f | %s |\n", name, l.Rate, ms(l.P50), ms(l.P99), ms(l.Max),
			fmt.Sprintf("%.1f + %.1f + %.1f", seconds(l.CPU.Sender), seconds(l.CPU.Apply), seconds(l.CPU.Ferry)))
	}
	fmt.Fprintln(w)
}

func seconds(d time.Duration) float64 { return d.Seconds() }
