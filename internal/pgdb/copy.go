package pgdb

import (
	"bytes"
	"context"
	"encoding/binary"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// CopyAbove is how many rows are worth a COPY, which costs a round trip of its own
// and then a fraction of what an insert of as many rows does.
const CopyAbove = 50

// A Copy holds rows in the binary format of COPY (PostgreSQL documentation,
// section "COPY", "Binary Format"). The columns of a row follow one another by the
// methods below, which must be those of the columns' types. It is for one goroutine.
type Copy struct {
	b       []byte
	rows    int
	columns []string
}

// NewCopy returns a buffer for the columns with room for a number of bytes.
func NewCopy(size int, columns ...string) *Copy {
	c := &Copy{b: make([]byte, 0, size+64), columns: columns}
	c.b = append(c.b, "PGCOPY\n\xff\r\n\x00"...)
	c.b = append(c.b, 0, 0, 0, 0, 0, 0, 0, 0) // flags, length of the header's extension
	return c
}

// Row begins a row, which must be followed by its columns.
func (c *Copy) Row() {
	c.rows++
	c.b = binary.BigEndian.AppendUint16(c.b, uint16(len(c.columns)))
}

func (c *Copy) null() { c.b = append(c.b, 0xff, 0xff, 0xff, 0xff) }

func (c *Copy) length(n int) { c.b = binary.BigEndian.AppendUint32(c.b, uint32(n)) }

// Text is a text column; it must not hold NUL.
func (c *Copy) Text(s string) {
	c.length(len(s))
	c.b = append(c.b, s...)
}

// Bytea is a bytea column.
func (c *Copy) Bytea(s []byte) {
	c.length(len(s))
	c.b = append(c.b, s...)
}

// Int8 is a bigint column.
func (c *Copy) Int8(n int64) {
	c.length(8)
	c.b = binary.BigEndian.AppendUint64(c.b, uint64(n))
}

// Int4 is an integer column.
func (c *Copy) Int4(n int32) {
	c.length(4)
	c.b = binary.BigEndian.AppendUint32(c.b, uint32(n))
}

// Int2 is a smallint column.
func (c *Copy) Int2(n int16) {
	c.length(2)
	c.b = binary.BigEndian.AppendUint16(c.b, uint16(n))
}

// Bool is a boolean column.
func (c *Copy) Bool(v bool) {
	c.length(1)
	if v {
		c.b = append(c.b, 1)
	} else {
		c.b = append(c.b, 0)
	}
}

// Timestamptz is microseconds since the year 2000. The zero time is null.
func (c *Copy) Timestamptz(t time.Time) {
	if t.IsZero() {
		c.null()
		return
	}
	const year2000 = 946684800
	c.Int8((t.Unix()-year2000)*1e6 + int64(t.Nanosecond()/1000))
}

// Timestamp is Timestamptz of a time that may be missing.
func (c *Copy) Timestamp(t *time.Time) {
	if t == nil {
		c.null()
		return
	}
	c.Timestamptz(*t)
}

// Types of the elements of arrays, by their numbers in pg_type.
const (
	oidOfBool        = 16
	oidOfInt8        = 20
	oidOfText        = 25
	oidOfTimestamptz = 1184
)

// Texts is a text[] of one dimension.
func (c *Copy) Texts(list []string) { array(c, oidOfText, list, c.Text) }

// Int8s is a bigint[] of one dimension.
func (c *Copy) Int8s(list []int64) { array(c, oidOfInt8, list, c.Int8) }

// Bools is a boolean[] of one dimension.
func (c *Copy) Bools(list []bool) { array(c, oidOfBool, list, c.Bool) }

// Timestamps is a timestamptz[] of one dimension; nil is null.
func (c *Copy) Timestamps(list []*time.Time) { array(c, oidOfTimestamptz, list, c.Timestamp) }

// array appends an array whose elements are appended by element.
func array[T any](c *Copy, oid uint32, list []T, element func(T)) {
	at := len(c.b)
	c.length(0)
	dimensions := uint32(min(len(list), 1))
	for _, n := range [...]uint32{dimensions, 1, oid} { // 1: elements may be null
		c.b = binary.BigEndian.AppendUint32(c.b, n)
	}
	if len(list) > 0 {
		c.length(len(list))
		c.length(1) // the lower bound
	}
	for _, v := range list {
		element(v)
	}
	binary.BigEndian.PutUint32(c.b[at:], uint32(len(c.b)-at-4))
}

// Send appends the rows to a table.
func (c *Copy) Send(ctx context.Context, tx pgx.Tx, table string) error {
	if c.rows == 0 {
		return nil
	}
	c.b = append(c.b, 0xff, 0xff)
	_, err := tx.Conn().PgConn().CopyFrom(ctx, bytes.NewReader(c.b), "copy "+table+" ("+strings.Join(c.columns, ", ")+") from stdin (format binary)")
	return err
}
