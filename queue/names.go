package queue

import (
	"fmt"
	"strings"
)

// encodeName makes name usable as part of a stream name, a subject, a bucket
// name and a key. Letters, digits, '_' and '-' stand for themselves; a name
// with anything else, or with "--", has every other byte and every '-'
// written as "--" and two hexadecimal digits. Different names stay different.
func encodeName(name string) string {
	plain := !strings.Contains(name, "--")
	for i := 0; plain && i < len(name); i++ {
		plain = name[i] == '-' || isPlainByte(name[i])
	}
	if plain {
		return name
	}
	var b strings.Builder
	for i := range len(name) {
		if isPlainByte(name[i]) {
			b.WriteByte(name[i])
		} else {
			fmt.Fprintf(&b, "--%02x", name[i])
		}
	}
	return b.String()
}

func isPlainByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}

// StreamName is the name of the stream of the publisher called name.
func StreamName(name string) string { return "WALFERRY_" + encodeName(name) }

// Subject is the subject of the batches of the publisher called name.
func Subject(name string) string { return "walferry." + encodeName(name) + ".txn" }

func bucketName(name string) string { return "walferry_" + encodeName(name) }
