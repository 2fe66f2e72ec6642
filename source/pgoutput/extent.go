package pgoutput

// An Extent finds out how much room an Insert, Update or Delete takes while it
// arrives in parts: the length of a column stands before its value, and the new
// row of an update is about as long as the whole old one before it. The zero value
// is ready for the first part of a message of protocol version 1.
type Extent struct {
	seen   int // bytes fed
	skip   int // bytes of a value, or of the message's beginning, that are still to come
	state  extentState
	cols   int    // of the tuple, still to come
	field  uint32 // number under construction
	digits int    // bytes of it that are missing
	update bool
	old    bool // inside of the whole old row of an update
}

type extentState byte

const (
	extentKind    extentState = iota // the first byte
	extentTuple                      // what kind of tuple follows
	extentColumns                    // number of columns
	extentColumn                     // kind of a column
	extentLength                     // length of a column
	extentUnknown                    // another kind of message, or damage
)

// Reset begins with another message.
func (e *Extent) Reset() { *e = Extent{} }

// Feed takes the next part and returns for how many bytes to make room: those
// that the message has at least, and twice as many as long as only the old row of
// an update is known.
func (e *Extent) Feed(part []byte) int {
	for i := 0; i < len(part); {
		if e.skip > 0 {
			n := min(e.skip, len(part)-i)
			e.skip -= n
			i += n
			continue
		}
		e.step(part[i])
		i++
		if e.state == extentUnknown {
			break
		}
	}
	e.seen += len(part)
	if e.old {
		return 2 * (e.seen + e.skip)
	}
	return e.seen + e.skip
}

func (e *Extent) step(c byte) {
	switch e.state {
	case extentKind:
		switch Kind(c) {
		case Insert, Update, Delete:
			e.state, e.skip, e.update = extentTuple, 4, Kind(c) == Update // the relation
		default:
			e.state = extentUnknown
		}
	case extentTuple:
		switch c {
		case 'N', 'K', 'O':
			e.state, e.field, e.digits = extentColumns, 0, 2
			e.old = e.update && c == 'O'
		default:
			e.state = extentUnknown
		}
	case extentColumns:
		if e.digit(c) {
			e.cols = int(e.field)
			e.nextColumn()
		}
	case extentColumn:
		e.cols--
		switch c {
		case 't', 'b':
			e.state, e.field, e.digits = extentLength, 0, 4
		case 'n', 'u':
			e.nextColumn()
		default:
			e.state = extentUnknown
		}
	case extentLength:
		if e.digit(c) {
			if e.field > 1<<30 {
				e.state = extentUnknown
				return
			}
			e.skip = int(e.field)
			e.nextColumn()
		}
	}
}

// digit adds a byte to a number and reports whether it is complete.
func (e *Extent) digit(c byte) bool {
	e.field = e.field<<8 | uint32(c)
	e.digits--
	return e.digits == 0
}

func (e *Extent) nextColumn() {
	if e.state = extentColumn; e.cols == 0 {
		e.state = extentTuple
	}
}
