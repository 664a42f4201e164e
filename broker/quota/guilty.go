package quota

import (
	"cmp"
	"container/heap"
	"slices"
)

// A Load is what one of the connections of an owner holds, in bytes.
type Load struct {
	Owner string
	Bytes int64
}

// Guilty returns which loads have to go, by index, so that the others are within limit together: the largest one of the
// owner that holds most, again and again. So many small loads of one owner go before the only one of another. A load
// without bytes stays.
func Guilty(loads []Load, limit int64) (out []int) {
	sum, by := int64(0), map[string]*holder{}
	for i, l := range loads {
		if l.Bytes <= 0 {
			continue
		}
		sum += l.Bytes
		h := by[l.Owner]
		if h == nil {
			h = &holder{owner: l.Owner}
			by[l.Owner] = h
		}
		h.sum += l.Bytes
		h.loads = append(h.loads, i)
	}
	if sum <= limit {
		return nil
	}
	var all holders
	for _, h := range by {
		slices.SortStableFunc(h.loads, func(x, y int) int { return cmp.Compare(loads[x].Bytes, loads[y].Bytes) })
		all = append(all, h)
	}
	for heap.Init(&all); sum > limit && len(all) > 0; {
		h := all[0]
		last := len(h.loads) - 1
		i := h.loads[last]
		out = append(out, i)
		sum -= loads[i].Bytes
		h.sum -= loads[i].Bytes
		if h.loads = h.loads[:last]; last == 0 {
			heap.Pop(&all)
		} else {
			heap.Fix(&all, 0)
		}
	}
	return out
}

// A holder is an owner with loads.
type holder struct {
	owner string
	sum   int64
	loads []int // indices, the largest last
}

// holders are a heap with the one that holds most at its top.
type holders []*holder

// Len implements heap.Interface.
func (h holders) Len() int { return len(h) }

// Less implements heap.Interface.
func (h holders) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[j].sum, h[i].sum), cmp.Compare(h[i].owner, h[j].owner)) < 0
}

// Swap implements heap.Interface.
func (h holders) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *holders) Push(x any) { *h = append(*h, x.(*holder)) }

// Pop implements heap.Interface.
func (h *holders) Pop() any {
	last := len(*h) - 1
	one := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return one
}
