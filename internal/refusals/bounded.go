package refusals

import (
	"context"
	"fmt"
	"log/slog"
)

// mostStack is how many bytes of a stack are shown, which the attribute of this name holds.
const (
	stack     = "stack"
	mostStack = 16 << 10
)

// Bounded returns a handler that passes records on to another one, and shortens each value that is, or would become, a long
// text. Clients choose names and topics, which errors quote, and must not be able to make a line longer.
func Bounded(to slog.Handler) slog.Handler { return bounded{to} }

type bounded struct{ slog.Handler }

// Handle passes on a record.
func (h bounded) Handle(ctx context.Context, r slog.Record) error {
	out := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(short(a))
		return true
	})
	return h.Handler.Handle(ctx, out)
}

// WithAttrs returns a handler that has the attributes too.
func (h bounded) WithAttrs(list []slog.Attr) slog.Handler {
	out := make([]slog.Attr, len(list))
	for i, a := range list {
		out[i] = short(a)
	}
	return bounded{h.Handler.WithAttrs(out)}
}

// WithGroup returns a handler whose attributes are in a group.
func (h bounded) WithGroup(name string) slog.Handler { return bounded{h.Handler.WithGroup(name)} }

// short is an attribute with its long texts shortened.
func short(a slog.Attr) slog.Attr {
	most := mostReason
	if a.Key == stack {
		most = mostStack
	}
	v := a.Value.Resolve()
	switch v.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(shortened(v.String(), most))
	case slog.KindGroup:
		list := make([]slog.Attr, len(v.Group()))
		for i, one := range v.Group() {
			list[i] = short(one)
		}
		a.Value = slog.GroupValue(list...)
	case slog.KindAny:
		if text := fmt.Sprintf("%+v", v.Any()); len(text) > most {
			a.Value = slog.StringValue(shortened(text, most))
		}
	case slog.KindBool, slog.KindDuration, slog.KindFloat64, slog.KindInt64, slog.KindTime, slog.KindUint64, slog.KindLogValuer:
	}
	return a
}
