package main

import (
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/walferry/walferry/config"
)

// sharedFlags say where the configuration comes from.
type sharedFlags struct {
	file            string
	from, to        string
	tables, exclude []string
	dataDir         string
	logLevel        string
	logFormat       string
}

// register adds the flags to a verb.
func (f *sharedFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVarP(&f.file, "config", "c", "", "configuration `FILE`")
	fs.StringVar(&f.from, "from", "", "publisher, `URL` or keyword=value (instead of -c)")
	fs.StringVar(&f.to, "to", "", "subscriber, `URL` or keyword=value")
	fs.StringArrayVar(&f.tables, "tables", nil, "table `patterns` such as 'public.*', comma separated; all without")
	fs.StringArrayVar(&f.exclude, "exclude", nil, "table `patterns` to leave out")
	fs.StringVar(&f.dataDir, "data-dir", "", "`folder` of the queue and of control sockets")
	fs.StringVar(&f.logLevel, "log-level", "", "debug, info, warn or error")
	fs.StringVar(&f.logFormat, "log-format", "", "auto, text or json")
}

const configHint = "give -c FILE, or --from URL --to URL"

// load reads the configuration that the flags name.
func (f *sharedFlags) load(cmd *cobra.Command) (*config.Config, error) {
	given := cmd.Flags().Changed
	var cfg *config.Config
	var err error
	switch {
	case given("config") && (given("from") || given("to") || given("tables") || given("exclude")):
		return nil, usageError(configHint, "-c does not go together with --from, --to, --tables and --exclude")
	case given("config"):
		if cfg, err = config.Load(f.file); err != nil {
			return nil, &codeError{code: exitUsage, err: err}
		}
		if given("data-dir") {
			cfg.DataDir = f.dataDir
		}
	case given("from") && given("to"):
		cfg, err = config.FromFlags(f.from, f.to, split(f.tables), split(f.exclude), f.dataDir)
		if err != nil {
			return nil, &codeError{code: exitUsage, err: err}
		}
	case given("from"):
		return nil, usageError(configHint, "--to is missing")
	case given("to"):
		return nil, usageError(configHint, "--from is missing")
	default:
		return nil, usageError(configHint, "no configuration is given")
	}
	if given("log-level") {
		cfg.Log.Level = f.logLevel
	}
	if given("log-format") {
		cfg.Log.Format = f.logFormat
	}
	if err := checkLog(cfg.Log); err != nil {
		return nil, err
	}
	if cfg.DataDir, err = filepath.Abs(cfg.DataDir); err != nil {
		return nil, fmt.Errorf("find data_dir: %w", err)
	}
	return cfg, nil
}

func split(lists []string) []string {
	var out []string
	for _, l := range lists {
		out = append(out, config.SplitPatterns(l)...)
	}
	return out
}

func checkLog(l config.Log) error {
	if _, err := logLevel(l.Level); err != nil {
		return usageError("allowed: debug, info, warn, error", "--log-level %q is not known", l.Level)
	}
	switch l.Format {
	case "auto", "text", "json":
		return nil
	}
	return usageError("allowed: auto, text, json", "--log-format %q is not known", l.Format)
}

func logLevel(s string) (slog.Level, error) {
	var l slog.Level
	switch s {
	case "debug", "info", "warn", "error":
		return l, l.UnmarshalText([]byte(s))
	}
	return 0, fmt.Errorf("log level %q", s)
}
