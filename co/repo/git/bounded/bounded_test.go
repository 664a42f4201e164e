package bounded

import "testing"

// TestBuffer fails the writer past the limit, or cuts what it writes off.
func TestBuffer(t *testing.T) {
	t.Parallel()
	for _, cut := range []bool{false, true} {
		b := Buffer{Limit: 5, Cut: cut}
		if n, err := b.Write([]byte("abc")); n != 3 || err != nil {
			t.Errorf("within the limit: %d, %v", n, err)
		}
		_, err := b.Write([]byte("defg"))
		want := "abc"
		if cut {
			want = "abcde"
		}
		if string(b.Bytes()) != want || cut != (err == nil) {
			t.Errorf("past the limit, cut %t: %q, %v; want %q", cut, b.Bytes(), err, want)
		}
	}
}
