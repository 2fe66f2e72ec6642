package config

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/walferry/walferry/change"
)

// The decoders of single values; each reports what it cannot use.

func text(dst *string) func(value) {
	return func(v value) {
		if s, ok := v.text(); ok {
			*dst = s
		}
	}
}

// secret is a text that no message shows.
func secret(dst *string) func(value) {
	return func(v value) {
		v.secret = true
		text(dst)(v)
	}
}

func oneOf[T ~string](dst *T, allowed ...T) func(value) {
	return func(v value) {
		s, ok := v.text()
		if !ok {
			return
		}
		names := make([]string, len(allowed))
		for i, a := range allowed {
			names[i] = string(a)
			if s == string(a) {
				*dst = a
				return
			}
		}
		v.wrong("is not one of the allowed values", "allowed: "+strings.Join(names, ", "))
	}
}

// words are the ways to say yes and no; YAML 1.2 has only true and false, and
// readers of YAML expect the others.
var words = map[string]bool{
	"true": true, "on": true, "yes": true,
	"false": false, "off": false, "no": false,
}

func boolean(dst *bool) func(value) {
	return func(v value) {
		s, ok := v.text()
		if !ok {
			return
		}
		b, ok := words[strings.ToLower(s)]
		if !ok {
			v.wrong("is not one of the allowed values", "allowed: on, off")
			return
		}
		*dst = b
	}
}

// onOffAuto also takes true and false.
func onOffAuto(dst *string) func(value) {
	return func(v value) {
		s, ok := v.text()
		if !ok {
			return
		}
		switch b, known := words[strings.ToLower(s)]; {
		case s == FailoverAuto:
			*dst = FailoverAuto
		case known && b:
			*dst = FailoverOn
		case known:
			*dst = FailoverOff
		default:
			v.wrong("is not one of the allowed values", "allowed: auto, on, off")
		}
	}
}

func integer(dst *int, low, high int) func(value) {
	return func(v value) {
		s, ok := v.text()
		if !ok {
			return
		}
		n, err := strconv.Atoi(s)
		if err != nil || n < low || n > high {
			v.wrong("is not a number in the range", fmt.Sprintf("allowed: %d to %d", low, high))
			return
		}
		*dst = n
	}
}

func size(dst *ByteSize, low, high ByteSize) func(value) {
	return func(v value) {
		s, ok := v.text()
		if !ok {
			return
		}
		b, err := ParseByteSize(s)
		switch {
		case err != nil:
			v.wrong(err.Error(), "")
		case b < low || b > high:
			v.wrong("is out of range", fmt.Sprintf("allowed: %s to %s", low, high))
		default:
			*dst = b
		}
	}
}

func duration(dst *Duration, low, high Duration) func(value) {
	return func(v value) {
		s, ok := v.text()
		if !ok {
			return
		}
		d, err := ParseDuration(s)
		switch {
		case err != nil:
			v.wrong(err.Error(), "")
		case d < low || d > high:
			v.wrong("is out of range", fmt.Sprintf("allowed: %s to %s", low, high))
		default:
			*dst = d
		}
	}
}

func lsn(dst *change.LSN) func(value) {
	return func(v value) {
		s, ok := v.text()
		if !ok {
			return
		}
		l, err := change.ParseLSN(s)
		if err != nil {
			v.wrong("is not a position in the write-ahead log", "as pg_current_wal_lsn() prints it: 16/B374D848")
			return
		}
		*dst = l
	}
}

func texts(dst *[]string) func(value) {
	return func(v value) {
		*dst = nil
		for _, it := range v.items() {
			if s, ok := it.text(); ok {
				*dst = append(*dst, s)
			}
		}
	}
}

func patterns(dst *[]Pattern) func(value) {
	return func(v value) {
		*dst = nil
		if l, ok := v.d.resolve(v.node).(*ast.SequenceNode); ok && len(l.Values) == 0 {
			v.bad("remove the key to select all tables", "the list is empty")
		}
		for _, it := range v.items() {
			s, ok := it.text()
			if !ok {
				continue
			}
			p, err := ParsePattern(s)
			if err != nil {
				it.wrong(err.Error(), "")
				continue
			}
			*dst = append(*dst, p)
		}
	}
}

// renames reads a mapping whose keys and values are names.
func renames[K comparable](dst *map[K]K, parse func(string) (K, error)) func(value) {
	return func(v value) {
		pairs, _ := v.pairs()
		*dst = make(map[K]K, len(pairs))
		for _, p := range pairs {
			c := v.child(p.value, join(v.path, p.key), p.pos)
			from, err := parse(p.key)
			if err != nil {
				v.d.add(p.pos, c.path, "", "%s", err)
				continue
			}
			s, ok := c.text()
			if !ok {
				if _, set, scalar := c.raw(); scalar && !set {
					c.bad("", "the new name is missing")
				}
				continue
			}
			to, err := parse(s)
			if err != nil {
				c.wrong(err.Error(), "")
				continue
			}
			if _, twice := (*dst)[from]; twice {
				c.bad("", "the same name is renamed twice")
				continue
			}
			(*dst)[from] = to
		}
	}
}
