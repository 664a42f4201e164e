package peers

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestCountsHold has connections begin, come further, be let in, take each other's places and end at random: what the table counts is
// what there is, none of those that were let in gives way, and a connection that gives way is closed.
func TestCountsHold(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := Limits{
			All: rapid.IntRange(0, 20).Draw(t, "all"), Machines: rapid.IntRange(0, 6).Draw(t, "machines"),
			Open: rapid.IntRange(0, 5).Draw(t, "open"), PerSecond: float64(rapid.IntRange(0, 3).Draw(t, "per second")),
		}
		if l.All > 0 {
			l.Machines = min(l.Machines, l.All/2)
		}
		table, now := New(l), time.Unix(1_000_000, 0)
		ends := map[*Entry]*ended{}
		let, open := map[*Entry]bool{}, []*Entry{}
		for range 200 {
			now = now.Add(time.Duration(rapid.IntRange(0, 500).Draw(t, "ms")) * time.Millisecond)
			if len(open) == 0 || rapid.Bool().Draw(t, "begins") {
				end := new(ended)
				e, gaveWay := table.Enter(fmt.Sprint(rapid.SampledFrom([]string{"a", "b", "c", "d", ""}).Draw(t, "address")), now, end)
				ends[e] = end
				for _, g := range gaveWay {
					if !bool(*ends[g]) || let[g] || !g.left {
						t.Fatalf("gave way: closed %v, let in %v, left %v", *ends[g], let[g], g.left)
					}
				}
				if !e.left {
					open = append(open, e)
				}
			} else {
				e := rapid.SampledFrom(open).Draw(t, "which")
				switch rapid.IntRange(0, 4).Draw(t, "what") {
				case 0:
					e.Progress(Stage(rapid.IntRange(0, 2).Draw(t, "stage")))
				case 1:
					if e.Known(); e.Verdict() == Welcome {
						let[e] = true
					}
				case 2:
					e.Known()
					e.Machine(rapid.Bool().Draw(t, "proved"), now)
					let[e] = e.Verdict() == Welcome
				case 3:
					e.Known()
					if v := e.Verdict(); v == Trial || v == TooMany {
						e.Replace()
						let[e] = true
					}
				case 4:
					e.Leave(now)
				}
			}
			still := open[:0]
			strangers := 0
			for _, e := range open {
				if e.left {
					continue
				}
				still = append(still, e)
				if e.stranger != nil {
					strangers++
				}
			}
			open = still
			if table.all != len(open) || l.All > 0 && table.all > l.All {
				t.Fatalf("%d are counted, there are %d of %d", table.all, len(open), l.All)
			}
			listed := 0
			for _, n := range table.strangers.networks {
				listed += n.entries.Len()
			}
			if listed != strangers {
				t.Fatalf("%d strangers are listed, there are %d", listed, strangers)
			}
		}
		for _, e := range open {
			e.Leave(now)
		}
		if table.all != 0 || table.machines != 0 || len(table.trial) != 0 || len(table.strangers.networks) != 0 || len(table.strangers.levels) != 0 {
			t.Fatalf("left over: %d, %d machines, %d on trial, %d networks, %d levels", table.all, table.machines, len(table.trial), len(table.strangers.networks), len(table.strangers.levels))
		}
	})
}
