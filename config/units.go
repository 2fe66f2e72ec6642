package config

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// ByteSize is a number of bytes.
type ByteSize int64

var byteUnits = []struct {
	name  string
	bytes int64
}{
	// Larger binary units first: String takes the first that divides.
	{"TiB", 1 << 40},
	{"GiB", 1 << 30},
	{"MiB", 1 << 20},
	{"KiB", 1 << 10},
	{"TB", 1e12},
	{"GB", 1e9},
	{"MB", 1e6},
	{"kB", 1e3},
	{"KB", 1e3},
	{"B", 1},
}

// ParseByteSize reads 10GiB, 256KiB, 1.5 GB or a plain number of bytes.
func ParseByteSize(s string) (ByteSize, error) {
	num, unit := strings.TrimSpace(s), int64(1)
	for _, u := range byteUnits {
		if n, ok := strings.CutSuffix(num, u.name); ok {
			num, unit = strings.TrimSpace(n), u.bytes
			break
		}
	}
	if i, err := strconv.ParseInt(num, 10, 64); err == nil {
		if i < 0 || i > math.MaxInt64/unit {
			return 0, errors.New("out of range")
		}
		return ByteSize(i * unit), nil
	}
	f, err := strconv.ParseFloat(num, 64)
	if err != nil || math.IsNaN(f) {
		return 0, errors.New("want a size such as 256KiB, 10GiB or a number of bytes")
	}
	if f *= float64(unit); f < 0 || f >= math.MaxInt64 {
		return 0, errors.New("out of range")
	}
	return ByteSize(f), nil
}

// String is exact, in the largest unit that divides.
func (b ByteSize) String() string {
	for _, u := range byteUnits {
		if b != 0 && int64(b)%u.bytes == 0 && strings.Contains(u.name, "i") {
			return strconv.FormatInt(int64(b)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}

// MarshalText is String.
func (b ByteSize) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// Duration is a time span.
type Duration time.Duration

// ParseDuration reads what time.ParseDuration reads, and days: 2d, 1d12h.
func ParseDuration(s string) (Duration, error) {
	days, rest, ok := strings.Cut(strings.TrimSpace(s), "d")
	if !ok {
		days, rest = "0", days
	}
	if rest == "" && ok {
		rest = "0s"
	}
	n, err := strconv.ParseUint(days, 10, 16)
	if err != nil {
		return 0, errors.New("want a time such as 200ms, 30s, 48h or 2d")
	}
	d, err := time.ParseDuration(rest)
	if err != nil {
		return 0, errors.New("want a time such as 200ms, 30s, 48h or 2d")
	}
	if n > 30000 || d < 0 || d > 30000*24*time.Hour {
		return 0, errors.New("out of range")
	}
	return Duration(time.Duration(n)*24*time.Hour + d), nil
}

// String leaves out units that are zero: 48h, not 48h0m0s.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// MarshalText is String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }
