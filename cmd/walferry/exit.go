package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/walferry/walferry/agent"
	"github.com/walferry/walferry/config"
)

// Exit codes; documented in docs/operations.md.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2 // command line or configuration
	exitCheck       = 3 // requirements are not met
	exitTimeout     = 4 // wait
	exitStopped     = 5 // a subscription has stopped with an error
	exitInterrupted = 6 // before it was finished
)

// codeError is an error with its exit code.
type codeError struct {
	code int
	err  error // nil: everything was said already
	hint string
}

func (e *codeError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *codeError) Unwrap() error { return e.err }
func (e *codeError) Hint() string  { return e.hint }

func usageError(hint, format string, args ...any) error {
	return &codeError{code: exitUsage, err: fmt.Errorf(format, args...), hint: hint}
}

// exitCode is the code for an error of a verb.
func exitCode(ctx context.Context, err error) int {
	var ce *codeError
	var conf *config.Error
	switch {
	case errors.As(err, &ce):
		return ce.code
	case errors.As(err, &conf):
		return exitUsage
	case errors.Is(err, agent.ErrWaitTimeout):
		return exitTimeout
	case errors.Is(err, agent.ErrSubscriptionStopped):
		return exitStopped
	case errors.Is(context.Cause(ctx), errInterrupted):
		return exitInterrupted
	}
	return exitError
}

// report writes an error once, each of its lines with the name of the program,
// and what may help.
func report(w io.Writer, err error, code int) {
	text := err.Error()
	if code == exitInterrupted {
		text = errInterrupted.Error()
	}
	if text == "" {
		return
	}
	for line := range strings.SplitSeq(text, "\n") {
		fmt.Fprintln(w, "walferry: "+line)
	}
	if code == exitInterrupted {
		return
	}
	for _, h := range hints(err) {
		for line := range strings.SplitSeq(h, "\n") {
			fmt.Fprintln(w, "hint: "+line)
		}
	}
}

// hints collects what the errors of a chain or tree suggest, each once.
func hints(err error) []string {
	var out []string
	seen := map[string]bool{}
	var walk func(error)
	walk = func(err error) {
		if err == nil {
			return
		}
		if h, ok := err.(interface{ Hint() string }); ok { // this error, not its causes
			if t := strings.TrimSpace(h.Hint()); t != "" && !seen[t] {
				seen[t] = true
				out = append(out, t)
			}
		}
		switch u := err.(type) {
		case interface{ Unwrap() error }:
			walk(u.Unwrap())
		case interface{ Unwrap() []error }:
			for _, e := range u.Unwrap() {
				walk(e)
			}
		}
	}
	walk(err)
	return out
}
