//go:build !unix

package source

// socketHasData does not know: batches are sent a little earlier.
func socketHasData(uintptr) bool { return false }
