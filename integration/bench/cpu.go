package bench

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of /proc/*/stat (proc_pid_stat(5)); Linux has 100 a second.
const clockTick = 10 * time.Millisecond

// cpuTime is what a process has used so far, user and system. It is zero when
// the process is gone.
func cpuTime(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, ok := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	if !ok || len(f) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(f[11]) // numbers by definition
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * clockTick
}

// peakRSS is the largest resident memory of a process so far in bytes.
func peakRSS(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, _ := strconv.ParseInt(strings.Fields(v)[0], 10, 64) // a number by definition
			return kb << 10
		}
	}
	return 0
}

// backendTime sums the CPU time of the server processes that a query lists.
func (s *server) backendTime(ctx context.Context, query string) (time.Duration, error) {
	list, err := s.get(ctx, "postgres", "SELECT string_agg(pid::text, ' ') FROM ("+query+") p")
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, f := range strings.Fields(list) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return 0, err
		}
		sum += cpuTime(pid)
	}
	return sum, nil
}

const (
	senders  = "SELECT pid FROM pg_stat_replication"
	appliers = "SELECT pid FROM pg_stat_activity WHERE datname = 'run' AND (backend_type = 'logical replication worker' OR application_name LIKE 'walferry%')"
)
