package fleet_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/colonyfleet/colony/co/fleet"
	"github.com/colonyfleet/colony/protocol"
)

func TestPositions(t *testing.T) {
	t.Parallel()
	for _, want := range []fleet.Positions{
		{}, {"a": {Seq: 1}}, {"a": {Era: 3, Seq: math.MaxInt64}, "line-1": {Era: math.MaxInt32}},
	} {
		got, err := fleet.ParsePositions(want.String())
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%v\n%s", err, d)
		}
	}
	for _, bad := range []string{"!", "YQ", "YS4x", "YS4xLjEuMQ", "Qi4wLjE", "YS4tMS4x", "YS4wLi0x", "YS4wLjE5MjIzMzcyMDM2ODU0Nzc1ODA4"} {
		if got, err := fleet.ParsePositions(bad); protocol.KindOf(err) != protocol.Invalid {
			t.Errorf("%q: %v, %v", bad, got, err)
		}
	}
	if a, b := (fleet.Position{Era: 1, Seq: 9}), (fleet.Position{Era: 2, Seq: 1}); !a.Less(b) || b.Less(a) || a.Less(a) {
		t.Error("a position of an earlier epoch is not before one of a later epoch")
	}
}

func FuzzParsePositions(f *testing.F) {
	f.Add(fleet.Positions{"a": {Era: 1, Seq: 2}, "b": {}}.String())
	f.Fuzz(func(t *testing.T, s string) {
		p, err := fleet.ParsePositions(s)
		if err != nil {
			return
		}
		again, err := fleet.ParsePositions(p.String())
		if d := cmp.Diff(p, again); d != "" || err != nil {
			t.Errorf("%v\n%s", err, d)
		}
	})
}
