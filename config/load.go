package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Load reads a file. Relative paths in it start from its folder. What is wrong
// with its content is an [*Error].
func Load(path string) (*Config, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return parse(path, dir, src, os.LookupEnv)
}

// Parse reads a configuration from memory. name stands for the file in
// messages; lookup is the environment.
func Parse(name string, src []byte, lookup func(string) (string, bool)) (*Config, error) {
	return parse(name, "", src, lookup)
}

func parse(name, dir string, src []byte, lookup func(string) (string, bool)) (*Config, error) {
	body, problem := syntax(src)
	if problem != nil {
		return nil, newError(name, []Problem{*problem})
	}
	d := &decoder{lookup: lookup, positions: map[string]Position{}}
	if body != nil {
		d.collectAnchors(body)
	}
	c := Default()
	c.decode(value{d: d, node: body, pos: Position{1, 1}})
	c.file, c.positions = name, d.positions
	c.complete(dir)
	if err := newError(name, append(d.problems, c.problems(d.problems)...)); err != nil {
		return nil, err
	}
	return c, nil
}

// syntax parses YAML. Messages of the parser are used, its excerpts of the file are
// not: they may show a password.
func syntax(src []byte) (body ast.Node, problem *Problem) {
	defer func() {
		if r := recover(); r != nil { // the parser is not ours, and its input is
			body, problem = nil, &Problem{Message: "not valid YAML"}
		}
	}()
	file, err := parser.ParseBytes(src, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		p := &Problem{Message: "not valid YAML"}
		var se *yaml.SyntaxError
		if errors.As(err, &se) {
			p.Message += ": " + se.Message
			p.Position = at(se.Token)
			p.Hint = syntaxHint(src, p.Position)
		}
		return nil, p
	}
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if _, ok := doc.Body.(*ast.CommentGroupNode); ok {
			continue
		}
		if body != nil {
			return nil, &Problem{Position: positionOf(doc.Body), Message: "more than one YAML document"}
		}
		body = doc.Body
	}
	return body, nil
}

func syntaxHint(src []byte, pos Position) string {
	lines := strings.Split(string(src), "\n")
	if pos.Line < 1 || pos.Line > len(lines) {
		return ""
	}
	switch l := strings.TrimSpace(lines[pos.Line-1]); {
	case strings.HasPrefix(lines[pos.Line-1], "\t"):
		return "indent with spaces, not tabs"
	case strings.Contains(l, "${"):
		return "quote a value that holds { or }"
	case strings.Contains(l, "*"):
		return "quote a value that begins with *"
	}
	return ""
}
