package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Position is a place in the file, counted from 1. The zero value is unknown.
type Position struct{ Line, Column int }

// Problem is one thing that is wrong.
type Problem struct {
	Position
	Path    string // subscriptions[0].policies.insert_conflict
	Message string
	Hint    string // what would be right
}

// Error is everything that is wrong with a configuration, in the order of the
// file.
type Error struct {
	File     string
	Problems []Problem
}

// Error has a line for each problem.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		var b strings.Builder
		b.WriteString(e.File)
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d:%d", p.Line, p.Column)
		}
		if b.Len() > 0 {
			b.WriteString(": ")
		}
		if p.Path != "" {
			b.WriteString(p.Path + ": ")
		}
		b.WriteString(p.Message)
		if p.Hint != "" {
			b.WriteString(" (" + p.Hint + ")")
		}
		lines[i] = b.String()
	}
	return strings.Join(lines, "\n")
}

// newError returns nil when there is no problem.
func newError(file string, problems []Problem) error {
	if len(problems) == 0 {
		return nil
	}
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return &Error{File: file, Problems: problems}
}

// nearest is the known word closest to w, or "" when none is close.
func nearest(w string, known []string) string {
	best, bestD := "", max(len(w)/3, min(2, len(w)-1))+1
	for _, k := range known {
		if d := distance(strings.ToLower(w), k); d < bestD {
			best, bestD = k, d
		}
	}
	return best
}

// distance counts the edits (insert, delete, replace) between a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diag
			if a[i] != b[j] {
				cost++
			}
			diag = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
