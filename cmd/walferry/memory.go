package main

import (
	"os"
	"runtime/debug"
)

// softMemory is the memory in bytes from which on the garbage collector works
// harder instead of letting the heap double. What is in use never needs that much,
// but for rows of hundreds of megabytes: what would go beyond is garbage, and
// blocks of the queue that the embedded server keeps for a while.
const softMemory = 320 << 20

// limitMemory sets the soft limit unless the operator has set one.
func limitMemory() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(softMemory)
	}
}
