package config

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expand replaces ${NAME} and ${NAME:-default} by the variable and $$ by $. As
// in a shell, the default also stands for an empty variable. Any other $ stays.
// Errors name variables, never their values.
func expand(s string, lookup func(string) (string, bool)) (string, error) {
	if !strings.Contains(s, "$") {
		return s, nil
	}
	var b strings.Builder
	var errs []error
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i == len(s)-1 {
			b.WriteString(s)
			return b.String(), errors.Join(errs...)
		}
		b.WriteString(s[:i])
		switch rest := s[i+1:]; rest[0] {
		case '$':
			b.WriteByte('$')
			s = rest[1:]
		case '{':
			end := strings.IndexByte(rest, '}')
			if end < 0 {
				return "", errors.New("${ has no } after it; write $${ for the characters themselves")
			}
			v, err := variable(rest[1:end], lookup)
			if err != nil {
				errs = append(errs, err)
			}
			b.WriteString(v)
			s = rest[end+1:]
		default:
			b.WriteByte('$')
			s = rest
		}
	}
}

func variable(spec string, lookup func(string) (string, bool)) (string, error) {
	name, def, hasDefault := strings.Cut(spec, ":-")
	if !envName.MatchString(name) {
		return "", errors.New("what stands in ${...} is not the name of a variable; use ${NAME} or ${NAME:-default}")
	}
	v, ok := lookup(name)
	switch {
	case hasDefault && v == "":
		return def, nil
	case !ok:
		return "", fmt.Errorf("environment variable %s is not set; use ${%s:-} if it may be missing", name, name)
	}
	return v, nil
}
