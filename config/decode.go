package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// decoder walks the syntax tree and collects problems and positions.
type decoder struct {
	lookup    func(string) (string, bool) // environment
	anchors   map[string]ast.Node
	problems  []Problem
	positions map[string]Position
}

func (d *decoder) add(pos Position, path, hint, format string, args ...any) {
	d.problems = append(d.problems, Problem{Position: pos, Path: path, Hint: hint, Message: fmt.Sprintf(format, args...)})
}

// value is a node and where it stands.
type value struct {
	d      *decoder
	node   ast.Node // nil or null: not given
	path   string
	pos    Position
	secret bool // its text must not be shown
}

func (v value) bad(hint, format string, args ...any) { v.d.add(v.pos, v.path, hint, format, args...) }

func positionOf(n ast.Node) Position {
	if n == nil {
		return Position{}
	}
	switch x := n.(type) {
	case *ast.MappingNode:
		if !x.IsFlowStyle && len(x.Values) > 0 {
			return positionOf(x.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return positionOf(x.Key)
	case *ast.SequenceNode:
		return at(x.Start)
	}
	return at(n.GetToken())
}

func at(t *token.Token) Position {
	if t == nil || t.Position == nil {
		return Position{}
	}
	return Position{t.Position.Line, t.Position.Column}
}

// maxAliases bounds chains of aliases.
const maxAliases = 20

// resolve looks through anchors, aliases and tags.
func (d *decoder) resolve(n ast.Node) ast.Node {
	for range maxAliases {
		switch x := n.(type) {
		case *ast.AnchorNode:
			n = x.Value
		case *ast.TagNode:
			n = x.Value
		case *ast.AliasNode:
			name := x.Value.GetToken().Value
			target, ok := d.anchors[name]
			if !ok {
				d.add(at(x.GetToken()), "", "a value that begins with * must be quoted", "*%s is an alias, and no &%s comes before it", name, name)
				return nil
			}
			n = target
		case *ast.NullNode:
			return nil
		default:
			return n
		}
	}
	d.add(positionOf(n), "", "", "aliases are nested too deep")
	return nil
}

// collectAnchors finds what aliases stand for.
func (d *decoder) collectAnchors(n ast.Node) {
	d.anchors = map[string]ast.Node{}
	ast.Walk(anchorVisitor(d.anchors), n)
}

type anchorVisitor map[string]ast.Node

func (v anchorVisitor) Visit(n ast.Node) ast.Visitor {
	if a, ok := n.(*ast.AnchorNode); ok && a.Name != nil {
		v[a.Name.GetToken().Value] = a.Value
	}
	return v
}

type pair struct {
	key   string
	pos   Position
	value ast.Node
}

// pairs returns the entries of a mapping; ok is false for anything else.
func (v value) pairs() (out []pair, ok bool) {
	var values []*ast.MappingValueNode
	switch x := v.d.resolve(v.node).(type) {
	case *ast.MappingNode:
		values = x.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{x}
	case nil:
		return nil, true
	default:
		v.bad("indent its keys below it", "want keys and values")
		return nil, false
	}
	seen := map[string]bool{}
	for _, kv := range values {
		pos := positionOf(kv.Key)
		if kv.Key.IsMergeKey() {
			v.d.add(pos, v.path, "", "merge keys (<<) are not supported")
			continue
		}
		var key string
		switch k := v.d.resolve(kv.Key).(type) {
		case *ast.StringNode:
			key = k.Value
		case nil:
			key = "null"
		default:
			key = k.GetToken().Value
		}
		if seen[key] {
			v.d.add(pos, join(v.path, key), "", "key is given twice")
			continue
		}
		seen[key] = true
		out = append(out, pair{key, pos, kv.Value})
	}
	return out, true
}

// fields decodes a mapping whose keys are known.
func (v value) fields(known map[string]func(value)) {
	pairs, _ := v.pairs()
	for _, p := range pairs {
		path := join(v.path, p.key)
		decode, ok := known[p.key]
		if !ok {
			names := slices.Sorted(maps.Keys(known))
			hint := "known here: " + strings.Join(names, ", ")
			if n := nearest(p.key, names); n != "" {
				hint = "did you mean " + n + "?"
			}
			v.d.add(p.pos, path, hint, "unknown key")
			continue
		}
		decode(v.child(p.value, path, p.pos))
	}
}

// child is a value below v. A mapping or list is reported at its key.
func (v value) child(n ast.Node, path string, key Position) value {
	c := value{d: v.d, node: n, path: path, pos: key}
	switch v.d.resolve(n).(type) {
	case *ast.MappingNode, *ast.MappingValueNode, *ast.SequenceNode, nil:
	default:
		c.pos = positionOf(n)
	}
	v.d.positions[path] = c.pos
	return c
}

// items returns the entries of a list.
func (v value) items() []value {
	switch x := v.d.resolve(v.node).(type) {
	case *ast.SequenceNode:
		out := make([]value, len(x.Values))
		for i, n := range x.Values {
			out[i] = v.child(n, v.path+"["+strconv.Itoa(i)+"]", positionOf(n))
		}
		return out
	case nil:
		return nil
	}
	v.bad("write [a, b], or lines that begin with -", "want a list")
	return nil
}

// raw is the scalar's text before variables are replaced. ok is false for
// anything else; set is false for null.
func (v value) raw() (text string, set, ok bool) {
	switch x := v.d.resolve(v.node).(type) {
	case nil:
		return "", false, true
	case *ast.StringNode:
		return x.Value, true, true
	case *ast.LiteralNode:
		return x.Value.Value, true, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return x.GetToken().Value, true, true
	}
	v.bad(flowHint(v.node), "want a single value")
	return "", false, false
}

// flowHint explains the usual cause of a mapping where a text is wanted.
func flowHint(n ast.Node) string {
	if m, ok := n.(*ast.MappingNode); ok && m.IsFlowStyle {
		return "quote a value that holds { or }"
	}
	return ""
}

// text is the scalar with variables replaced. ok is false when there is none
// or it is wrong, which is reported then.
func (v value) text() (text string, ok bool) {
	raw, set, ok := v.raw()
	if !ok || !set {
		return "", false
	}
	text, err := expand(raw, v.d.lookup)
	if err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			v.bad("", "%s", line)
		}
		return "", false
	}
	return text, true
}

// wrong reports a value that cannot be used. It shows what stands in the file,
// never what a variable holds.
func (v value) wrong(reason, hint string) {
	raw, _, _ := v.raw()
	if v.secret {
		v.bad(hint, "%s", reason)
		return
	}
	v.bad(hint, "%q: %s", raw, reason)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
