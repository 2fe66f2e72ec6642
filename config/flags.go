package config

import (
	"slices"
	"strings"
)

// FlagName is what FromFlags calls the publisher and the subscription.
const FlagName = "main"

// FromFlags is the configuration of `run --from URL --to URL`. tables and
// excludes are patterns; without tables every table is replicated. An empty
// dataDir is the default.
func FromFlags(from, to string, tables, excludes []string, dataDir string) (*Config, error) {
	c := Default()
	if dataDir != "" {
		c.DataDir = dataDir
	}
	var problems []Problem
	set := func(dst *[]Pattern, flag string, list []string) {
		for _, t := range list {
			p, err := ParsePattern(t)
			if err != nil {
				problems = append(problems, Problem{Path: flag, Message: strings.TrimSpace(t) + ": " + err.Error()})
				continue
			}
			*dst = append(*dst, p)
		}
	}
	p, s := DefaultPublisher(), DefaultSubscription()
	p.Name, p.URL = FlagName, from
	s.Name, s.Publisher, s.URL = FlagName, FlagName, to
	set(&p.Tables.Include, "--tables", tables)
	set(&p.Tables.Exclude, "--exclude", excludes)
	s.Tables = TableSet{slices.Clone(p.Tables.Include), slices.Clone(p.Tables.Exclude)}
	c.Publishers, c.Subscriptions = []Publisher{p}, []Subscription{s}
	c.complete("")
	for _, q := range c.problems(nil) {
		if f, ok := flagOf[q.Path]; ok {
			q.Path = f
		}
		problems = append(problems, q)
	}
	if err := newError("", problems); err != nil {
		return nil, err
	}
	return c, nil
}

// flagOf names the flags for the paths they fill.
var flagOf = map[string]string{
	"publishers[0].url":    "--from",
	"subscriptions[0].url": "--to",
	"data_dir":             "--data-dir",
}
