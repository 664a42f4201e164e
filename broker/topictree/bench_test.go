package topictree

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// BenchmarkFleet looks for the subscribers of the topics of a fleet: 100,000 filters of machines, each its own, and
// 100 of applications, with wildcards.
func BenchmarkFleet(b *testing.B) {
	const machines, metrics = 10_000, 10
	var tr Tree[int]
	for m := range machines {
		for i := range metrics {
			tr.Add(m, fmt.Sprintf("plant/hall-%d/press-%d/metric-%d", m%20, m, i), Options{})
		}
	}
	for a := range 100 {
		tr.Add(machines+a, fmt.Sprintf("plant/+/press-%d/#", a), Options{})
	}
	topics := make([]string, 1<<14)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range topics {
		m := rnd.IntN(machines)
		topics[i] = fmt.Sprintf("plant/hall-%d/press-%d/metric-%d", m%20, m, rnd.IntN(metrics))
	}
	var found Found[int]
	i := 0
	for b.Loop() {
		tr.FindInto(&found, topics[i%len(topics)])
		i++
		if len(found.Plain) == 0 {
			b.Fatal("nobody")
		}
		found.Clear()
	}
}

// BenchmarkTwoFilters looks for the subscribers of a topic that 100 clients have one filter for, and one another.
func BenchmarkTwoFilters(b *testing.B) {
	var tr Tree[int]
	for s := range 100 {
		tr.Add(s, "a/#", Options{})
	}
	tr.Add(100, "a/b", Options{})
	var found Found[int]
	for b.Loop() {
		tr.FindInto(&found, "a/b")
		if len(found.Plain) != 101 {
			b.Fatalf("%d matches", len(found.Plain))
		}
		found.Clear()
	}
}

// BenchmarkDeep looks for the subscribers of a topic that 1,000 filters with 200 levels match up to the last one.
func BenchmarkDeep(b *testing.B) {
	tr, topic := deep(1000, 200)
	var found Found[int]
	for b.Loop() {
		tr.FindInto(&found, topic)
		if len(found.Plain) > 0 {
			b.Fatal("somebody")
		}
	}
}

// deep returns a tree with filters that branch at each level, and the topic that has all of them looked at.
func deep(filters, levels int) (*Tree[int], string) {
	var tr Tree[int]
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range filters {
		f := make([]string, levels)
		for l := range f {
			f[l] = string("a+"[rnd.IntN(2)])
		}
		f[levels-1] = "zz"
		tr.Add(i, strings.Join(f, "/"), Options{})
	}
	return &tr, strings.Repeat("a/", levels-1) + "yy"
}
